package inbound

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/internal/policy"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/detect"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/pool"
	"github.com/heddle-mesh/heddle/sidecar/trace"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// ClientIDField tells the application who calls: the SPIFFE ID that mutual TLS
// has proven. One that comes from outside is removed.
const ClientIDField = "x-heddle-client-id"

// servePlain takes a plaintext connection that the policy lets in.
func (s *session) servePlain(ctx context.Context, said []byte) {
	s.plainPeer()
	if detect.Request(said) == detect.HTTP1 {
		s.serveHTTP(ctx, said)
		return
	}
	if s.probe {
		s.f.Refuse(telemetry.ReasonPlaintextRefused, "destination", s.dst.String())
		return
	}
	up, err := s.dial(ctx)
	if err != nil {
		s.f.Refuse(telemetry.ReasonConnectFailed, "destination", s.dst.String(), "err", err)
		return
	}
	s.tunnel(&tunnel.Tunnel{Down: s.conn, Up: up, FromDown: said})
}

func (s *session) plainPeer() {
	if s.peer == nil {
		s.peer = s.p.c.Metrics.Peer(flow.Inbound, "", "", false)
	}
}

// undecided dials the application for a client that is silent, and lets
// whoever speaks first decide.
func (s *session) undecided(ctx context.Context, said []byte) {
	s.plainPeer()
	up, err := s.dial(ctx)
	if err != nil {
		s.f.Refuse(telemetry.ReasonConnectFailed, "destination", s.dst.String(), "err", err)
		return
	}
	if s.probe {
		s.probed(ctx, up, said)
		return
	}
	t := &tunnel.Tunnel{Down: s.conn, Up: up, FromDown: said, Patience: patience}
	leave := s.watch(&running{s.guard(s.judged), t})
	ended := s.peer.Connected()
	said, other, err := t.RunUndecided(look)
	ended(t.Sent(), t.Received())
	leave()
	switch {
	case !other:
		s.audited(telemetry.ReasonOK)
		s.ended(err)
	case judge(said) == detect.TLS:
		s.peer = nil
		s.serveTLS(ctx, said)
	default:
		s.serveHTTP(ctx, said)
	}
}

// patience: the rest of a ClientHello may be lost on its way and sent again,
// and must not be passed on in pieces; anything else is judged soon.
func patience(said []byte) time.Duration {
	if judge(said) == detect.NeedMore {
		return helloTimeout
	}
	return lineTimeout
}

// look takes our TLS and HTTP/1 out of an undecided tunnel.
func look(b []byte) (decide, other bool) {
	ours, http := judge(b), detect.Request(b)
	switch {
	case ours == detect.TLS || http == detect.HTTP1:
		return true, true
	case ours == detect.NeedMore || http == detect.NeedMore:
		return false, false
	}
	return true, false
}

// probed serves a probe of the node: that the application took the connection
// is the answer to a bare connect; beyond it only our TLS or HTTP is listened
// to, and nothing that the application says is passed on.
func (s *session) probed(ctx context.Context, up net.Conn, said []byte) {
	up.Close()
	said, v, err := s.listen(said, helloTimeout)
	switch {
	case v == detect.TLS:
		s.peer = nil
		s.serveTLS(ctx, said)
	case detect.Request(said) == detect.HTTP1:
		s.serveHTTP(ctx, said)
	case err != nil && len(said) == 0: // a bare connect
	default:
		s.f.Refuse(telemetry.ReasonPlaintextRefused, "destination", s.dst.String())
	}
}

// serveHTTP relays requests to the application.
func (s *session) serveHTTP(ctx context.Context, said []byte) {
	c := http1.Config{Backend: s, Client: s.who.Addr.String(), Guarded: true, Draining: s.p.c.Draining}
	if s.who.ID.IsZero() {
		c.Quiet = true
	} else {
		c.Fields = ClientIDField + ": " + s.who.ID.String() + "\r\n"
	}
	s.pool, s.trace = s.p.pool(s.dst), s.p.c.Trace.Server()
	defer s.trace.Done()
	r := http1.NewRelay(http1.NewConn(s.conn, said), c)
	defer s.watch(&relaying{r, s.guard(nil)})()
	if err := r.Serve(ctx); err != nil {
		s.p.c.Log.Debug("client connection ended", "client", s.who.Addr.String(), "destination", s.dst.String(), "err", err)
	}
}

