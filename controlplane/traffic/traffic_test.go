package traffic

import (
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
)

func policy(name string, day int, change func(*v1alpha1.TrafficPolicySpec)) *v1alpha1.TrafficPolicy {
	p := &v1alpha1.TrafficPolicy{}
	p.Namespace, p.Name = "shop", name
	if day > 0 {
		p.CreationTimestamp.Time = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
	}
	p.Spec.TargetRefs = []v1alpha1.TargetRef{{Name: "orders"}}
	change(&p.Spec)
	return p
}

func request(seconds int) func(*v1alpha1.TrafficPolicySpec) {
	return func(s *v1alpha1.TrafficPolicySpec) {
		s.Timeouts = &v1alpha1.Timeouts{Request: &v1alpha1.Duration{Duration: time.Duration(seconds) * time.Second}}
	}
}

func snapshot(list ...*v1alpha1.TrafficPolicy) *source.Snapshot {
	s := &source.Snapshot{TrafficPolicies: map[source.Key]*v1alpha1.TrafficPolicy{}}
	for _, p := range list {
		s.TrafficPolicies[source.Key{Namespace: p.Namespace, Name: p.Name}] = p
	}
	return s
}

var orders = source.Key{Namespace: "shop", Name: "orders"}

// Each group from the most specific, then the oldest, then the first by name;
// a policy that does not say when it was made is the youngest.
func TestMerge(t *testing.T) {
	onPort := func(port uint16, seconds int) func(*v1alpha1.TrafficPolicySpec) {
		return func(s *v1alpha1.TrafficPolicySpec) {
			request(seconds)(s)
			s.TargetRefs[0].Port = &port
		}
	}
	retries := func(s *v1alpha1.TrafficPolicySpec) { s.Retry = &v1alpha1.Retry{Attempts: 3} }
	for _, tt := range []struct {
		name     string
		policies []*v1alpha1.TrafficPolicy
		port     uint16
		want     string
	}{
		{"none", nil, 80, ""},
		{"older", []*v1alpha1.TrafficPolicy{policy("a", 2, request(1)), policy("b", 1, request(2))}, 80, "timeouts=shop/b"},
		{"name", []*v1alpha1.TrafficPolicy{policy("b", 1, request(1)), policy("a", 1, request(2))}, 80, "timeouts=shop/a"},
		{"undated", []*v1alpha1.TrafficPolicy{policy("a", 0, request(1)), policy("b", 9, request(2))}, 80, "timeouts=shop/b"},
		{"port first", []*v1alpha1.TrafficPolicy{policy("a", 1, request(1)), policy("b", 9, onPort(80, 2))}, 80, "timeouts=shop/b"},
		{"other port", []*v1alpha1.TrafficPolicy{policy("a", 1, request(1)), policy("b", 9, onPort(81, 2))}, 80, "timeouts=shop/a"},
		{"only other port", []*v1alpha1.TrafficPolicy{policy("b", 9, onPort(81, 2))}, 80, ""},
		{"groups", []*v1alpha1.TrafficPolicy{policy("a", 1, request(1)), policy("b", 9, retries)}, 80, "retry=shop/b timeouts=shop/a"},
	} {
		if got := New(&Set{}, snapshot(tt.policies...)).Policy(orders, tt.port).GetSource(); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if p := New(&Set{}, snapshot(policy("a", 1, request(1)))).Policy(source.Key{Namespace: "else", Name: "orders"}, 80); p != nil {
		t.Errorf("another namespace's Service got %v", p)
	}
}

// A mistaken policy keeps what it said last; one that never said anything that
// makes sense does not exist.
func TestLastGood(t *testing.T) {
	bad := request(100 * 24 * 3600)
	first := New(&Set{}, snapshot(policy("a", 1, request(1)), policy("b", 2, bad)))
	if n := len(first.Problems()); n != 1 {
		t.Errorf("%d problems: %v", n, first.Problems())
	}
	second := New(first, snapshot(policy("a", 1, bad), policy("b", 2, request(2))))
	if got := second.Policy(orders, 80); got.GetSource() != "timeouts=shop/a" || got.GetTimeouts().GetRequest().GetNanos() != int64(time.Second) {
		t.Errorf("got %v", got)
	}
	third := New(second, snapshot(policy("a", 1, bad))) // still the last good one
	if got := third.Policy(orders, 80).GetTimeouts().GetRequest().GetNanos(); got != int64(time.Second) {
		t.Errorf("got %v", got)
	}
	if got := New(third, snapshot()).Policy(orders, 80); got != nil {
		t.Errorf("deleted: %v", got)
	}
	if got := New(&Set{}, snapshot(policy("a", 1, bad))).Policy(orders, 80); got != nil {
		t.Errorf("after a restart: %v", got)
	}
}

func TestChanged(t *testing.T) {
	a, b := policy("a", 1, request(1)), policy("b", 1, request(1))
	b.Spec.TargetRefs = []v1alpha1.TargetRef{{Name: "stock"}}
	first := New(&Set{}, snapshot(a, b))
	if got := first.Changed(&Set{}); len(got) != 2 {
		t.Errorf("both are new: %v", got)
	}
	if got := New(first, snapshot(a, b)).Changed(first); len(got) != 0 {
		t.Errorf("nothing changed: %v", got)
	}
	moved := policy("b", 1, request(1))
	moved.Spec.TargetRefs = []v1alpha1.TargetRef{{Name: "web"}}
	got := map[source.Key]bool{}
	for _, k := range New(first, snapshot(a, moved)).Changed(first) {
		got[k] = true
	}
	if len(got) != 2 || got[orders] {
		t.Errorf("moved from stock to web: %v", got)
	}
}
