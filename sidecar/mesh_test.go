package sidecar_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/policy"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/balance"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/inbound"
	"github.com/heddle-mesh/heddle/sidecar/intercept"
	"github.com/heddle-mesh/heddle/sidecar/outbound"
	"github.com/heddle-mesh/heddle/sidecar/pool"
	"github.com/heddle-mesh/heddle/sidecar/trace"
)

// A mesh of sidecars in one process, without redirect: what the redirect would
// tell is told by functions, and the pods' addresses are dialled at loopback.
type mesh struct {
	t         testing.TB
	authority *pki.Authority
	ctx       context.Context
	wg        sync.WaitGroup
	log       *slog.Logger
	logged    *safeBuffer

	tracer func(service string) *trace.Tracer // nil: nothing is traced

	mu     sync.Mutex
	routes map[netip.AddrPort]string // pod address and port → loopback address
}

func (m *mesh) trace(service string) *trace.Tracer {
	if m.tracer == nil {
		return nil
	}
	return m.tracer(service)
}

const (
	trustDomain = "mesh.test"
	clientID    = "spiffe://mesh.test/ns/shop/sa/web"
	serverID    = "spiffe://mesh.test/ns/shop/sa/orders"
)

var vip = netip.MustParseAddrPort("10.96.0.1:80")

func newMesh(t testing.TB) *mesh {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m := &mesh{t: t, authority: pki.New(t, trustDomain), ctx: ctx, routes: map[netip.AddrPort]string{}, logged: &safeBuffer{}}
	m.log = slog.New(slog.NewTextHandler(m.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		cancel()
		m.wg.Wait()
		if t.Failed() {
			t.Logf("sidecars said:\n%s", m.logged)
		}
	})
	return m
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// dial is the network between the pods.
func (m *mesh) dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	m.mu.Lock()
	to := m.routes[addr]
	m.mu.Unlock()
	if to == "" {
		to = "127.0.0.1:1" // refused
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", to)
}

func (m *mesh) route(addr netip.AddrPort, to string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.routes[addr] = to; to == "" {
		delete(m.routes, addr)
	}
}

func listen(t testing.TB) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.(*net.TCPListener)
}

// server is a pod with an application and its inbound sidecar.
type server struct {
	app     net.Listener
	in      *inbound.Proxy
	flows   *flow.Server
	metrics *telemetry.Registry
	front   string // where the sidecar listens
	pod     netip.AddrPort
	down    context.CancelFunc
	drain   atomic.Bool
}

// serverConfig is what differs from a pod that just works.
type serverConfig struct {
	store  *identity.Store       // nil: serverID's
	policy *wire.InboundPolicy   // nil: strict
	pod    string                // nil: 10.0.0.2:80
	meshed func(netip.Addr) bool // nil: unknown
}

// serve starts a pod whose application serves connections with handle; nil:
// there is none.
func (m *mesh) serve(c serverConfig, handle func(net.Conn)) *server {
	m.t.Helper()
	if c.store == nil {
		c.store = m.authority.Store(m.t, serverID)
	}
	if c.policy == nil {
		c.policy = &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT}
	}
	if c.pod == "" {
		c.pod = "10.0.0.2:80"
	}
	ctx, cancel := context.WithCancel(m.ctx)
	s := &server{app: listen(m.t), pod: netip.MustParseAddrPort(c.pod), down: cancel}
	appAddr := s.app.Addr().(*net.TCPAddr).AddrPort()
	if handle == nil {
		s.app.Close()
	} else {
		m.wg.Go(func() { accept(ctx, &m.wg, s.app, handle) })
	}
	metrics, pools := flow.NewMetrics(), pool.NewSet()
	s.metrics = telemetry.NewRegistry("test")
	s.metrics.Register(metrics.Collectors()...)
	s.in = inbound.New(inbound.Config{
		OriginalDst: func(*net.TCPConn) (netip.AddrPort, error) { return appAddr, nil },
		IsOwn:       func(a netip.AddrPort) bool { return intercept.IsOwn(a, []netip.Addr{appAddr.Addr()}) },
		PodIPs:      []netip.Addr{appAddr.Addr()}, PodUID: "uid-server",
		Meshed:   func(_ context.Context, a netip.Addr) bool { return c.meshed != nil && c.meshed(a) },
		Identity: c.store, Pools: pools, Metrics: metrics, Draining: s.drain.Load, Log: m.log,
		Trace: m.trace("orders"),
	})
	s.in.SetPolicy(compile(c.policy))
	s.flows = flow.New(flow.Config{Direction: flow.Inbound, Metrics: metrics, Log: m.log, Handle: s.in.Handle})
	l := listen(m.t)
	s.front = l.Addr().String()
	m.route(s.pod, s.front)
	m.wg.Go(func() { s.flows.Serve(ctx, []*net.TCPListener{l}) })
	m.wg.Go(func() { pools.Run(ctx) })
	return s
}

