// Command bench measures what the data path costs, beside the direct path and
// beside two hops of HAProxy with mutual TLS, in one run on one machine, and
// writes the table of docs/benchmarks.md. `make bench` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/heddle-mesh/heddle/e2e/driver"
	"github.com/heddle-mesh/heddle/internal/run"
)

const cleanUpTime = 30 * time.Second

func main() {
	os.Exit(run.Main(os.Stderr, "bench", func(ctx context.Context) error {
		if len(os.Args) > 1 {
			switch os.Args[1] {
			case "load":
				return runLoad(ctx, os.Args[2:])
			case "backend":
				return runBackend(ctx, os.Args[2:])
			}
		}
		return bench(ctx)
	}))
}

func bench(ctx context.Context) error {
	bin := flag.String("bin", "bin", "folder of Heddle's programs")
	rounds := flag.Int("rounds", 5, "interleaved rounds")
	length := flag.Duration("for", 5*time.Second, "time of counting, in each cell of each round")
	raw := flag.String("raw", "docs/bench", "folder for the raw results")
	doc := flag.String("doc", "docs/benchmarks.md", "page whose table is replaced")
	flag.Parse()
	if os.Geteuid() != 0 {
		return errors.New("the lab makes network namespaces: run this as root")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+time.Duration(*rounds)*6*(*length+5*time.Second))
	defer cancel()
	l, err := driver.New("bench", *bin)
	if err != nil {
		return err
	}
	b := &benchmark{lab: l, rounds: *rounds, length: *length}
	b.result.Started = time.Now().UTC()
	b.result.Machine = machine()
	err = b.run(ctx)
	down, cancelDown := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancelDown()
	if err = errors.Join(err, l.Down(down)); err != nil {
		return err
	}
	text, err := json.MarshalIndent(b.result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*raw, 0o755); err != nil {
		return err
	}
	file := filepath.Join(*raw, b.result.Started.Format("2006-01-02")+"-first-line.json")
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return err
	}
	table := b.result.table(filepath.Base(file))
	fmt.Print(table)
	return replaceTable(*doc, table)
}

// machine says what the numbers were taken on, without its name.
func machine() map[string]string {
	out := map[string]string{}
	for key, command := range map[string][]string{
		"kernel": {"uname", "-sr"}, "cpus": {"nproc"}, "go": {"go", "version"}, "haproxy": {"haproxy", "-v"}, "commit": {"git", "rev-parse", "--short", "HEAD"},
	} {
		b, err := exec.Command(command[0], command[1:]...).Output()
		if err != nil {
			out[key] = "unknown"
			continue
		}
		out[key] = firstLine(string(b))
	}
	return out
}
