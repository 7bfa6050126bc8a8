package balance

import (
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/sidecar/breaker"
	"github.com/heddle-mesh/heddle/sidecar/retry"
)

// Policy is what a TrafficPolicy says of a port. Immutable.
type Policy struct {
	Source   string      // which policies say it, for people; empty: none does
	Retry    *retry.Rule // never nil
	Request  time.Duration
	Connect  time.Duration // zero: the caller's default
	Idle     time.Duration // zero: never
	Limits   breaker.Limits
	Ejection Ejection
}

// Ejection says when an endpoint is left out for a while.
type Ejection struct {
	Failures  int32 // one after the other; zero: never
	Base, Max time.Duration
	Percent   int // of the endpoints, at most
}

var noPolicy = &Policy{Retry: retry.Default}

func compilePolicy(t *wire.TrafficPolicy) *Policy {
	if t == nil {
		return noPolicy
	}
	span := func(d *wire.Duration) time.Duration { return time.Duration(max(d.GetNanos(), 0)) }
	o, b, e := t.GetTimeouts(), t.GetCircuitBreaker(), t.GetOutlierEjection()
	return &Policy{
		Source: t.GetSource(), Retry: retry.Compile(t.GetRetry()),
		Request: span(o.GetRequest()), Connect: span(o.GetConnect()), Idle: span(o.GetIdle()),
		Limits: breaker.Limits{
			Requests: int64(b.GetMaxRequests()), Connections: int64(b.GetMaxConnections()), Pending: int64(b.GetMaxPending()),
		},
		Ejection: Ejection{
			Failures: int32(min(e.GetConsecutiveFailures(), 1<<30)), Base: span(e.GetBaseEjection()), Max: span(e.GetMaxEjection()),
			Percent: int(min(e.GetMaxEjectedPercent(), 100)),
		},
	}
}

// account is what is counted for a port through all versions.
type account struct {
	budget   *retry.Budget
	breaker  *breaker.Breaker
	ejecting sync.Mutex // one decision at a time, so that the bound holds
	version  uint64     // guarded by the ledger
}

// Budget is that of the port's retries.
func (p *Port) Budget() *retry.Budget { return p.account.budget }

// Breaker counts what is under way at the port.
func (p *Port) Breaker() *breaker.Breaker { return p.account.breaker }

// Endpoints are all that Pick chooses from. Read only.
func (p *Port) Endpoints() []*Endpoint { return p.endpoints }

// Resting are the others that serve the port: not ready, or not meant for us
// now. Their connections may still be open. Read only.
func (p *Port) Resting() []*Endpoint { return p.resting }

func (p *Port) ejects() bool { return p.Policy != nil && p.Policy.Ejection.Failures > 0 }

// Report tells how a request or connection fared at an endpoint, also without a
// policy: one that fails is picked less (cost). What it gives is how long the endpoint is
// ejected because of that; zero: it is not.
func (p *Port) Report(s *EndpointState, failed bool) time.Duration {
	s.fared(failed)
	if !failed {
		s.forgive()
	}
	if !p.ejects() {
		return 0
	}
	if !failed {
		if s.bad.Load() != 0 {
			s.bad.Store(0)
		}
		return 0
	}
	if s.isEjected(int64(time.Since(s.born))) {
		return 0 // begun before it was ejected
	}
	if s.bad.Add(1) < p.Policy.Ejection.Failures {
		return 0
	}
	return p.eject(s)
}

func (p *Port) eject(s *EndpointState) time.Duration {
	p.account.ejecting.Lock()
	defer p.account.ejecting.Unlock()
	now, rule := int64(time.Since(s.born)), &p.Policy.Ejection
	if s.isEjected(now) {
		return 0
	}
	out := p.ejectedAt(now) + 1
	if n := len(p.endpoints); out > n*rule.Percent/100 || out >= n {
		return 0
	}
	// Each whole base that it has served well since takes one ejection back.
	times := s.ejections.Load()
	if ended := s.ejected.Load(); ended > 0 && rule.Base > 0 {
		times = max(times-(now-ended)/int64(rule.Base), 0)
	}
	s.ejections.Store(times + 1)
	long := rule.Max
	if times < int64(rule.Max/max(rule.Base, 1)) {
		long = min(time.Duration(times+1)*rule.Base, rule.Max)
	}
	s.bad.Store(0)
	s.back.Store(true)
	s.ejected.Store(now + int64(long))
	return long
}

// Ejected is how many endpoints are left out now.
func (p *Port) Ejected() int {
	if !p.ejects() {
		return 0
	}
	return p.ejectedAt(int64(time.Since(p.born)))
}

func (p *Port) ejectedAt(now int64) (n int) {
	for _, e := range p.endpoints {
		if e.State.isEjected(now) {
			n++
		}
	}
	return n
}

// IsEjected tells whether Pick gives the endpoint only for want of others.
func (p *Port) IsEjected(e *Endpoint) bool {
	return p.ejects() && e.State.isEjected(int64(time.Since(p.born)))
}

func (s *EndpointState) isEjected(now int64) bool { return s.ejected.Load() > now }

// Readmitted tells, once, that the endpoint takes part again after an ejection.
func (s *EndpointState) Readmitted() bool {
	return s.back.Load() && !s.isEjected(int64(time.Since(s.born))) && s.back.CompareAndSwap(true, false)
}
