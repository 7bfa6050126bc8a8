//go:build !nokube

package main

import (
	"context"
	"log/slog"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/kube"
)

// openKube is the door to an API server; publish writes the authorities of our
// serving certificate into a webhook's configuration.
func openKube(kubeconfig string, log *slog.Logger) (src source.Source, publish func(ctx context.Context, webhook string, roots []byte) error, err error) {
	k, err := kube.New(kube.Config{Kubeconfig: kubeconfig, Only: watched, Log: log})
	if err != nil {
		return nil, nil, err
	}
	return k, k.SetCABundle, nil
}

// watched are the kinds that decide about a pod.
var watched = []string{"Namespace", "Node", "ServiceCIDR", "MeshConfig"}
