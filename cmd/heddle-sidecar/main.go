// Command heddle-sidecar stands beside an application in its pod. "init"
// installs the redirect and ends; "run" is the sidecar itself.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/heddle-mesh/heddle/internal/run"
)

// exitUsage is for a command line that cannot be understood (as getopt users
// and flag.ExitOnError have it); 1 is for everything that failed later.
const exitUsage = 2

const usage = `heddle-sidecar stands beside an application in its pod.

  heddle-sidecar init [flags]   install the redirect into the pod's network, then end
  heddle-sidecar run [flags]    be the sidecar
  heddle-sidecar --version

"heddle-sidecar init --help" and "heddle-sidecar run --help" list the flags.
`

func main() { os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr)) }

// dispatch runs a subcommand and gives the exit code.
func dispatch(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case "init":
		return runInit(args[1:])
	case "run":
		return runSidecar(args[1:])
	case "--version", "-version", "version":
		fmt.Fprintln(stdout, run.VersionLine("heddle-sidecar"))
		return 0
	case "--help", "-h", "help":
		fmt.Fprint(stdout, usage)
		return 0
	}
	fmt.Fprintf(stderr, "heddle-sidecar: unknown command %q; want init or run\n", args[0])
	return exitUsage
}
