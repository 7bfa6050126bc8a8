// Package outbound serves what the pod's own programs dial: it finds what
// stands at the address they meant, picks an endpoint and carries the
// connection, or each request on it, there, over mutual TLS to other sidecars.
//
// It does not decide who may be called (the other side's inbound does) and
// keeps no list of Services (internal/control). sidecar.Run starts it; sidecar/
// flow calls Handle for each connection.
package outbound

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/balance"
	"github.com/heddle-mesh/heddle/sidecar/breaker"
	"github.com/heddle-mesh/heddle/sidecar/detect"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/pool"
	"github.com/heddle-mesh/heddle/sidecar/trace"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

const (
	// connectTimeout is for one endpoint, TCP and TLS and admission together: a
	// host that does not answer is found out by the second retransmission.
	connectTimeout = 5 * time.Second
	// connectBudget is for all endpoints of one connection or request: what is
	// below the usual client's own patience of 10 to 30 s.
	connectBudget = 9 * time.Second
	// maxTries bounds the endpoints tried in it: the first, and as many as
	// http1's maxUnreached.
	maxTries = 6
	// newsWait is how long a request or connection that no endpoint took waits
	// for others to appear: twice what an endpoint's change may take to the last
	// of a thousand sidecars.
	newsWait = 300 * time.Millisecond
	// externalTimeout is for destinations outside the mesh: what the kernel takes
	// by itself (tcp_syn_retries of 6), as if we were not there.
	externalTimeout = 127 * time.Second
	// goneGrace is how long an opaque connection to an endpoint that has left its
	// Service may go on: a terminating pod's own grace is 30 s by default.
	goneGrace = 30 * time.Second
)

// Entry is what stands at an address, for as long as it is held.
type Entry interface {
	Load() *balance.Destination // newest; never blocks
	// Changed is closed once there is a newer version than Load gives after it.
	Changed() <-chan struct{}
	Release()
}

// Config of a Proxy. All functions must be safe for concurrent use.
type Config struct {
	// OriginalDst tells where an accepted connection was going.
	OriginalDst func(*net.TCPConn) (netip.AddrPort, error)
	// Probe takes the capture self-test's connections; nil: there is none.
	Probe func(c net.Conn, origDst netip.AddrPort) bool
	// IsOwn tells the sidecar's own ports.
	IsOwn  func(netip.AddrPort) bool
	Lookup func(ctx context.Context, addr netip.Addr) (Entry, error)
	// Dial opens TCP connections; nil: a net.Dialer.
	Dial     func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	Identity *identity.Store
	Pools    *pool.Set
	Metrics  *flow.Metrics
	Trace    *trace.Tracer // nil: requests are not traced
	Draining func() bool
	Log      *slog.Logger
}

// Proxy serves outbound connections.
type Proxy struct {
	c    Config
	seen seen
}

// New gives a Proxy.
func New(c Config) *Proxy {
	c.Log = telemetry.Discard(c.Log)
	if c.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: keepAlive}
		c.Dial = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr.String())
		}
	}
	return &Proxy{c: c, seen: seen{ports: map[netip.AddrPort]speech{}}}
}

// keepAlive finds a host that vanished within two minutes; nothing else cuts an
// idle connection.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 60 * time.Second, Interval: 15 * time.Second, Count: 4}

// Handle serves one connection until it ends.
func (p *Proxy) Handle(ctx context.Context, f *flow.Flow) {
	dst, err := p.c.OriginalDst(f.Conn)
	if err != nil {
		f.Refuse(telemetry.ReasonNotCaptured, "err", err)
		return
	}
	if p.c.Probe != nil && p.c.Probe(f.Conn, dst) {
		return
	}
	if p.c.IsOwn(dst) {
		f.Refuse(telemetry.ReasonOwnPort, "destination", dst.String())
		return
	}
	entry, err := p.c.Lookup(ctx, dst.Addr())
	if err != nil {
		f.Refuse(telemetry.ReasonUnknownDestination, "destination", dst.String(), "err", err)
		return
	}
	defer entry.Release()
	s := &session{p: p, f: f, entry: entry, dst: dst}
	d := s.load()
	switch {
	case d.Kind == balance.Unknown:
		f.Refuse(telemetry.ReasonUnknownDestination, "destination", dst.String())
	case d.Kind == balance.External:
		s.external(ctx)
	case s.port == nil:
		f.Refuse(telemetry.ReasonNoSuchPort, "destination", dst.String(), "service", serviceName(d))
	default:
		s.serve(ctx)
	}
}

// session is one connection of the pod's.
type session struct {
	p     *Proxy
	f     *flow.Flow
	entry Entry
	dst   netip.AddrPort

	dest *balance.Destination // the version that port is of
	port *balance.Port

	// of the present request
	tried   tried
	waited  bool // for news
	ep      *balance.Endpoint
	target  *target          // ep's
	counted *breaker.Breaker // counts this request, or opaque connection; nil: none does
	nowhere *flow.Peer       // counts requests that found no endpoint
	trace   trace.Request
}

// load takes the newest version, of which a port is looked up once.
func (s *session) load() *balance.Destination {
	if d := s.entry.Load(); d != s.dest {
		s.dest = d
		s.port = d.Port(s.dst.Port())
		if d.Kind == balance.External {
			s.port = nil // a Service or pod that is no more has nothing to pick from
		}
	}
	return s.dest
}

