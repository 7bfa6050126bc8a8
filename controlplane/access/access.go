// Package access turns AccessPolicies and the mesh's default mode into what
// one pod enforces: mTLS modes, access rules, and the policies that are broken
// and therefore deny. It is pure and decides nothing itself: internal/policy
// does, in the sidecar. controlplane/state calls it.
package access

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/trim"
)

// Set is the AccessPolicies by namespace, each list sorted by name.
type Set struct {
	good     map[string][]*v1alpha1.AccessPolicy
	broken   map[string][]source.BrokenPolicy
	problems []source.Problem
}

// Problems are those of policies that came through a door unchecked.
func (s *Set) Problems() []source.Problem { return s.problems }

// New checks every policy: what does not compile is broken, whichever
// door it came through.
func New(snap *source.Snapshot) *Set {
	s := &Set{good: map[string][]*v1alpha1.AccessPolicy{}, broken: map[string][]source.BrokenPolicy{}}
	for _, b := range snap.BrokenPolicies {
		s.broken[b.Ref.Namespace] = append(s.broken[b.Ref.Namespace], b)
	}
	for _, key := range slices.SortedFunc(maps.Keys(snap.AccessPolicies), func(a, b source.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		p := snap.AccessPolicies[key]
		errs := p.Validate()
		if len(errs) == 0 {
			s.good[key.Namespace] = append(s.good[key.Namespace], p)
			continue
		}
		ref := source.Ref{Kind: "AccessPolicy", Namespace: key.Namespace, Name: key.Name}
		s.broken[key.Namespace] = append(s.broken[key.Namespace], source.BrokenPolicy{Ref: ref, Selector: p.Spec.Selector, Err: errs[0].Error()})
		for _, e := range errs {
			s.problems = append(s.problems, source.Problem{Ref: ref, Field: e.Field, Err: e.Err, Fix: e.Fix})
		}
	}
	return s
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Apply writes into out what a pod of these labels enforces.
func (s *Set) Apply(out *wire.InboundPolicy, p *source.Pod, mesh *v1alpha1.MeshConfig) {
	for _, b := range s.broken[p.Namespace] {
		if selects(b.Selector, p.Labels) {
			out.Broken = append(out.Broken, fmt.Sprintf("AccessPolicy/%s/%s: %s", b.Ref.Namespace, b.Ref.Name, b.Err))
		}
	}
	slices.Sort(out.Broken)
	m := modes{mesh: meshMode(mesh), ports: map[uint16]ranked{}}
	for _, ap := range s.good[p.Namespace] {
		if !selects(ap.Spec.Selector, p.Labels) {
			continue
		}
		m.take(ap)
		for i, r := range ap.Spec.Rules {
			out.Selected = out.Selected || r.Action != v1alpha1.Audit
			out.Rules = append(out.Rules, rules(ap, i, r)...)
		}
	}
	m.give(out)
}

// rules gives one wire rule for each "from" of rule i, as all fields of a wire
// rule must match.
func rules(ap *v1alpha1.AccessPolicy, i int, r v1alpha1.AccessRule) []*wire.AccessRule {
	base := func() *wire.AccessRule {
		out := &wire.AccessRule{Source: fmt.Sprintf("AccessPolicy/%s/%s#%d", ap.Namespace, ap.Name, i), Action: action(r.Action)}
		for _, p := range r.Ports {
			out.Ports = append(out.Ports, uint32(p))
		}
		return out
	}
	if len(r.From) == 0 {
		return []*wire.AccessRule{base()}
	}
	var out []*wire.AccessRule
	for _, f := range r.From {
		wr := base()
		wr.Identities, wr.Namespaces = f.Identities, f.Namespaces
		for _, c := range f.CIDRs {
			p, err := trim.ParsePrefix(c)
			if err != nil {
				wr.Prefixes = append(wr.Prefixes, nil) // refused by policy.Compile
				continue
			}
			wr.Prefixes = append(wr.Prefixes, append(p.Addr().AsSlice(), byte(p.Bits())))
		}
		out = append(out, wr)
	}
	return out
}

func action(a v1alpha1.AccessAction) wire.AccessRule_Action {
	switch a {
	case v1alpha1.Allow:
		return wire.AccessRule_ACTION_ALLOW
	case v1alpha1.Audit:
		return wire.AccessRule_ACTION_AUDIT
	}
	return wire.AccessRule_ACTION_DENY
}

// meshMode is the mode where no policy says another. Permissive is what a mesh
// begins with; a word that we do not know is read as strict.
func meshMode(m *v1alpha1.MeshConfig) wire.MtlsMode {
	if m == nil || m.Spec.MTLS == "" {
		return wire.MtlsMode_MTLS_MODE_PERMISSIVE
	}
	return mode(m.Spec.MTLS)
}

func mode(m v1alpha1.MTLSMode) wire.MtlsMode {
	if m == v1alpha1.MTLSPermissive {
		return wire.MtlsMode_MTLS_MODE_PERMISSIVE
	}
	return wire.MtlsMode_MTLS_MODE_STRICT
}

// modes finds the mTLS modes of a pod and its ports. The most specific word
// counts: of the mesh, of the namespace (no selector), of the pod; a word on a
// port goes before one on the pod. Of equally specific ones strict wins.
type modes struct {
	mesh  wire.MtlsMode
	pod   ranked
	ports map[uint16]ranked
}

type ranked struct {
	rank int // 0: nobody said
	mode wire.MtlsMode
	by   *v1alpha1.AccessPolicy
}

func (r ranked) with(o ranked) ranked {
	if o.rank > r.rank || o.rank == r.rank && o.mode == wire.MtlsMode_MTLS_MODE_STRICT && r.mode != o.mode {
		return o
	}
	return r
}

func (m *modes) take(ap *v1alpha1.AccessPolicy) {
	rule := ap.Spec.MTLS
	if rule == nil {
		return
	}
	said := ranked{1, mode(rule.Mode), ap}
	if len(ap.Spec.Selector) > 0 {
		said.rank = 2
	}
	for _, p := range rule.Ports {
		m.ports[p] = m.ports[p].with(said)
	}
	if len(rule.Ports) == 0 {
		m.pod = m.pod.with(said)
	}
}

func (m *modes) give(out *wire.InboundPolicy) {
	out.Mode = m.mesh
	if m.pod.rank > 0 {
		out.Mode = m.pod.mode
	}
	for _, p := range slices.Sorted(maps.Keys(m.ports)) {
		out.Ports = append(out.Ports, &wire.PortPolicy{Port: uint32(p), Mode: m.ports[p].mode})
	}
}

// ModeBy is the policy whose word on the mTLS mode of a pod's port counts; nil:
// none says anything, and MeshConfig or the default does.
func (s *Set) ModeBy(p *source.Pod, port uint16) *v1alpha1.AccessPolicy {
	m := modes{ports: map[uint16]ranked{}}
	for _, ap := range s.good[p.Namespace] {
		if selects(ap.Spec.Selector, p.Labels) {
			m.take(ap)
		}
	}
	if r := m.ports[port]; r.rank > 0 {
		return r.by
	}
	return m.pod.by
}

// Selection is how many pods a policy selects, and how many of those have no
// sidecar that would enforce it.
type Selection struct{ Pods, Bare int }

// Selections counts for each policy, broken ones too. Pods that are over do
// not count.
func (s *Set) Selections(pods map[source.Key]*source.Pod) map[source.Key]Selection {
	out := map[source.Key]Selection{}
	for _, p := range pods {
		if p.Phase == "Succeeded" || p.Phase == "Failed" {
			continue
		}
		var last source.Key // one policy may be broken in several documents
		count := func(key source.Key, selector map[string]string) {
			if !selects(selector, p.Labels) || key == last {
				return
			}
			last = key
			n := out[key]
			n.Pods++
			if !p.Meshed {
				n.Bare++
			}
			out[key] = n
		}
		for _, ap := range s.good[p.Namespace] {
			count(source.Key{Namespace: ap.Namespace, Name: ap.Name}, ap.Spec.Selector)
		}
		for _, b := range s.broken[p.Namespace] {
			count(source.Key{Namespace: b.Ref.Namespace, Name: b.Ref.Name}, b.Selector)
		}
	}
	return out
}