func compile(p *wire.InboundPolicy) *policy.Compiled {
	return policy.Compile(p, spiffeid.RequireTrustDomainFromString(trustDomain))
}

func accept(ctx context.Context, wg *sync.WaitGroup, l net.Listener, handle func(net.Conn)) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			handle(c)
		})
	}
}

// endpoint describes the server to clients.
func (s *server) endpoint() *wire.Endpoint {
	return &wire.Endpoint{
		Key: []byte(s.pod.String()), Address: s.pod.Addr().AsSlice(), Ports: []uint32{uint32(s.pod.Port())},
		Ready: true, Serving: true, Pod: "orders", Namespace: "shop", Peer: &wire.Peer{Identity: serverID},
	}
}

// client is the outbound sidecar of a pod that dials one Service.
type client struct {
	front   string
	flows   *flow.Server
	metrics *telemetry.Registry
	entry   *entry
	pools   *pool.Set
	out     *outbound.Proxy
	m       *mesh
}

type entry struct {
	d       atomic.Pointer[balance.Destination]
	mu      sync.Mutex
	changed chan struct{}
	policy  *wire.TrafficPolicy
}

func (e *entry) Load() *balance.Destination { return e.d.Load() }
func (e *entry) Release()                   {}

func (e *entry) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

// set brings the Service to a new version.
func (e *entry) set(p wire.Protocol, endpoints ...*wire.Endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.d.Store(balance.Compile(e.d.Load(), &wire.Destination{Kind: &wire.Destination_Service{Service: &wire.Service{
		Namespace: "shop", Name: "orders", Vips: [][]byte{vip.Addr().AsSlice()},
		Ports:     []*wire.ServicePort{{Port: 80, Protocol: p, TrafficPolicy: e.policy}},
		Endpoints: endpoints,
	}}}, balance.Self{}))
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// client starts a sidecar whose application dials vip, at which endpoints stand.
func (m *mesh) client(store *identity.Store, p wire.Protocol, endpoints ...*wire.Endpoint) *client {
	m.t.Helper()
	if store == nil {
		store = m.authority.Store(m.t, clientID)
	}
	c := &client{entry: &entry{}, m: m, pools: pool.NewSet()}
	c.entry.set(p, endpoints...)
	metrics := flow.NewMetrics()
	c.metrics = telemetry.NewRegistry("test")
	c.metrics.Register(metrics.Collectors()...)
	out := outbound.New(outbound.Config{
		OriginalDst: func(*net.TCPConn) (netip.AddrPort, error) { return vip, nil },
		IsOwn:       func(netip.AddrPort) bool { return false },
		Lookup:      func(context.Context, netip.Addr) (outbound.Entry, error) { return c.entry, nil },
		Dial:        m.dial, Identity: store, Pools: c.pools, Metrics: metrics, Log: m.log,
		Trace: m.trace("web"),
	})
	c.out = out
	c.flows = flow.New(flow.Config{Direction: flow.Outbound, Metrics: metrics, Log: m.log, Handle: out.Handle})
	l := listen(m.t)
	c.front = l.Addr().String()
	m.wg.Go(func() { c.flows.Serve(m.ctx, []*net.TCPListener{l}) })
	m.wg.Go(func() { c.pools.Run(m.ctx) })
	return c
}

// dial is what the client's application does.
func (c *client) dial() *net.TCPConn {
	c.m.t.Helper()
	conn, err := net.Dial("tcp", c.front)
	if err != nil {
		c.m.t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	c.m.t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// refused dials and gives the error that the application meets: a reset may
// come before connect has returned.
func (c *client) refused() error {
	conn, err := net.Dial("tcp", c.front)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, err = io.ReadAll(conn)
	return err
}

// ask sends text and gives all that comes back until the connection ends.
func ask(t testing.TB, c *net.TCPConn, text string) string {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	c.CloseWrite()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("after %q: %v", b, err)
	}
	return string(b)
}

// metric sums what matches all of parts.
func metric(t testing.TB, r *telemetry.Registry, parts ...string) float64 {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
next:
	for name, v := range all {
		for _, p := range parts {
			if !strings.Contains(name+",", p+",") {
				continue next
			}
		}
		sum += v
	}
	return sum
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}
