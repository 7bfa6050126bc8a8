// Package intercept is how connections come to the sidecar: it installs the
// redirect (Init, Clean), opens the listeners, tells for an accepted connection
// where it was going, and proves at run time that the redirect works (Probe).
// What becomes of a connection is not its concern: that is sidecar/outbound and
// sidecar/inbound. cmd/heddle-sidecar and sidecar call it.
package intercept

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/heddle-mesh/heddle/internal/netfilter"
	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Options of Init besides what is redirected.
type Options struct {
	Backend netfilter.Backend // "" is Auto
	Log     *slog.Logger
}

// Init installs the redirect in the present network namespace. It can be
// repeated, and replaces what an earlier run wrote while traffic runs, by
// whatever back end that was. An error means that the redirect is not whole:
// the pod must not start.
func Init(ctx context.Context, c redirect.Config, o Options) error {
	log := telemetry.Discard(o.Log)
	plan, err := redirect.New(c)
	if err != nil {
		return err
	}
	backend, err := netfilter.Choose(ctx, o.Backend, log)
	if err != nil {
		return err
	}
	if err := netfilter.Apply(ctx, backend, plan, log); err != nil {
		return err
	}
	if err := netfilter.Verify(ctx, backend, plan); err != nil {
		if backend == netfilter.NFTables {
			return err
		}
		// Another version of iptables may word the same rule differently, and
		// has said that it committed ours. The self-test of the running
		// sidecar decides.
		log.Warn("rules read back differ from the plan", "backend", string(backend), "err", err)
	}
	// The other back ends' rules go last: until then connections are redirected
	// by either. What cannot even be looked at does not keep the pod down: it
	// would redirect to the same ports.
	if err := netfilter.Clean(ctx, backend, log); err != nil {
		log.Warn("cannot tell whether another back end still holds rules of ours", "err", err)
	}
	log.Info("redirect installed", "backend", string(backend), "rules", len(plan.Rules))
	return nil
}

// Clean removes every redirect of ours, of all back ends and both families.
// Connections that were redirected break once the kernel stops tracking them.
func Clean(ctx context.Context, log *slog.Logger) error {
	return netfilter.Clean(ctx, "", log)
}

// ErrNotCaptured says that a connection did not come through the redirect:
// somebody dialled the sidecar's listener itself.
var ErrNotCaptured = errors.New("connection was not redirected to us")

// IsOwnPort tells whether a port is one of the sidecar's own.
func IsOwnPort(port uint16) bool {
	switch port {
	case redirect.OutboundPort, redirect.InboundPort, redirect.ProbePort, redirect.AdminPort:
		return true
	}
	return false
}

// IsOwn tells whether a destination is the sidecar itself: one of its ports at
// loopback or at an address of its pod. A connection that was redirected must
// not be forwarded to such a destination; it would talk to the sidecar in the
// sidecar's name, or to itself without end. The same ports of another pod are
// destinations as any other.
func IsOwn(dst netip.AddrPort, pod []netip.Addr) bool {
	addr := dst.Addr().Unmap().WithZone("")
	return IsOwnPort(dst.Port()) && (addr.IsLoopback() || addr.IsUnspecified() || slices.Contains(pod, addr))
}

// wrap names the listener in an error.
func wrapListen(what string, err error) error {
	return fmt.Errorf("listen for %s connections: %w", what, err)
}
