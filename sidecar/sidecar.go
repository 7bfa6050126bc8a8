// Package sidecar is the data plane beside one pod, put together: identity
// first, then listeners, then the proof that the redirect works, then ready.
//
// It only wires rooms to each other: what a connection goes through is in
// sidecar/outbound and sidecar/inbound. cmd/heddle-sidecar calls Run.
package sidecar

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/control"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/policy"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/internal/telemetry/spans"
	"github.com/heddle-mesh/heddle/sidecar/admin"
	"github.com/heddle-mesh/heddle/sidecar/balance"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/inbound"
	"github.com/heddle-mesh/heddle/sidecar/intercept"
	"github.com/heddle-mesh/heddle/sidecar/outbound"
	"github.com/heddle-mesh/heddle/sidecar/pool"
	"github.com/heddle-mesh/heddle/sidecar/trace"
)

// Config says where the sidecar stands and whom it asks.
type Config struct {
	ControlPlane string // HOST:PORT
	TrustDomain  string
	TokenFile    string              // projected service account token
	Roots        []*x509.Certificate // trusted for the first call
	Pod          string
	Namespace    string
	PodUID       string
	Node         string
	PodIPs       []netip.Addr
	Admin        string // host:port of readiness and metrics
	Version      string
	// Service and ServiceVersion are what traces call the application; empty:
	// the pod's name without what its owner appended.
	Service        string
	ServiceVersion string
	Log            *slog.Logger

	MaxConnections int           // of each direction; zero: flow.DefaultMax
	LameDuck       time.Duration // after the end was asked for, new connections are taken this long
	DrainTimeout   time.Duration // after it what is still open is broken off
}

// Check says what is missing of a Config.
func (c *Config) Check() error {
	switch {
	case c.ControlPlane == "":
		return errors.New("control plane's address is not given")
	case c.TrustDomain == "":
		return errors.New("trust domain is not given")
	case len(c.Roots) == 0:
		return errors.New("no trusted root is given: the control plane could not be told from an impostor")
	case len(c.PodIPs) == 0:
		return errors.New("the pod's addresses are not given: nothing could be let in")
	}
	return nil
}

// sidecar holds the rooms.
type sidecar struct {
	c        Config
	log      *slog.Logger
	draining atomic.Bool
	self     atomic.Pointer[balance.Self]
	opened   atomic.Bool // listeners are open

	tracer   *trace.Tracer
	spans    *spans.Exporter
	identity *identity.Store
	control  *control.Client[*balance.Destination]
	probe    *intercept.Probe
	pools    *pool.Set
	out      *outbound.Proxy
	in       *inbound.Proxy
	outFlows *flow.Server
	inFlows  *flow.Server
	admin    *admin.Server
	capture  atomic.Pointer[wire.CaptureState]
	// stopAccepting holds the inbound listeners until they are to close.
	stopAccepting atomic.Pointer[[]*net.TCPListener]
}

// Run is the sidecar, until ctx ends and it has drained.
func Run(ctx context.Context, c Config) error {
	if err := c.Check(); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	s, err := build(c)
	if err != nil {
		return err
	}
	// The end of ctx begins the draining; the parts end after it.
	g := run.NewGroup(context.WithoutCancel(ctx))
	g.Go("admin", s.admin.Run)
	g.Go("control plane client", s.control.Run)
	g.Go("connection pools", s.pools.Run)
	g.Go("trace exporter", s.spans.Run)
	g.Go("data path", func(gctx context.Context) error { return s.serve(ctx, gctx) })
	g.Go("drain", func(gctx context.Context) error {
		select {
		case <-ctx.Done():
			s.drain(gctx)
		case <-gctx.Done():
		}
		return nil
	})
	return g.Wait()
}

func build(c Config) (*sidecar, error) {
	td, err := spiffeid.TrustDomainFromString(c.TrustDomain)
	if err != nil {
		return nil, fmt.Errorf("trust domain %q: %w", c.TrustDomain, err)
	}
	s := &sidecar{c: c, log: telemetry.Discard(c.Log), identity: identity.NewStore(), pools: pool.NewSet()}
	s.self.Store(&balance.Self{Node: c.Node, IPs: c.PodIPs})
	metrics, registry := flow.NewMetrics(), telemetry.NewRegistry(c.Version)
	s.startTracing(registry)
	s.probe = intercept.NewProbe(intercept.ProbeConfig{Log: s.log, OnChange: s.capture.Store})
	registry.Register(metrics.Collectors()...)
	registry.Register(s.probe.Collectors()...)
	s.control = control.New(control.Config[*balance.Destination]{
		Address: c.ControlPlane, TrustDomain: c.TrustDomain, TokenFile: c.TokenFile, Roots: c.Roots,
		Identity: s.identity, Version: c.Version, Log: s.log, Metrics: registry,
		Compile:   s.compile,
		OnInbound: func(p *wire.InboundPolicy) { s.newPolicy(p, td) },
		OnMesh:    s.newSettings,
		Report:    s.report,
	})
	traffic := limitLog(s.log)
	isOwn := func(dst netip.AddrPort) bool { return intercept.IsOwn(dst, c.PodIPs) }
	s.out = outbound.New(outbound.Config{
		OriginalDst: intercept.OriginalDst, Probe: s.probe.Handle, IsOwn: isOwn,
		Lookup:   s.lookup,
		Identity: s.identity, Pools: s.pools, Metrics: metrics, Trace: s.tracer, Log: traffic,
	})
	s.in = inbound.New(inbound.Config{
		OriginalDst: intercept.OriginalDst, SawInbound: s.probe.SawInbound, IsOwn: isOwn,
		PodIPs: c.PodIPs, PodUID: c.PodUID, Meshed: s.meshed,
		Identity: s.identity, Pools: s.pools, Metrics: metrics, Trace: s.tracer, Draining: s.draining.Load, Log: traffic,
	})
	s.outFlows = flow.New(flow.Config{Direction: flow.Outbound, Max: c.MaxConnections, Metrics: metrics, Log: traffic, Handle: s.out.Handle})
	s.inFlows = flow.New(flow.Config{Direction: flow.Inbound, Max: c.MaxConnections, Metrics: metrics, Log: traffic, Handle: s.in.Handle})
	registry.Register(newEjected(s))
	s.admin = admin.New(admin.Config{Addr: c.Admin, Ready: s.ready, Metrics: registry.Handler(), Debug: s.debug, InForce: s.config, Log: s.log})
	return s, nil
}

