package v1alpha1

import (
	"fmt"
	"strings"
	"time"
)

// Bounds of what a TrafficPolicy may ask for. Each guards against a slip of the
// unit or of a digit, which would be in force within a second.
const (
	maxAttempts     = 10
	maxReplayBody   = 1 << 20
	minTimeout      = time.Millisecond
	maxTimeout      = 24 * time.Hour
	maxCount        = 1 << 20
	maxEntries      = 64
	maxBudgetRatio  = 1.0
	maxMethodLength = 32
)

// check gathers the mistakes of one object.
type check struct{ out []FieldError }

func (c *check) add(field, err, fix string) { c.out = append(c.out, FieldError{field, err, fix}) }

// duration checks one that may be left out.
func (c *check) duration(field string, d *Duration) {
	if d != nil && (d.Duration < minTimeout || d.Duration > maxTimeout) {
		c.add(field, fmt.Sprintf("%s is out of bounds", d.Duration), "1ms to 24h; leave it out for the default")
	}
}

// count checks a number that may be left out.
func (c *check) count(field string, n *uint32, least, most uint32) {
	if n != nil && (*n < least || *n > most) {
		c.add(field, fmt.Sprintf("%d is out of bounds", *n), fmt.Sprintf("%d to %d; leave it out for the default", least, most))
	}
}

// entries checks the length of a list.
func (c *check) entries(field string, n int) {
	if n > maxEntries {
		c.add(field, fmt.Sprintf("has %d entries", n), fmt.Sprintf("at most %d", maxEntries))
	}
}

// order checks that of two durations the second is not the shorter, a default
// standing in for what is left out.
func (c *check) order(field string, base, most *Duration, def [2]time.Duration) {
	b, m := def[0], def[1]
	if base != nil {
		b = base.Duration
	}
	if most != nil {
		m = most.Duration
	}
	if m < b {
		c.add(field, fmt.Sprintf("%s is below the base, %s", m, b), "say both, the base first")
	}
}

// Validate gives what a schema cannot say, in the order of the fields; nil: the
// policy can be used.
func (p *TrafficPolicy) Validate() []FieldError {
	c, s := &check{}, &p.Spec
	if len(s.TargetRefs) == 0 {
		c.add("spec.targetRefs", "is empty", "name the Services it is for")
	}
	c.entries("spec.targetRefs", len(s.TargetRefs))
	for i, r := range s.TargetRefs {
		if r.Name == "" {
			c.add(fmt.Sprintf("spec.targetRefs[%d].name", i), "is empty", "name a Service of the same namespace")
		}
		if r.Port != nil && *r.Port == 0 {
			c.add(fmt.Sprintf("spec.targetRefs[%d].port", i), "0 is no port", "1 to 65535")
		}
	}
	if s.Retry == nil && s.Timeouts == nil && s.CircuitBreaker == nil && s.OutlierEjection == nil {
		c.add("spec", "says nothing", "give retry, timeouts, circuitBreaker or outlierEjection, or delete the policy")
	}
	c.retry(s.Retry)
	c.timeouts(s.Timeouts)
	c.breaker(s.CircuitBreaker)
	c.ejection(s.OutlierEjection)
	if s.Retry != nil && s.Timeouts != nil && s.Retry.PerTryTimeout != nil && s.Timeouts.Request != nil &&
		s.Retry.PerTryTimeout.Duration > s.Timeouts.Request.Duration {
		c.add("spec.retry.perTryTimeout", fmt.Sprintf("%s is longer than timeouts.request, %s", s.Retry.PerTryTimeout.Duration, s.Timeouts.Request.Duration), "give an attempt less time than the whole request")
	}
	return c.out
}

