package outbound

import (
	"context"
	"net"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/balance"
	"github.com/heddle-mesh/heddle/sidecar/breaker"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/retry"
)

// What a circuit breaker may refuse, as metrics call it.
const (
	limitRequests    = "requests"
	limitConnections = "connections"
	limitPending     = "pending"
)

// shed counts what the circuit breaker refuses.
func (s *session) shed(limit, detail string) error {
	s.p.c.Metrics.CircuitOpen(serviceName(s.dest), limit)
	return &http1.Fault{Status: 503, Reason: telemetry.ReasonCircuitOpen, Detail: detail}
}

// connecting bounds ctx by what the policy gives for one endpoint, and by by.
func (s *session) connecting(ctx context.Context, by time.Time) (context.Context, context.CancelFunc) {
	limit := time.Now().Add(s.connectTimeout())
	if !by.IsZero() && by.Before(limit) {
		limit = by
	}
	return context.WithDeadline(ctx, limit)
}

func (s *session) connectTimeout() time.Duration {
	if d := s.port.Policy.Connect; d > 0 {
		return d
	}
	return connectTimeout
}

// connectBy is when all endpoints together must have been tried.
func (s *session) connectBy() time.Time {
	return time.Now().Add(max(connectBudget, s.connectTimeout()))
}

// connect gives a connection to the endpoint picked or, where only so many may
// be open, to whichever has one free; s.ep and s.target are whose it is.
func (s *session) connect(ctx context.Context, try http1.Try) (*http1.Conn, error) {
	if !try.Fresh {
		if c := s.target.pool.Take(); c != nil {
			return c, nil
		}
	}
	b := s.port.Breaker()
	if limits := &s.port.Policy.Limits; !b.Connection(limits.Connections) {
		if c, err := s.await(ctx, b, try.By); c != nil || err != nil {
			return c, err
		}
	}
	ctx, cancel := s.connecting(ctx, try.By)
	defer cancel()
	c, err := s.target.pool.Dial(ctx)
	if err != nil {
		b.Closed()
		return nil, err
	}
	c.Owner = &lease{s.target, b}
	return c, nil
}

// await waits for one of the connections that may be open; nil without an error
// is the place of one.
func (s *session) await(ctx context.Context, b *breaker.Breaker, by time.Time) (*http1.Conn, error) {
	limits := s.port.Policy.Limits
	if c := s.spare(); c != nil {
		return c, nil
	}
	if s.makeRoom() && b.Connection(limits.Connections) {
		return nil, nil
	}
	w := b.Join(limits)
	if w == nil {
		return nil, s.shed(limitPending, "the circuit breaker is open: all connections are in use, and as many requests wait as may")
	}
	// What came free before we stood in the queue went past us.
	if b.Connection(limits.Connections) {
		if got, late := w.Leave(); late {
			giveOn(b, got)
		}
		return nil, nil
	}
	if c := s.spare(); c != nil {
		if got, late := w.Leave(); late {
			giveOn(b, got)
		}
		return c, nil
	}
	if by.IsZero() {
		by = s.connectBy()
	}
	waiting, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	got, err := w.Wait(waiting)
	if err != nil {
		return nil, s.shed(limitConnections, "the circuit breaker is open: no connection came free in time")
	}
	c, _ := got.(*http1.Conn)
	if c != nil && !s.adopt(c) {
		c.Owner.(*lease).target.pool.Put(c, false)
		return s.await(ctx, b, by)
	}
	return c, nil
}

// spare takes an idle connection of any endpoint that may be picked.
func (s *session) spare() *http1.Conn {
	for _, ep := range s.port.Endpoints() {
		t, ok := ep.State.Pool.Load().(*target)
		if !ok || s.port.IsEjected(ep) {
			continue
		}
		for c := t.pool.Take(); c != nil; c = t.pool.Take() {
			if c.Alive() && s.adopt(c) {
				return c
			}
			t.pool.Put(c, false)
		}
	}
	return nil
}

