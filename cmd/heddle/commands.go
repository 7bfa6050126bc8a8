package main

import "github.com/spf13/cobra"

// commands lists every command; each stands in a file of its own.
func commands() []*cobra.Command {
	return []*cobra.Command{newInstall(), newUninstall(), newRender(), newInject(), newUninject(), newLab()}
}