func (c *check) retry(r *Retry) {
	if r == nil {
		return
	}
	const at = "spec.retry"
	c.count(at+".attempts", &r.Attempts, 0, maxAttempts)
	for i, cause := range r.When {
		switch cause {
		case RetryConnect, RetryReset, Retry5xx, RetryGateway:
		default:
			c.add(fmt.Sprintf("%s.when[%d]", at, i), fmt.Sprintf("%q is no cause", cause), "say connect, reset, 5xx or gateway; single statuses go into statusCodes")
		}
	}
	for i, code := range r.StatusCodes {
		if code < 400 || code > 599 {
			c.add(fmt.Sprintf("%s.statusCodes[%d]", at, i), fmt.Sprintf("%d is no failure", code), "400 to 599")
		}
	}
	for i, m := range r.Methods {
		if !isMethod(m) {
			c.add(fmt.Sprintf("%s.methods[%d]", at, i), fmt.Sprintf("%q is no method", m), "such as GET or POST, in capitals")
		}
	}
	c.entries(at+".when", len(r.When))
	c.entries(at+".statusCodes", len(r.StatusCodes))
	c.entries(at+".methods", len(r.Methods))
	c.duration(at+".perTryTimeout", r.PerTryTimeout)
	if b := r.Backoff; b != nil {
		c.duration(at+".backoff.base", b.Base)
		c.duration(at+".backoff.max", b.Max)
		c.order(at+".backoff.max", b.Base, b.Max, [2]time.Duration{DefaultBackoffBase, DefaultBackoffMax})
	}
	if b := r.Budget; b != nil {
		if b.Ratio != nil && !(*b.Ratio >= 0 && *b.Ratio <= maxBudgetRatio) {
			c.add(at+".budget.ratio", fmt.Sprintf("%v is no share", *b.Ratio), "0 to 1: retries to requests")
		}
		c.count(at+".budget.minPerSecond", b.MinPerSecond, 0, maxCount)
	}
	c.count(at+".maxBodyBytes", r.MaxBodyBytes, 0, maxReplayBody)
}

func isMethod(m string) bool {
	return m != "" && len(m) <= maxMethodLength && strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_0123456789") == ""
}

func (c *check) timeouts(t *Timeouts) {
	if t == nil {
		return
	}
	if t.Request == nil && t.Connect == nil && t.Idle == nil {
		c.add("spec.timeouts", "says nothing", "give request, connect or idle")
	}
	c.duration("spec.timeouts.request", t.Request)
	c.duration("spec.timeouts.connect", t.Connect)
	c.duration("spec.timeouts.idle", t.Idle)
	if t.Idle != nil && t.Idle.Duration < time.Second {
		c.add("spec.timeouts.idle", fmt.Sprintf("%s is below a second", t.Idle.Duration), "idle connections are looked at once a second")
	}
}

func (c *check) breaker(b *CircuitBreaker) {
	if b == nil {
		return
	}
	const at = "spec.circuitBreaker"
	if b.MaxConnections == nil && b.MaxRequests == nil {
		if b.MaxPending != nil {
			c.add(at+".maxPending", "means nothing by itself", "requests wait for a connection only where maxConnections bounds them")
		} else {
			c.add(at, "says nothing", "give maxConnections or maxRequests")
		}
	} else if b.MaxPending != nil && b.MaxConnections == nil {
		c.add(at+".maxPending", "means nothing without maxConnections", "give maxConnections, or leave it out")
	}
	c.count(at+".maxConnections", b.MaxConnections, 1, maxCount)
	c.count(at+".maxPending", b.MaxPending, 0, maxCount)
	c.count(at+".maxRequests", b.MaxRequests, 1, maxCount)
}

func (c *check) ejection(e *OutlierEjection) {
	if e == nil {
		return
	}
	const at = "spec.outlierEjection"
	c.count(at+".consecutiveFailures", e.ConsecutiveFailures, 1, maxCount)
	c.duration(at+".baseEjection", e.BaseEjection)
	c.duration(at+".maxEjection", e.MaxEjection)
	c.order(at+".maxEjection", e.BaseEjection, e.MaxEjection, [2]time.Duration{DefaultBaseEjection, DefaultMaxEjection})
	c.count(at+".maxEjectedPercent", e.MaxEjectedPercent, 0, 100)
}
