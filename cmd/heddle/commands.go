package main

import (
	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/cmd/heddle/policy"
)

// commands lists every command; each stands in a file of its own.
func commands() []*cobra.Command {
	return []*cobra.Command{newInstall(), newUninstall(), newRender(), newInject(), newUninject(), policy.New(clusterFlags), newLab()}
}
