// Command demo shows Heddle's main job on one Linux machine: a shop of three
// services on two nodes of a lab, with real sidecars, under load while a
// replica is killed and a service scaled. It reports what it saw and exits
// non-zero if anything is not as it must be. `make demo` runs it.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/heddle-mesh/heddle/e2e/driver"
	"github.com/heddle-mesh/heddle/internal/run"
)

//go:embed shop/*.yaml
var shop embed.FS

const (
	readyLimit  = 60 * time.Second
	endLimit    = 30 * time.Second
	wholeLimit  = 150 * time.Second // of the demo itself; the build comes before
	cleanUpTime = 20 * time.Second
)

func main() {
	bin := flag.String("bin", "bin", "folder of Heddle's programs")
	keep := flag.Bool("keep", false, "leave the lab running")
	plaintext := flag.Bool("plaintext", false, "keep one replica out of the mesh: the demo must fail")
	verbose := flag.Bool("v", false, "say what the lab says")
	flag.Parse()
	os.Exit(run.Main(os.Stderr, "demo", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, wholeLimit)
		defer cancel()
		if os.Geteuid() != 0 {
			return errors.New("the lab makes network namespaces: run this as root (sudo make demo)")
		}
		l, err := driver.New("demo", *bin)
		if err != nil {
			return err
		}
		if *verbose {
			l.Log = os.Stderr
		}
		d := newDemo(l)
		d.plaintext = *plaintext
		err = d.run(ctx)
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted: nothing was shown")
		}
		if *keep {
			fmt.Printf(lookAround, l.Bin, l.Name, filepath.Join(l.Dir, "manifests"), l.Dir)
			return err
		}
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
		defer cancel()
		return errors.Join(err, l.Down(ctx))
	}))
}

const lookAround = `
The lab stays. Look around:
  %[1]s/heddle lab status --name %[2]s
  %[1]s/heddle lab logs --name %[2]s -n shop shopper -c heddle-sidecar
  %[1]s/heddle lab exec --name %[2]s -n shop web -- /bin/sh
  edit the manifests in %[3]s and watch the status
Then:
  %[1]s/heddle lab down --name %[2]s && rm -r %[4]s
`

// demo is one run.
type demo struct {
	lab       *driver.Lab
	plaintext bool
	shopping  time.Duration // of load
	// killAfter and scaleAfter count from the load's beginning.
	killAfter, scaleAfter time.Duration
	item                  string // the word that must not be seen
	report                report
}

// newDemo is the demo as `make demo` shows it.
func newDemo(l *driver.Lab) *demo {
	return &demo{lab: l, shopping: 20 * time.Second, killAfter: 6 * time.Second, scaleAfter: 12 * time.Second}
}

// say tells the watcher where we are.
func say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context) error {
	d.item = fmt.Sprintf("thread-%x", time.Now().UnixNano())
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.baseline(ctx); err != nil {
		return err
	}
	if err := d.shop(ctx); err != nil {
		return err
	}
	d.report.print(os.Stdout)
	return d.report.verdict()
}

// start brings up the lab and the shop.
func (d *demo) start(ctx context.Context) error {
	say("starting a lab of two nodes, with control plane and injector")
	if err := d.lab.Up(ctx, "--nodes", "2", "--zones", "east,west"); err != nil {
		return err
	}
	pods := 7 // web 2, orders 2, stock 3
	files := []string{"shop.yaml", "orders.yaml", "baseline.yaml"}
	if d.plaintext {
		pods++
		files = append(files, "plaintext.yaml")
	}
	say("a shop of three services in the labelled namespace shop, and the same without a mesh beside it")
	for _, f := range files {
		if err := d.write(f, "2"); err != nil {
			return err
		}
	}
	if err := d.lab.Wait(ctx, "the shop", readyLimit, driver.Ready("shop", pods)); err != nil {
		return err
	}
	d.report.ready = pods
	return nil
}

// write puts one of the shop's files into the lab.
func (d *demo) write(name, replicas string) error {
	b, err := shop.ReadFile("shop/" + name)
	if err != nil {
		return err
	}
	return d.lab.Write(name, string(b), "REPLICAS", replicas, "ITEM", d.item, "FOR", d.shopping.String())
}
