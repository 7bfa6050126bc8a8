package main

import (
	"fmt"
	"os"
)

// runSidecar is the sidecar itself and gives the exit code.
func runSidecar(args []string) int {
	fmt.Fprintln(os.Stderr, "heddle-sidecar run: not built yet")
	return 1
}
