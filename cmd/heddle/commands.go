package main

import (
	"github.com/spf13/cobra"
)

// commands lists every command; each stands in a file of its own.
func commands() []*cobra.Command {
	return append(clusterCommands(), newInject(), newUninject(), newLab())
}
