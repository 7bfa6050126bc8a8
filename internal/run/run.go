// Package run starts a program's parts and ends them together, and says which
// version of Heddle a program is. It knows nothing of what the parts do. Every
// cmd calls it.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
)

// Version and Commit are stamped by the linker (Makefile); a program built
// otherwise says "devel" and what the Go toolchain knows.
var (
	Version = "devel"
	Commit  = ""
)

// VersionLine is what --version prints.
func VersionLine(program string) string {
	commit := Commit
	if commit == "" {
		if info, ok := debug.ReadBuildInfo(); ok {
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					commit = s.Value
				}
			}
		}
	}
	line := program + " " + Version
	if commit != "" {
		line += " (" + commit + ")"
	}
	return line + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}

// Exit is the error of a program that has said what there was to say and wants
// to end with this code.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main runs f until it returns, SIGTERM or SIGINT, and gives the exit code: 0
// for a clean end, an Exit's own, 1 for any other error, which it prints to
// stderr. A second signal ends the process at once.
func Main(stderr io.Writer, program string, f func(ctx context.Context) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // the next signal has its default effect: it kills us
	}()
	err := f(ctx)
	if exit, ok := errors.AsType[Exit](err); ok {
		return int(exit)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintf(stderr, "%s: %v\n", program, err)
		return 1
	}
	return 0
}

// Group runs parts. When the first part returns, with or without an error, the
// context of all is cancelled; Wait returns once every part has ended.
type Group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	err    error
}

// NewGroup gives a Group whose parts end with ctx.
func NewGroup(ctx context.Context) *Group {
	g := &Group{}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

// Go starts a part; name stands in front of its error.
func (g *Group) Go(name string, f func(ctx context.Context) error) {
	g.wg.Go(func() {
		err := f(g.ctx)
		g.once.Do(func() {
			if err != nil && !errors.Is(err, context.Canceled) {
				g.err = fmt.Errorf("%s: %w", name, err)
			}
			g.cancel()
		})
	})
}

// Wait waits for all parts and returns the error of the first that ended.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancel()
	return g.err
}
