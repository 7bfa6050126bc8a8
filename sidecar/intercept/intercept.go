// Package intercept is how connections come to the sidecar: it installs the
// redirect (Init, Clean), opens the two listeners, tells for an accepted
// connection where it was going, and proves at run time that the redirect
// works (Probe). What becomes of a connection is not its concern: that is
// sidecar/outbound and sidecar/inbound. cmd/heddle-sidecar and sidecar call it.
package intercept

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/netfilter"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

// ErrNotCaptured says that a connection did not come through the redirect:
// somebody dialled the sidecar's listener itself.
var ErrNotCaptured = errors.New("connection was not redirected to us")

// Options of Init besides what is redirected.
type Options struct {
	Backend netfilter.Backend // "" is Auto
	Log     *slog.Logger
}

// Init installs the redirect in the present network namespace. It can be
// repeated, and replaces what an earlier run wrote while traffic runs.
func Init(ctx context.Context, c redirect.Config, o Options) error {
	return errors.New("not built yet")
}

// Clean removes every redirect of ours, of all back ends and both families.
func Clean(ctx context.Context, log *slog.Logger) error { return errors.New("not built yet") }

// OriginalDst gives the address that the client of c dialled before the
// redirect, ErrNotCaptured if the connection was not redirected.
func OriginalDst(c *net.TCPConn) (netip.AddrPort, error) {
	return netip.AddrPort{}, errors.New("not built yet")
}

// IsOwnPort tells whether a port is one of the sidecar's own, to which the
// sidecar must refuse to connect when the address is the pod's own.
func IsOwnPort(port uint16) bool { return false }

// ListenOutbound opens the listeners for what the pod's programs dial: one
// per family, on loopback.
func ListenOutbound(ctx context.Context) ([]*net.TCPListener, error) {
	return nil, errors.New("not built yet")
}

// ListenInbound opens the listeners for what is dialled from outside the pod,
// on all addresses.
func ListenInbound(ctx context.Context) ([]*net.TCPListener, error) {
	return nil, errors.New("not built yet")
}

// ProbeConfig is what a Probe needs.
type ProbeConfig struct {
	Log      *slog.Logger
	OnChange func(*wire.CaptureState) // called from Run when a verdict changes
}

// Probe proves that outbound connections are redirected.
type Probe struct{}

// NewProbe gives a Probe that has tried nothing yet.
func NewProbe(c ProbeConfig) *Probe { return &Probe{} }

// Handle answers the probe's own connection. The outbound acceptor calls it
// with each connection's original destination; true: it was the probe and is
// dealt with, closed.
func (p *Probe) Handle(c net.Conn, origDst netip.AddrPort) bool { return false }

// Check dials the probe addresses once, in both families.
func (p *Probe) Check(ctx context.Context) *wire.CaptureState { return nil }

// Run checks until ctx ends.
func (p *Probe) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// State gives the newest verdicts; read-only.
func (p *Probe) State() *wire.CaptureState { return nil }

// Ready tells whether every family the pod has is proven, else why not.
func (p *Probe) Ready() (bool, string) { return false, "not built yet" }

// Collectors are the probe's metrics.
func (p *Probe) Collectors() []prometheus.Collector { return nil }
