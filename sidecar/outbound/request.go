package outbound

import (
	"context"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/trace"
)

// plan tells how the next request is treated, by the newest policy.
func (s *session) plan() http1.Plan {
	if s.load(); s.port == nil {
		return http1.Plan{}
	}
	p := s.port.Policy
	return http1.Plan{Rule: p.Retry, Budget: s.port.Budget(), Timeout: p.Request}
}

// admit counts a request, if the policy bounds them.
func (s *session) admit() error {
	if s.port == nil || s.counted != nil || s.port.Policy.Limits.Requests == 0 {
		return nil
	}
	b := s.port.Breaker()
	if !b.Request(s.port.Policy.Limits.Requests) {
		return s.shed(limitRequests, "the circuit breaker is open: too many requests under way")
	}
	s.counted = b
	return nil
}

// Open gives a connection for a request (http1.Backend).
func (s *session) Open(ctx context.Context, req *http1.Head, try http1.Try) (*http1.Conn, error) {
	s.trace.Begin(req)
	if try.N == 0 {
		s.tried.n, s.target, s.waited = 0, nil, false
		if err := s.admit(); err != nil {
			return nil, err
		}
	}
	var deadline time.Time
	for {
		ep, err := s.pick(ctx)
		if err != nil {
			return nil, err
		}
		t := s.p.target(ep, s.dest)
		s.ep, s.target = ep, t
		t.state.Begin()
		s.startSpan(t)
		c, err := s.connect(ctx, try)
		if err == nil {
			if s.target != t {
				s.trace.Cancel()
				s.startSpan(s.target)
			}
			c.Sidecar, c.Fields = s.target.meshed(), s.trace.Fields()
			return c, nil
		}
		s.trace.End(trace.Result{Reason: reasonOf(err)})
		if reasonOf(err) == telemetry.ReasonCircuitOpen {
			t.state.End(0, false)
			return nil, err
		}
		if deadline.IsZero() {
			deadline = s.connectBy()
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
	latency := o.Latency
	counts, failed := judged(o)
	if !c.Reused || !counts || failed {
		// A failure's quickness says nothing of what an answer takes. The first answer on a connection also pays for the other side's own
		// connection and cold caches: taken for the endpoint's speed it would keep
		// a new endpoint without requests for as long as that is remembered.
		latency = 0
	}
	s.ep.State.End(latency, o.Failed || o.Unreached)
	if counts {
		s.report(s.ep, failed)
	}
	if o.Unreached || o.Elsewhere {
		s.tried.add(s.ep, !o.Unreached)
	}
	if o.Reusable {
		park(c)
	} else {
		s.target.pool.Put(c, false)
	}
}

// judged tells whether an attempt says anything of its endpoint's health, and
// what.
func judged(o http1.Outcome) (counts, failed bool) {
	switch {
	case o.Unsent:
		return false, false
	case o.Failed, o.Unreached:
		return true, true
	}
	return o.Status != 0, o.Status >= 502 && o.Status <= 504
}

// Record counts a request (http1.Backend).
func (s *session) Record(x *http1.Exchange) {
	s.told(x)
	if s.counted != nil {
		s.counted.RequestDone()
		s.counted = nil
	}
	m := s.p.c.Metrics
	if x.Retries.Total() > 0 {
		x.Retries.Each(func(cause string, times int) { m.Retried(serviceName(s.dest), cause, times) })
	}
	if x.Denied != telemetry.ReasonOK {
		m.RetryDenied(serviceName(s.dest), x.Denied)
	}
	if x.Reason != telemetry.ReasonOK {
		m.Refused(flow.Outbound, x.Reason)
		s.p.c.Log.Info("request failed", "service", serviceName(s.dest), "destination", s.dst.String(),
			"status", x.Status, "reason", string(x.Reason), "retries", x.Retries.Total(), "no_retry", string(x.Denied))
	}
	if s.target != nil {
		s.target.peer.Request(x)
		return
	}
	if s.nowhere == nil {
		s.nowhere = m.Peer(flow.Outbound, "", serviceName(s.dest), false)
	}
	s.nowhere.Request(x)
}