func serviceName(d *balance.Destination) string {
	if d.Name == "" {
		return ""
	}
	return d.Namespace + "/" + d.Name
}

func (s *session) serve(ctx context.Context) {
	switch s.port.Protocol {
	case wire.Protocol_PROTOCOL_HTTP1:
		s.serveHTTP(ctx, nil)
	case wire.Protocol_PROTOCOL_DETECT:
		s.detect(ctx)
	default: // HTTP/2 and gRPC pass through as bytes until there is a codec
		s.serveTCP(ctx, nil)
	}
}

func (s *session) serveHTTP(ctx context.Context, said []byte) {
	s.trace = s.p.c.Trace.Client()
	defer s.trace.Done()
	r := http1.NewRelay(http1.NewConn(s.f.Conn, said), http1.Config{Backend: s, Plan: s.plan, Draining: s.p.c.Draining})
	s.f.Watch(r)
	if err := r.Serve(ctx); err != nil {
		s.p.c.Log.Debug("client connection ended", "destination", s.dst.String(), "err", err)
	}
}

// external goes where the application meant to, as if we were not there.
func (s *session) external(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, externalTimeout)
	defer cancel()
	up, err := s.p.c.Dial(ctx, s.dst)
	if err != nil {
		s.f.Refuse(telemetry.ReasonConnectFailed, "destination", s.dst.String(), "err", err)
		return
	}
	ended := s.p.c.Metrics.Peer(flow.Outbound, "", "external", false).Connected()
	t := &tunnel.Tunnel{Down: s.f.Conn, Up: up}
	s.f.Watch(&running{t: t})
	s.ended(t.Run())
	ended(t.Sent(), t.Received())
}

// serveTCP carries an opaque connection of which said was read already.
func (s *session) serveTCP(ctx context.Context, said []byte) {
	up, err := s.dialAny(ctx)
	if err != nil {
		s.refuse(err)
		return
	}
	s.tunnel(&tunnel.Tunnel{Down: s.f.Conn, Up: up, FromDown: said}, nil)
}

func (s *session) refuse(err error) {
	s.f.Refuse(reasonOf(err), "destination", s.dst.String(), "service", serviceName(s.dest), "err", err)
}

// tunnel runs t to an endpoint. With look the connection is undecided yet;
// what the client said is returned if it turns out to be no tunnel.
func (s *session) tunnel(t *tunnel.Tunnel, look looker) (said []byte, other bool) {
	ended := s.target.peer.Connected()
	said, other = s.runLooking(t, look)
	ended(t.Sent(), t.Received())
	s.hangUp()
	return said, other
}

// hangUp takes back what dialAny counted.
func (s *session) hangUp() {
	s.ep.State.End(0, false)
	s.counted.Closed()
	s.counted = nil
}

type looker = func(b []byte) (decide, other bool)

func (s *session) runLooking(t *tunnel.Tunnel, look looker) ([]byte, bool) {
	s.f.Watch(&running{s: s, t: t, gone: s.ep.State.Gone()})
	defer s.f.Watch(nil)
	if look == nil {
		s.ended(t.Run())
		return nil, false
	}
	said, other, err := t.RunUndecided(look)
	s.ended(err)
	return said, other
}

func (s *session) ended(err error) {
	if err != nil {
		s.p.c.Log.Debug("connection broke off", "destination", s.dst.String(), "err", err)
	}
}

// running is a tunnel under way, as flow sees it.
type running struct {
	s     *session // nil: to a destination outside the mesh
	t     *tunnel.Tunnel
	gone  <-chan struct{}
	since int
}

// Busy tells that it is always in use: its application has not closed it.
func (r *running) Busy() bool { return true }

// Sweep breaks it off some time after its endpoint has left, since the
// application would otherwise write into a connection that nobody reads, and
// when it has been idle for as long as the policy allows.
func (r *running) Sweep() {
	if r.s == nil {
		return
	}
	if p := r.s.entry.Load().Port(r.s.dst.Port()); p != nil && p.Policy.Idle > 0 {
		if idle, known := idleFor(r.s.f.Conn); known && idle >= p.Policy.Idle {
			r.s.p.c.Log.Info("connection ended: it was idle", "service", serviceName(r.s.entry.Load()), "destination", r.s.dst.String(), "for", idle)
			r.reset()
			return
		}
	}
	select {
	case <-r.gone:
	default:
		return
	}
	if r.since++; time.Duration(r.since)*http1.SweepEvery >= goneGrace {
		r.reset()
	}
}

func (r *running) reset() {
	tunnel.Reset(r.t.Down)
	tunnel.Reset(r.t.Up)
}

// reasonOf finds the reason in a failure to reach an endpoint.
func reasonOf(err error) telemetry.Reason {
	var f *http1.Fault
	var n *flow.NotAdmitted
	switch {
	case errors.As(err, &f):
		return f.Reason
	case errors.As(err, &n):
		return n.Reason
	case errors.Is(err, pool.ErrFull):
		return telemetry.ReasonTooManyConnections
	}
	if r := identity.ReasonOf(err); r != telemetry.ReasonOK {
		return r
	}
	return telemetry.ReasonConnectFailed
}

// isHTTP judges what a client of an undeclared port said first.
func isHTTP(b []byte) (decide, other bool) {
	switch detect.Request(b) {
	case detect.HTTP1:
		return true, true
	case detect.NeedMore:
		return false, false
	}
	return true, false
}
