package outbound

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/balance"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/pool"
	"github.com/heddle-mesh/heddle/sidecar/trace"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// target is what hangs on an endpoint's state: its connections and counters.
type target struct {
	p     *Proxy
	addr  netip.AddrPort
	id    spiffeid.ID
	state *balance.EndpointState
	pool  *pool.Pool
	peer  *flow.Peer
}

// target gives the endpoint's, made at first use.
func (p *Proxy) target(ep *balance.Endpoint, d *balance.Destination) *target {
	if t, ok := ep.State.Pool.Load().(*target); ok {
		return t
	}
	t := &target{p: p, addr: ep.Addr, id: ep.ID, state: ep.State}
	if ep.Own {
		t.id = spiffeid.ID{} // the application itself, never through another sidecar
	}
	peer, idle := "", pool.IdleToApp
	if t.meshed() {
		peer, idle = t.id.String(), pool.IdleBetweenSidecars
	}
	t.peer = p.c.Metrics.Peer(flow.Outbound, peer, serviceName(d), t.meshed())
	t.pool = p.c.Pools.New(pool.Config{Idle: idle, Gone: ep.State.Gone(),
		Dial: func(ctx context.Context) (net.Conn, error) { return t.dial(ctx, flow.ALPNHTTP1) }})
	if !ep.State.Pool.CompareAndSwap(nil, t) {
		p.c.Pools.Drop(t.pool)
		return ep.State.Pool.Load().(*target)
	}
	return t
}

func (t *target) meshed() bool { return !t.id.IsZero() }

// dial connects: plain TCP outside the mesh, else TLS to exactly the endpoint's
// identity, and the other sidecar has admitted us.
func (t *target) dial(ctx context.Context, alpn string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c, err := t.p.c.Dial(ctx, t.addr)
	if err != nil || !t.meshed() {
		return c, err
	}
	tc := tunnel.Client(c, t.p.c.Identity.ClientConfig(t.id, alpn))
	err = tc.HandshakeContext(ctx)
	if err == nil {
		if deadline, ok := ctx.Deadline(); ok {
			tc.SetReadDeadline(deadline)
		}
		err = flow.AwaitAdmission(tc)
		tc.SetReadDeadline(time.Time{})
	}
	var refused *flow.NotAdmitted
	if err == nil || errors.As(err, &refused) {
		t.p.c.Metrics.Handshake(flow.Outbound, telemetry.ReasonOK)
	} else if r := identity.ReasonOf(err); r != telemetry.ReasonOK {
		t.p.c.Metrics.Handshake(flow.Outbound, r)
	} else {
		t.p.c.Metrics.Handshake(flow.Outbound, telemetry.ReasonConnectFailed)
	}
	if err != nil {
		tunnel.Reset(tc)
		return nil, err
	}
	return tc, nil
}

// dialAny connects for an opaque connection to the best endpoint that takes it.
// Nothing was sent yet, so trying the next one is always safe. The endpoint
// counts one more in flight.
func (s *session) dialAny(ctx context.Context) (net.Conn, *balance.Endpoint, error) {
	s.nTried, s.waited = 0, false
	deadline := time.Now().Add(connectBudget)
	for {
		ep, err := s.pick(ctx)
		if err != nil {
			return nil, nil, err
		}
		s.target = s.p.target(ep, s.dest)
		ep.State.Begin()
		began := time.Now()
		c, err := s.target.dial(ctx, flow.ALPNTCP)
		if err == nil {
			ep.State.Observe(time.Since(began))
			return c, ep, nil
		}
		if err := s.failed(ctx, ep, err, deadline); err != nil {
			return nil, nil, err
		}
	}
}

// pick chooses among the endpoints of the newest version that were not tried.
func (s *session) pick(ctx context.Context) (*balance.Endpoint, error) {
	s.load()
	if s.port == nil {
		return nil, faultNoSuchPort
	}
	ep, reason := s.port.Pick(s.tried[:s.nTried])
	if ep == nil && reason == telemetry.ReasonConnectFailed && s.awaitNews(ctx) {
		ep, reason = s.port.Pick(s.tried[:s.nTried])
	}
	if ep == nil {
		return nil, faultOf(reason)
	}
	return ep, nil
}

// awaitNews waits, once for a request or connection, for endpoints that were
// not tried; false: there is no news. A Service whose last known endpoint has
// just gone often has a successor already, of which we are about to hear, and
// nothing was sent to anybody yet.
func (s *session) awaitNews(ctx context.Context) bool {
	if s.waited || s.dest.Kind != balance.Service {
		return false
	}
	s.waited = true
	end := time.NewTimer(newsWait)
	defer end.Stop()
	look := time.NewTicker(newsLook)
	defer look.Stop()
	for was := s.dest; ; {
		select {
		case <-ctx.Done():
			return false
		case <-end.C:
			return false
		case <-look.C:
		}
		if s.load() == was {
			continue
		}
		if was = s.dest; s.port == nil {
			return false
		}
		if ep, _ := s.port.Pick(s.tried[:s.nTried]); ep != nil {
			return true
		}
	}
}

