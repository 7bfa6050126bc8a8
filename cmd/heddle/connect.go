//go:build !nokube

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
	"github.com/heddle-mesh/heddle/cmd/heddle/policy"
)

// clusterCommands are those that link the Kubernetes client and Helm's engine.
func clusterCommands() []*cobra.Command {
	return []*cobra.Command{newInstall(), newUninstall(), newRender(), policy.New(clusterFlags)}
}

// clusterFlags gives a command, and all below it, the flags that say which
// cluster; what it returns connects. Warnings of the API server go to standard
// error.
func clusterFlags(cmd *cobra.Command) func(*cobra.Command) (*cluster.Cluster, error) {
	var o cluster.Options
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "file that names clusters (default $KUBECONFIG, then ~/.kube/config)")
	flags.StringVar(&o.Context, "context", "", "of the kubeconfig (default its current one)")
	return func(running *cobra.Command) (*cluster.Cluster, error) {
		o.Warn = func(text string) { fmt.Fprintln(running.ErrOrStderr(), "warning:", text) }
		return cluster.Connect(o)
	}
}
