// Command cluster is `make e2e`: it makes a kind cluster on this machine that
// nothing gets out of, loads Heddle's images, runs the tests of each folder
// with the build tag e2e inside, and takes everything away again. It also
// writes the images as archives (`make images`). What is tested, it does not
// know; not even Heddle is installed before a test does it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/cell"
	"github.com/heddle-mesh/heddle/internal/run"
)

const usage = `usage: cluster COMMAND
  run [-bin DIR] [-run NAME] [-keep [-notests]] [-node auto|local|stock]
                          make a cluster, run the tests of e2e/NAME or of all, remove it
  images [-bin DIR] -out DIR -tag TAG
                          write Heddle's images as archives for docker load
  list                    the clusters that are up
  remove ID               remove a cluster that was kept
`

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	switch args[0] {
	case "cell": // the first process of a cell
		if len(args) == 3 {
			os.Exit(cell.Inside(args[1], args[2]))
		}
	case "runtime": // in place of runc
		fmt.Fprintln(os.Stderr, cell.Runtime(args[1:]))
		os.Exit(1)
	}
	os.Exit(run.Main(os.Stderr, "e2e", func(ctx context.Context) error {
		err := command(ctx, os.Stdout, args)
		if ctx.Err() != nil {
			return errors.Join(errors.New("interrupted"), err)
		}
		return err
	}))
}

// options are the flags of all commands.
type options struct {
	bin, out, tag, run, node string
	keep, notests            bool
	args                     []string
}

func parse(args []string) (command string, o options, err error) {
	command = args[0]
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.bin, "bin", "bin", "folder of Heddle's programs")
	switch command {
	case "run":
		f.StringVar(&o.run, "run", "", "only this folder below e2e")
		f.BoolVar(&o.keep, "keep", false, "leave the cluster")
		f.BoolVar(&o.notests, "notests", false, "only make the cluster")
		f.StringVar(&o.node, "node", nodeAuto, "where the node image comes from")
	case "images":
		f.StringVar(&o.out, "out", "", "folder for the archives")
		f.StringVar(&o.tag, "tag", "", "the images' tag")
	case "list", "remove":
	default:
		return "", o, fmt.Errorf("no command %q\n%s", command, usage)
	}
	if err := f.Parse(args[1:]); err != nil {
		return "", o, fmt.Errorf("%w\n%s", err, usage)
	}
	o.args = f.Args()
	want := 0
	if command == "remove" {
		want = 1
	}
	switch {
	case len(o.args) != want:
		return "", o, fmt.Errorf("%s: %d arguments, not %d\n%s", command, len(o.args), want, usage)
	case command == "images" && (o.out == "" || o.tag == ""):
		return "", o, fmt.Errorf("images: -out and -tag are needed\n%s", usage)
	case o.notests && (!o.keep || o.run != ""):
		return "", o, errors.New("run: -notests makes a cluster to look at: it goes with -keep, and without -run")
	case command == "run" && o.node != nodeAuto && o.node != nodeLocal && o.node != nodeStock:
		return "", o, fmt.Errorf("run: -node=%s: want auto, local or stock", o.node)
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return "", o, err
	}
	return command, o, nil
}

func command(ctx context.Context, out io.Writer, args []string) error {
	name, o, err := parse(args)
	if err != nil {
		return err
	}
	if name == "images" {
		return writeImages(out, o.bin, o.out, o.tag)
	}
	if os.Geteuid() != 0 {
		return errors.New("a cluster takes namespaces and mounts: run this as root (sudo make e2e)")
	}
	switch name {
	case "list":
		alive, err := cell.Reap(cell.Runs)
		for _, f := range alive {
			fmt.Fprintf(out, "%s kept=%v %s\n", f.ID, f.Kept, filepath.Join(cell.Runs, f.ID))
		}
		return err
	case "remove":
		return cell.Remove(cell.Runs, o.args[0])
	}
	return newSession(out, o).run(ctx)
}

// say tells the watcher where we are.
func sayTo(out io.Writer) func(format string, args ...any) {
	return func(format string, args ...any) {
		fmt.Fprintf(out, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
	}
}