// pool gives the connections to a port of the application. Callers choose the
// port, so ports beyond a bound do without: those pools live as long as the
// connection that wanted them.
func (p *Proxy) pool(dst netip.AddrPort) *pool.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := p.pools[dst]; have != nil {
		return have
	}
	made := p.c.Pools.New(pool.Config{Idle: pool.IdleToApp, Dial: func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		return p.c.Dial(ctx, dst)
	}})
	if len(p.pools) >= maxPools {
		for old, unused := range p.pools {
			if unused.Open() == 0 {
				delete(p.pools, old)
				p.c.Pools.Drop(unused)
			}
		}
	}
	p.pools[dst] = made
	return made
}

var (
	faultDenied = &http1.Fault{Status: 403, Reason: telemetry.ReasonAccessDenied, Detail: "policy refuses this caller"}
	faultPlain  = &http1.Fault{Status: 403, Reason: telemetry.ReasonPlaintextRefused, Detail: "mutual TLS is required"}
	faultApp    = &http1.Fault{Status: 503, Reason: telemetry.ReasonConnectFailed, Detail: "the application did not take the connection"}
	faultFull   = &http1.Fault{Status: 503, Reason: telemetry.ReasonTooManyConnections, Detail: "too many connections to the application"}
)

// Open lets a request in and gives a connection for it (http1.Backend).
func (s *session) Open(ctx context.Context, req *http1.Head, try http1.Try) (*http1.Conn, error) {
	if !s.isProbe(req) {
		s.trace.Begin(req)
		s.trace.Start(trace.Hop{Peer: s.who.ID.String(), Addr: netip.AddrPortFrom(s.who.Addr, 0)})
	}
	if s.probe || s.judged != s.p.policy.Load() {
		path := ""
		if s.probe {
			path = string(req.Target())
		}
		if d := s.decide(path); !d.Allow {
			s.judged, s.refusedBy = nil, d.Source // ask again, should the policy change back
			if d.Reason == policy.PlaintextRefused {
				return nil, faultPlain
			}
			return nil, faultDenied
		}
	}
	c, err := s.pool.Get(ctx, try.Fresh)
	switch {
	case errors.Is(err, pool.ErrFull):
		return nil, faultFull
	case err != nil:
		s.p.c.Log.Info("application did not take a connection", "destination", s.dst.String(), "err", err)
		return nil, faultApp
	}
	c.Fields = s.trace.Fields()
	return c, nil
}

// isProbe tells the node's probes, of which nobody wants a trace each second.
func (s *session) isProbe(req *http1.Head) bool {
	c, at := s.p.policy.Load(), policy.Request{Port: s.dst.Port()}
	if !c.Probed(s.who, at) {
		return false
	}
	at.Path = string(req.Target())
	return c.Probed(s.who, at)
}

// Release takes a connection back (http1.Backend).
func (s *session) Release(c *http1.Conn, o http1.Outcome) {
	c.Fields = nil // ours, and the connection may outlive us
	s.pool.Put(c, o.Reusable)
}

// Record counts a request (http1.Backend).
func (s *session) Record(x *http1.Exchange) {
	s.peer.Request(x)
	s.trace.End(trace.Result{Status: x.Status, Reason: x.Reason, Policy: s.refusedBy})
	s.trace.Done()
	s.audited(x.Reason)
	if x.Reason != telemetry.ReasonOK {
		s.p.c.Metrics.Refused(flow.Inbound, x.Reason)
		s.p.c.Log.Info("request failed", "direction", flow.Inbound, "peer", s.who.ID.String(), "client", s.who.Addr.String(),
			"destination", s.dst.String(), "status", x.Status, "reason", string(x.Reason), "policy", s.refusedBy)
		s.refusedBy = ""
	}
}

// tunnel passes bytes to the application.
func (s *session) tunnel(t *tunnel.Tunnel) {
	s.audited(telemetry.ReasonOK)
	defer s.watch(&running{s.guard(s.judged), t})()
	ended := s.peer.Connected()
	s.ended(t.Run())
	ended(t.Sent(), t.Received())
}

func (s *session) ended(err error) {
	if err != nil {
		s.p.c.Log.Debug("connection broke off", "client", s.who.Addr.String(), "destination", s.dst.String(), "err", err)
	}
}

// isGone tells that the other side went away, rather than said something wrong.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, tunnel.ErrTruncated) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
