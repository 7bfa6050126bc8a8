package inbound

import (
	"net"
	"sync/atomic"

	"github.com/heddle-mesh/heddle/internal/policy"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// open is a connection under way, which a new policy may end.
type open interface {
	flow.Sweeper
	// rejudge ends it if the present policy does not let it in. It may be called
	// from any goroutine.
	rejudge()
}

// watch names what runs on the connection; the function it gives ends that.
func (s *session) watch(o open) (leave func()) {
	p := s.p
	s.f.Watch(o)
	p.mu.Lock()
	p.open[o] = struct{}{}
	p.mu.Unlock()
	o.rejudge() // the policy may have changed since it was asked
	return func() {
		s.f.Watch(nil)
		p.mu.Lock()
		delete(p.open, o)
		p.mu.Unlock()
	}
}

// SetPolicy replaces the policy. What is open is judged again: a request when
// it comes, a connection that carries none now.
func (p *Proxy) SetPolicy(c *policy.Compiled) {
	p.policy.Store(c)
	p.mu.Lock()
	all := make([]open, 0, len(p.open))
	for o := range p.open {
		all = append(all, o)
	}
	p.mu.Unlock()
	for _, o := range all {
		o.rejudge()
	}
}

// guard judges one connection again. It holds what it needs of the session,
// which goes on meanwhile.
type guard struct {
	p      *Proxy
	who    policy.Caller
	port   uint16
	conn   net.Conn
	judged atomic.Pointer[policy.Compiled] // that last let it go on
}

func (s *session) guard(judged *policy.Compiled) *guard {
	g := &guard{p: s.p, who: s.who, port: s.dst.Port(), conn: s.conn}
	g.judged.Store(judged)
	return g
}

// refuses tells that the present policy does not let the connection go on, and
// logs and counts that. What may be a probe of the node ends too: a probe is a
// bare connect or a request, and no connection that stays.
func (g *guard) refuses() bool {
	c := g.p.policy.Load()
	if g.judged.Swap(c) == c {
		return false
	}
	d := policy.Decide(c, g.who, policy.Request{Port: g.port})
	if d.Allow && !d.ProbeOnly {
		return false
	}
	if d.Reason == "" {
		d.Reason = policy.PlaintextRefused
	}
	g.p.c.Metrics.Refused(flow.Inbound, telemetry.Reason(d.Reason))
	g.p.c.Log.Info("connection ended by a new policy", "reason", string(d.Reason), "peer", g.who.ID.String(),
		"client", g.who.Addr.String(), "port", g.port, "policy", d.Source)
	return true
}

// running is a tunnel.
type running struct {
	*guard
	t *tunnel.Tunnel
}

// Busy tells that it is always in use: its application has not closed it.
func (r *running) Busy() bool { return true }

// Sweep has nothing to do: a new policy is told at once.
func (r *running) Sweep() {}

func (r *running) rejudge() {
	if r.refuses() {
		tunnel.Reset(r.t.Down)
		tunnel.Reset(r.t.Up)
	}
}

// relaying is a connection of requests, each of which is judged by itself,
// until it becomes a tunnel (Upgrade, CONNECT).
type relaying struct {
	*http1.Relay
	guard *guard
}

// Sweep judges as well: the request that asked for the tunnel may have been
// judged by the policy before the present one.
func (r *relaying) Sweep() {
	r.Relay.Sweep()
	r.rejudge()
}

func (r *relaying) rejudge() {
	if r.Tunnelling() && r.guard.refuses() {
		tunnel.Reset(r.guard.conn)
	}
}
