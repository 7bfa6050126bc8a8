// Package netfilter writes a redirect plan into the kernel, by nftables over
// netlink or by iptables-restore, reads it back, and finds out which of these
// ways works. It is the only door to all of them. It decides nothing about what
// is redirected (internal/redirect does) and keeps no state: the kernel has it.
// Everything happens in the network namespace of the calling thread.
// sidecar/intercept calls it.
package netfilter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Backend is a way to write rules into the kernel.
type Backend string

// The back ends. Auto is not one but asks for the first that works, in this
// order: nftables needs no program on the host and changes both families in
// one step; the legacy variant comes last because kernels drop it.
const (
	Auto           Backend = "auto"
	NFTables       Backend = "nftables"
	IptablesNFT    Backend = "iptables-nft"
	IptablesLegacy Backend = "iptables-legacy"
)

// writer is what each back end can do. All of it is safe to repeat, and a
// process killed in the midst leaves each family's rules as they were before or
// as they should be.
type writer interface {
	probe(ctx context.Context) error // says whether the rules we need would be taken; leaves nothing behind
	apply(ctx context.Context, p redirect.Plan) error
	clean(ctx context.Context) error // nothing there is no error
	verify(ctx context.Context, p redirect.Plan) error
}

// order is how Auto tries.
func order() []Backend { return []Backend{NFTables, IptablesNFT, IptablesLegacy} }

func open(b Backend, log *slog.Logger) (writer, error) {
	switch b {
	case NFTables:
		return nft{}, nil
	case IptablesNFT, IptablesLegacy:
		return iptables{backend: b, log: telemetry.Discard(log)}, nil
	}
	return nil, fmt.Errorf("back end %q is unknown; want %s, %s, %s or %s", b, Auto, NFTables, IptablesNFT, IptablesLegacy)
}

// Choose gives the back end to use: want itself if it works here, or for Auto
// (or "") the first that works. It tries real transactions with the kinds of
// rules that a plan has, and logs its choice with the reasons against the
// others.
func Choose(ctx context.Context, want Backend, log *slog.Logger) (Backend, error) {
	log = telemetry.Discard(log)
	defer lockThread()()
	candidates := []Backend{want}
	if want == Auto || want == "" {
		candidates = order()
	}
	var refused []error
	for _, b := range candidates {
		w, err := open(b, log)
		if err != nil {
			return "", err
		}
		if err := w.probe(ctx); err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", b, err))
			continue
		}
		log.Info("chose the back end of the redirect", "backend", string(b), "wanted", string(want), "refused", errorTexts(refused))
		return b, nil
	}
	return "", fmt.Errorf("no back end can write the redirect here: %w", errors.Join(refused...))
}

// Apply makes the kernel hold the plan and nothing else of ours in this back
// end, in one step (iptables: one step per family). Connections that are open
// go on as they are.
func Apply(ctx context.Context, b Backend, p redirect.Plan, log *slog.Logger) error {
	return with(b, log, "write", func(w writer) error { return w.apply(ctx, p) })
}

// Verify compares what the kernel holds with the plan and says the first
// difference.
func Verify(ctx context.Context, b Backend, p redirect.Plan) error {
	return with(b, nil, "verify", func(w writer) error { return w.verify(ctx, p) })
}

// Clean removes all rules of ours in every back end but keep ("": in all), both
// families. A back end that this machine does not have is no error. If none is
// kept, the connections that were redirected are forgotten and break.
func Clean(ctx context.Context, keep Backend, log *slog.Logger) error {
	var errs []error
	for _, b := range order() {
		if b != keep {
			errs = append(errs, with(b, log, "remove", func(w writer) error { return w.clean(ctx) }))
		}
	}
	if keep == "" {
		defer lockThread()()
		errs = append(errs, forgetRedirected())
	}
	return errors.Join(errs...)
}

func with(b Backend, log *slog.Logger, verb string, f func(writer) error) error {
	defer lockThread()()
	w, err := open(b, log)
	if err == nil {
		err = f(w)
	}
	if err != nil {
		return fmt.Errorf("%s the redirect by %s: %w", verb, b, err)
	}
	return nil
}

// lockThread keeps the goroutine on its thread: sockets and children belong to
// the network namespace of the thread that makes them, and a child dies with
// the thread that started it (see run).
func lockThread() (unlock func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

func errorTexts(errs []error) []string {
	out := make([]string, len(errs))
	for i, err := range errs {
		out[i] = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return out
}
