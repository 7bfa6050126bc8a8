package outbound

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/balance"
	"github.com/heddle-mesh/heddle/sidecar/breaker"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/pool"
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
	t.pool = p.c.Pools.New(pool.Config{Idle: idle, Gone: ep.State.Gone(), Closed: closed,
		Dial: func(ctx context.Context) (net.Conn, error) { return t.dial(ctx, flow.ALPNHTTP1) }})
	if !ep.State.Pool.CompareAndSwap(nil, t) {
		p.c.Pools.Drop(t.pool)
		return ep.State.Pool.Load().(*target)
	}
	return t
}

// lease is what hangs on a pooled connection: whose it is, and what counts it.
type lease struct {
	target  *target
	breaker *breaker.Breaker
}

func closed(c *http1.Conn) {
	if l, ok := c.Owner.(*lease); ok {
		l.breaker.Closed()
	}
}

func (t *target) meshed() bool { return !t.id.IsZero() }

// dial connects: plain TCP outside the mesh, else TLS to exactly the endpoint's
// identity, and the other sidecar has admitted us. ctx has a deadline.
func (t *target) dial(ctx context.Context, alpn string) (net.Conn, error) {
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