// failed notes that an endpoint could not be connected to; the error is for
// when that was the last try.
func (s *session) failed(ctx context.Context, ep *balance.Endpoint, err error, deadline time.Time) error {
	ep.State.End(0, true)
	s.p.c.Log.Info("endpoint did not take a connection", "service", serviceName(s.dest),
		"endpoint", ep.Addr.String(), "pod", ep.Pod, "reason", string(reasonOf(err)), "err", err)
	s.tried[s.nTried] = ep
	s.nTried++
	if s.nTried < maxTries && ctx.Err() == nil && time.Now().Before(deadline) {
		if next, _ := s.port.Pick(s.tried[:s.nTried]); next != nil || s.awaitNews(ctx) {
			return nil
		}
	}
	f := *faultOf(reasonOf(err))
	f.Detail += ": " + err.Error()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		f.Status = 504
	}
	return &f
}

// Open gives a connection for a request (http1.Backend).
func (s *session) Open(ctx context.Context, req *http1.Head, try http1.Try) (*http1.Conn, error) {
	s.trace.Begin(req)
	if try.N == 0 {
		s.nTried, s.target, s.waited = 0, nil, false
	}
	fresh := try.Fresh
	var deadline time.Time
	for {
		ep, err := s.pick(ctx)
		if err != nil {
			return nil, err
		}
		t := s.p.target(ep, s.dest)
		s.target = t
		t.state.Begin()
		s.startSpan(t)
		c, err := t.pool.Get(ctx, fresh)
		if err == nil {
			c.Owner, c.Sidecar, c.Fields = ep, t.meshed(), s.trace.Fields()
			return c, nil
		}
		s.trace.End(trace.Result{Reason: reasonOf(err)})
		if deadline.IsZero() {
			deadline = time.Now().Add(connectBudget)
		}
		if err := s.failed(ctx, ep, err, deadline); err != nil {
			return nil, err
		}
	}
}

// Release takes a connection back (http1.Backend).
func (s *session) Release(c *http1.Conn, o http1.Outcome) {
	s.endSpan(o)
	c.Fields = nil // ours, and the connection may outlive us
	ep := c.Owner.(*balance.Endpoint)
	latency := o.Latency
	if !c.Reused {
		// The first answer on a connection also pays for the other side's own
		// connection and cold caches: taken for the endpoint's speed it would keep
		// a new endpoint without requests for as long as that is remembered.
		latency = 0
	}
	ep.State.End(latency, o.Failed || o.Unreached)
	s.target.pool.Put(c, o.Reusable)
	if o.Unreached && s.nTried < maxTries {
		s.tried[s.nTried] = ep
		s.nTried++
	}
}

// Record counts a request (http1.Backend).
func (s *session) Record(x *http1.Exchange) {
	s.told(x)
	if x.Reason != telemetry.ReasonOK {
		s.p.c.Metrics.Refused(flow.Outbound, x.Reason)
		s.p.c.Log.Info("request failed", "service", serviceName(s.dest), "destination", s.dst.String(),
			"status", x.Status, "reason", string(x.Reason))
	}
	if s.target != nil {
		s.target.peer.Request(x)
		return
	}
	if s.nowhere == nil {
		s.nowhere = s.p.c.Metrics.Peer(flow.Outbound, "", serviceName(s.dest), false)
	}
	s.nowhere.Request(x)
}

// Faults of requests and connections that found no endpoint.
var faults = map[telemetry.Reason]*http1.Fault{
	telemetry.ReasonNoEndpoints:        {Status: 503, Detail: "the Service has no ready endpoint"},
	telemetry.ReasonNoLocalEndpoints:   {Status: 503, Detail: "the Service has no ready endpoint on this node and its traffic policy is Local"},
	telemetry.ReasonConnectFailed:      {Status: 503, Detail: "no endpoint took the connection"},
	telemetry.ReasonTooManyConnections: {Status: 503, Detail: "too many connections"},
	telemetry.ReasonDraining:           {Status: 503, Detail: "the endpoint is going away"},
	telemetry.ReasonAccessDenied:       {Status: 403, Detail: "the endpoint's policy refuses this workload"},
	telemetry.ReasonIdentityMismatch:   {Status: 502, Detail: "the endpoint is not who it should be"},
	telemetry.ReasonCertificateExpired: {Status: 502, Detail: "a certificate is out of date"},
	telemetry.ReasonCertificateUnknown: {Status: 502, Detail: "a certificate is of no trusted root"},
	telemetry.ReasonNoIdentity:         {Status: 502, Detail: "this workload has no certificate"},
}

var faultNoSuchPort = &http1.Fault{Status: 503, Reason: telemetry.ReasonNoSuchPort, Detail: "the Service has no such port"}

func faultOf(r telemetry.Reason) *http1.Fault {
	if f := faults[r]; f != nil {
		return &http1.Fault{Status: f.Status, Reason: r, Detail: f.Detail}
	}
	return &http1.Fault{Status: 502, Reason: r, Detail: "the endpoint could not be reached"}
}
