package main

import (
	"fmt"
	"os"
)

// runInit installs the redirect and gives the exit code.
func runInit(args []string) int {
	fmt.Fprintln(os.Stderr, "heddle-sidecar init: not built yet")
	return 1
}
