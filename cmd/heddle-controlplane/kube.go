//go:build !nokube

package main

import (
	"log/slog"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/kube"
)

// openKube is the door to an API server.
func openKube(kubeconfig string, log *slog.Logger) (source.Source, error) {
	return kube.New(kube.Config{Kubeconfig: kubeconfig, Log: log})
}
