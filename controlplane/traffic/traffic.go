// Package traffic turns TrafficPolicies into what callers of a Service's port
// are told. It is pure and keeps to nothing but the policies: what they do is
// the sidecar's. controlplane/state calls it.
package traffic

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Set is the TrafficPolicies in force. The zero Set has none.
type Set struct {
	inForce  map[source.Key]*v1alpha1.TrafficPolicy
	claims   map[source.Key][]claim // by Service, most important first
	problems []source.Problem
}

// claim is one targetRef of one policy.
type claim struct {
	policy *v1alpha1.TrafficPolicy
	port   uint16 // 0: all
}

// New checks every policy. One that cannot be used keeps the version that prev
// has of it; if that has none, it does not exist.
func New(prev *Set, snap *source.Snapshot) *Set {
	s := &Set{inForce: map[source.Key]*v1alpha1.TrafficPolicy{}, claims: map[source.Key][]claim{}}
	for _, key := range sortedKeys(snap.TrafficPolicies) {
		p := snap.TrafficPolicies[key]
		errs := p.Validate()
		for _, e := range errs {
			s.problems = append(s.problems, source.Problem{Ref: ref(key), Field: e.Field, Err: e.Err, Fix: e.Fix, Generation: p.Generation})
		}
		if len(errs) > 0 {
			if p = prev.inForce[key]; p == nil {
				continue
			}
		}
		s.inForce[key] = p
		for _, t := range p.Spec.TargetRefs {
			c := claim{policy: p}
			if t.Port != nil {
				c.port = *t.Port
			}
			svc := source.Key{Namespace: key.Namespace, Name: t.Name}
			s.claims[svc] = append(s.claims[svc], c)
		}
	}
	for _, list := range s.claims {
		slices.SortStableFunc(list, before)
	}
	return s
}

// before: what names the port, then the older, then the first by name.
func before(a, b claim) int {
	if (a.port == 0) != (b.port == 0) {
		return cmp.Compare(b.port, a.port)
	}
	x, y := a.policy.CreationTimestamp, b.policy.CreationTimestamp
	if x.IsZero() != y.IsZero() { // not said: not older than anything
		if x.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(x.Time.Compare(y.Time), cmp.Compare(a.policy.Name, b.policy.Name))
}

func ref(k source.Key) source.Ref {
	return source.Ref{Kind: "TrafficPolicy", Namespace: k.Namespace, Name: k.Name}
}

func sortedKeys(m map[source.Key]*v1alpha1.TrafficPolicy) []source.Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b source.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// Changed gives the Services that may be told something else than before.
func (s *Set) Changed(prev *Set) []source.Key {
	var out []source.Key
	for _, pair := range [2][2]*Set{{s, prev}, {prev, s}} {
		for svc, list := range pair[0].claims {
			if !slices.Equal(list, pair[1].claims[svc]) {
				out = append(out, svc)
			}
		}
	}
	return out
}

// Problems are those of policies that came through a door unchecked. What a
// policy names need not exist yet.
func (s *Set) Problems() []source.Problem { return s.problems }

// Policy gives what callers of a Service's port are told; nil: nothing.
func (s *Set) Policy(svc source.Key, port uint16) *wire.TrafficPolicy {
	out := &wire.TrafficPolicy{}
	var from [4]string // one for each group, in the order of the fields
	for _, c := range s.claims[svc] {
		if c.port != 0 && c.port != port {
			continue
		}
		name, spec := c.policy.Namespace+"/"+c.policy.Name, &c.policy.Spec
		if spec.Retry != nil && out.Retry == nil {
			from[0], out.Retry = "retry="+name, retry(spec.Retry)
		}
		if t := spec.Timeouts; t != nil && out.Timeouts == nil {
			from[1] = "timeouts=" + name
			out.Timeouts = &wire.Timeouts{Connect: span(t.Connect, 0), Request: span(t.Request, 0), Idle: span(t.Idle, 0)}
		}
		if b := spec.CircuitBreaker; b != nil && out.CircuitBreaker == nil {
			from[2] = "circuitBreaker=" + name
			out.CircuitBreaker = &wire.CircuitBreaker{
				MaxConnections: or(b.MaxConnections, 0), MaxPending: or(b.MaxPending, v1alpha1.DefaultMaxPending), MaxRequests: or(b.MaxRequests, 0),
			}
		}
		if spec.OutlierEjection != nil && out.OutlierEjection == nil {
			from[3], out.OutlierEjection = "outlierEjection="+name, ejection(spec.OutlierEjection)
		}
	}
	if out.Source = strings.Join(strings.Fields(strings.Join(from[:], " ")), " "); out.Source == "" {
		return nil
	}
	return out
}

func retry(r *v1alpha1.Retry) *wire.Retry {
	out := &wire.Retry{
		Attempts: r.Attempts, PerTryTimeout: span(r.PerTryTimeout, 0),
		BudgetRatio: v1alpha1.DefaultBudgetRatio, BudgetMinPerSecond: v1alpha1.DefaultBudgetMin,
		StatusCodes: r.StatusCodes, Methods: r.Methods, MaxBodyBytes: or(r.MaxBodyBytes, v1alpha1.DefaultMaxBody),
	}
	for _, cause := range r.When {
		out.On = append(out.On, string(cause))
	}
	if len(r.When)+len(r.StatusCodes) == 0 {
		out.On = []string{string(v1alpha1.RetryConnect), string(v1alpha1.RetryReset), string(v1alpha1.RetryGateway)}
	}
	var b v1alpha1.Backoff
	if r.Backoff != nil {
		b = *r.Backoff
	}
	out.BackoffBase, out.BackoffMax = span(b.Base, v1alpha1.DefaultBackoffBase), span(b.Max, v1alpha1.DefaultBackoffMax)
	if g := r.Budget; g != nil {
		out.BudgetRatio, out.BudgetMinPerSecond = or(g.Ratio, out.BudgetRatio), or(g.MinPerSecond, out.BudgetMinPerSecond)
	}
	return out
}

func ejection(e *v1alpha1.OutlierEjection) *wire.OutlierEjection {
	return &wire.OutlierEjection{
		ConsecutiveFailures: or(e.ConsecutiveFailures, v1alpha1.DefaultFailures),
		BaseEjection:        span(e.BaseEjection, v1alpha1.DefaultBaseEjection), MaxEjection: span(e.MaxEjection, v1alpha1.DefaultMaxEjection),
		MaxEjectedPercent: or(e.MaxEjectedPercent, v1alpha1.DefaultMaxEjected),
	}
}

func or[T any](v *T, def T) T {
	if v != nil {
		return *v
	}
	return def
}

// span gives nil for a duration that is neither said nor has a default.
func span(d *v1alpha1.Duration, def time.Duration) *wire.Duration {
	if d != nil {
		def = d.Duration
	}
	if def == 0 {
		return nil
	}
	return &wire.Duration{Nanos: int64(def)}
}