func (s *sidecar) compile(prev *balance.Destination, d *wire.Destination) *balance.Destination {
	next := balance.Compile(prev, d, *s.self.Load())
	if len(next.Broken) > 0 {
		s.log.Warn("endpoints left out", "service", next.Namespace+"/"+next.Name, "err", next.Broken)
	}
	return next
}

// newPolicy takes the inbound policy, which also tells where we stand.
func (s *sidecar) newPolicy(p *wire.InboundPolicy, td spiffeid.TrustDomain) {
	s.self.Store(&balance.Self{Node: s.c.Node, Zone: p.GetZone(), IPs: s.c.PodIPs})
	compiled := policy.Compile(p, td)
	if broken := compiled.Broken(); len(broken) > 0 {
		s.log.Warn("access policy does not compile and denies what it selects", "err", broken)
	}
	s.in.SetPolicy(compiled)
}

func (s *sidecar) lookup(ctx context.Context, addr netip.Addr) (outbound.Entry, error) {
	e, err := s.control.Lookup(ctx, addr.Unmap().WithZone(""))
	if err != nil {
		return nil, err
	}
	return e, nil
}

// meshed tells whether a pod with a sidecar has the address.
func (s *sidecar) meshed(ctx context.Context, addr netip.Addr) bool {
	e, err := s.control.Lookup(ctx, addr)
	if err != nil {
		return false
	}
	defer e.Release()
	d := e.Load()
	if d.Kind != balance.Workload {
		return false
	}
	ep, _ := d.Port(1).Pick(nil) // any port: only the identity is asked for
	return ep != nil && !ep.ID.IsZero()
}

func (s *sidecar) report() *wire.Report {
	if c := s.capture.Load(); c != nil {
		return &wire.Report{Capture: c}
	}
	return nil
}

// ready tells whether the pod may get traffic.
func (s *sidecar) ready() (bool, string) {
	switch {
	case s.draining.Load():
		return false, "going away"
	case s.identity.Leaf() == nil:
		return false, "waiting for an identity: " + s.control.State().LastError
	case !s.opened.Load():
		return false, "waiting for policy and trust bundle: " + s.control.State().LastError
	}
	return s.probe.Ready()
}

// Debug is what /debug/state shows.
type Debug struct {
	Pod, Namespace, Node, Zone, Version string
	PodIPs                              []netip.Addr
	Identity                            string
	NotAfter                            time.Time
	ControlPlane                        control.State
	Capture                             *wire.CaptureState
	Inbound, Outbound                   Connections
	Draining                            bool
}

// Connections are those of one direction.
type Connections struct{ Open, Busy int }

func (s *sidecar) debug() any {
	d := Debug{
		Pod: s.c.Pod, Namespace: s.c.Namespace, Node: s.c.Node, Zone: s.self.Load().Zone, Version: s.c.Version,
		PodIPs: s.c.PodIPs, ControlPlane: s.control.State(), Capture: s.probe.State(), Draining: s.draining.Load(),
	}
	if id, ok := s.identity.ID(); ok {
		d.Identity = id.String()
	}
	if leaf := s.identity.Leaf(); leaf != nil {
		d.NotAfter = leaf.NotAfter
	}
	d.Inbound.Open, d.Inbound.Busy = s.inFlows.Count()
	d.Outbound.Open, d.Outbound.Busy = s.outFlows.Count()
	return d
}

// serve opens the listeners once there is an identity and a policy to serve
// with, and serves until gctx ends. asked ends earlier: when draining begins.
func (s *sidecar) serve(asked, gctx context.Context) error {
	select {
	case <-s.control.Ready():
	case <-asked.Done(): // stopped before there was anything to serve
		<-gctx.Done()
		return nil
	case <-gctx.Done():
		return nil
	}
	out, err := intercept.ListenOutbound(gctx)
	if err != nil {
		return err
	}
	in, err := intercept.ListenInbound(gctx)
	if err != nil {
		for _, l := range out {
			l.Close()
		}
		return err
	}
	g := run.NewGroup(gctx)
	g.Go("outbound", func(ctx context.Context) error { return s.outFlows.Serve(ctx, out) })
	g.Go("inbound", func(ctx context.Context) error { return s.serveInbound(ctx, in) })
	g.Go("capture probe", s.probe.Run)
	s.opened.Store(true)
	s.log.Info("serving", "pod", s.c.Pod, "namespace", s.c.Namespace, "identity", s.debug().(Debug).Identity)
	return g.Wait()
}

// serveInbound serves until ctx ends, whatever becomes of the listeners: they
// close when the lame-duck window does.
func (s *sidecar) serveInbound(ctx context.Context, in []*net.TCPListener) error {
	s.stopAccepting.Store(&in)
	if err := s.inFlows.Serve(ctx, in); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
