//go:build nokube

package main

import "github.com/spf13/cobra"

// clusterCommands: the tag nokube leaves the Kubernetes client and Helm's
// engine out, which are most of what takes long to compile.
func clusterCommands() []*cobra.Command { return nil }