// makeRoom closes a connection that is kept idle to an endpoint that is not
// asked now: those would hold all places for as long as a pool keeps them.
func (s *session) makeRoom() bool {
	drop := func(ep *balance.Endpoint) bool {
		if t, ok := ep.State.Pool.Load().(*target); ok {
			if c := t.pool.Take(); c != nil {
				t.pool.Put(c, false)
				return true
			}
		}
		return false
	}
	for _, ep := range s.port.Resting() {
		if drop(ep) {
			return true
		}
	}
	for _, ep := range s.port.Endpoints() {
		if s.port.IsEjected(ep) && drop(ep) {
			return true
		}
	}
	return false
}

// adopt makes the endpoint of a connection the one that is being tried; false:
// it has left the Service, or is ejected and the one that was picked is not.
func (s *session) adopt(c *http1.Conn) bool {
	t := c.Owner.(*lease).target
	for _, ep := range s.port.Endpoints() {
		if ep.State == t.state {
			if s.port.IsEjected(ep) && !s.port.IsEjected(s.ep) {
				return false
			}
			s.target.state.End(0, false)
			s.ep, s.target = ep, t
			t.state.Begin()
			return true
		}
	}
	return false
}

// giveOn gives what was handed to us too late to whoever waits.
func giveOn(b *breaker.Breaker, got any) {
	if c, _ := got.(*http1.Conn); c != nil {
		park(c)
		return
	}
	b.Closed()
}

// park keeps a connection that is free again: for who waits for one, else for
// who comes.
func park(c *http1.Conn) {
	l := c.Owner.(*lease)
	c.Reused = true
	if l.breaker.Offer(c) {
		return
	}
	l.target.pool.Put(c, true)
	// Somebody may have begun to wait in between, and not have seen it.
	if l.breaker.Waiting() {
		if c := l.target.pool.Take(); c != nil && !l.breaker.Offer(c) {
			l.target.pool.Put(c, true)
		}
	}
}

// dialAny connects for an opaque connection, more than once if the policy says
// so. The endpoint counts one more in flight, and the breaker one connection.
func (s *session) dialAny(ctx context.Context) (net.Conn, error) {
	if s.load(); s.port == nil {
		return nil, faultNoSuchPort
	}
	rule, budget, b := s.port.Policy.Retry, s.port.Budget(), s.port.Breaker()
	budget.Request(time.Now())
	if !b.Connection(s.port.Policy.Limits.Connections) {
		return nil, s.shed(limitConnections, "the circuit breaker is open: too many connections")
	}
	for n := 1; ; n++ {
		c, err := s.dialOnce(ctx)
		if err == nil {
			s.counted = b
			return c, nil
		}
		again := n <= rule.Attempts && rule.On(retry.Connect) && reasonOf(err) == telemetry.ReasonConnectFailed
		if again && !budget.Spend(time.Now(), rule) {
			s.p.c.Metrics.RetryDenied(serviceName(s.dest), telemetry.ReasonRetryBudget)
			again = false
		}
		if !again || !retry.Pause(ctx, rule.Backoff(n)) {
			b.Closed()
			return nil, err
		}
		s.p.c.Metrics.Retried(serviceName(s.dest), retry.Connect.String(), 1)
	}
}

// dialOnce connects to the best endpoint that takes the connection. Nothing was
// sent yet, so trying the next one is always safe.
func (s *session) dialOnce(ctx context.Context) (net.Conn, error) {
	s.tried.n, s.waited = 0, false
	deadline := s.connectBy()
	for {
		ep, err := s.pick(ctx)
		if err != nil {
			return nil, err
		}
		s.ep, s.target = ep, s.p.target(ep, s.dest)
		ep.State.Begin()
		c, err := s.dial(ctx)
		if err == nil {
			s.report(ep, false)
			return c, nil
		}
		if err := s.failed(ctx, ep, err, deadline); err != nil {
			return nil, err
		}
	}
}

func (s *session) dial(ctx context.Context) (net.Conn, error) {
	began := time.Now()
	ctx, cancel := s.connecting(ctx, time.Time{})
	defer cancel()
	c, err := s.target.dial(ctx, flow.ALPNTCP)
	if err == nil {
		s.ep.State.Observe(time.Since(began))
	}
	return c, err
}
