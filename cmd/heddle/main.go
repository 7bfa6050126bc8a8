// Command heddle is the tool for people: the lab, offline injection, and later
// install, check, policy, stat, tap and explain.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/internal/lab/kubelet"
	"github.com/heddle-mesh/heddle/internal/run"
)

func main() {
	kubelet.MaybeShim() // the lab starts containers through this program
	os.Exit(run.Main(os.Stderr, "heddle", func(ctx context.Context) error {
		return newRoot().ExecuteContext(ctx)
	}))
}

// newRoot gives the whole command tree.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "heddle",
		Short:         "Heddle guides each connection of your services",
		Version:       run.VersionLine("heddle"),
		SilenceErrors: true, // run.Main prints them once
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(commands()...)
	return root
}
