package state

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/controlplane/access"
	"github.com/heddle-mesh/heddle/controlplane/traffic"
	"github.com/heddle-mesh/heddle/internal/source"
)

// maxLeft bounds the memory of addresses that went; beyond it everything that
// is not known counts as gone just now.
const maxLeft = 8192

// Build makes the World of a snapshot, reusing from prev (which may be nil)
// what did not change. Versions are hashes of content, equal on all replicas.
// It costs what changed plus a look at each object's pointer, and no look at
// kinds whose map is the same as before.
func Build(prev *World, snap *source.Snapshot, opt Options) *World {
	if prev == nil {
		prev = &World{snap: &source.Snapshot{}, base: snap.Revision, externals: newExternalMemo(), policies: &access.Set{}, traffic: &traffic.Set{}}
	}
	w := *prev
	w.snap, w.opt = snap, opt
	w.revision = max(prev.revision, snap.Revision)
	w.problems = nil
	if w.domain = opt.TrustDomain; w.domain == "" {
		w.domain = defaultDomain
	}
	if snap.Mesh != nil && snap.Mesh.Spec.TrustDomain != "" {
		w.domain = snap.Mesh.Spec.TrustDomain
	}
	b := &builder{
		World: &w, prev: prev, services: map[source.Key]bool{}, reshaped: map[source.Key]bool{},
		pods: map[source.Key]bool{}, touched: map[netip.Addr]bool{}, moved: map[netip.Addr]bool{},
	}
	b.sliceChanges()
	b.podChanges()
	b.serviceChanges()
	b.nodeChanges()
	b.policyChanges()
	b.trafficChanges()
	b.moves()
	b.makeServices()
	b.makePods()
	b.rest()
	return &w
}

// builder is one Build: which nodes must be made anew.
type builder struct {
	*World
	prev     *World
	services map[source.Key]bool
	reshaped map[source.Key]bool // Services whose ports or addresses changed
	pods     map[source.Key]bool
	touched  map[netip.Addr]bool // may mean another thing now
	moved    map[netip.Addr]bool // belong to another object now
}

// changes calls f for every object that differs, with nil for one that is not
// there.
func changes[K comparable, V any](old, now map[K]*V, f func(k K, old, now *V)) {
	if reflect.ValueOf(old).Pointer() == reflect.ValueOf(now).Pointer() && len(old) == len(now) {
		return
	}
	for k, n := range now {
		if o := old[k]; o != n {
			f(k, o, n)
		}
	}
	for k, o := range old {
		if _, ok := now[k]; !ok {
			f(k, o, nil)
		}
	}
}

// unshare gives a map that may be changed: the first call copies.
func unshare[K comparable, V any](m *map[K]V, copied *bool) map[K]V {
	if !*copied {
		if *m = maps.Clone(*m); *m == nil {
			*m = map[K]V{}
		}
		*copied = true
	}
	return *m
}

func (b *builder) sliceChanges() {
	var copied bool
	touched := map[source.Key]bool{}
	changes(b.prev.snap.EndpointSlices, b.snap.EndpointSlices, func(_ source.Key, old, now *source.EndpointSlice) {
		m := unshare(&b.slicesOf, &copied)
		if old != nil && old.Service != "" {
			k := source.Key{Namespace: old.Namespace, Name: old.Service}
			m[k] = slices.DeleteFunc(slices.Clone(m[k]), func(s *source.EndpointSlice) bool { return s == old })
			touched[k] = true
		}
		if now != nil && now.Service != "" {
			k := source.Key{Namespace: now.Namespace, Name: now.Service}
			m[k] = append(slices.Clip(m[k]), now)
			slices.SortFunc(m[k], func(a, b *source.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
			touched[k] = true
		}
	})
	var copiedAt, copiedFor bool
	for svc := range touched {
		b.services[svc] = true
		if len(b.slicesOf[svc]) == 0 {
			delete(b.slicesOf, svc)
		}
		oldAt, oldFor := endpointsOf(b.prev.slicesOf[svc])
		nowAt, nowFor := endpointsOf(b.slicesOf[svc])
		if !maps.Equal(oldAt, nowAt) || !slices.EqualFunc(b.prev.slicesOf[svc], b.slicesOf[svc], samePorts) {
			b.reshaped[svc] = true
		}
		reindex(oldAt, nowAt, svc, func() map[netip.Addr][]source.Key { return unshare(&b.servicesAt, &copiedAt) })
		reindex(oldFor, nowFor, svc, func() map[source.Key][]source.Key { return unshare(&b.servicesFor, &copiedFor) })
	}
}

// samePorts: what pods learn of their ports from a slice did not change.
func samePorts(a, b *source.EndpointSlice) bool {
	return a == b || slices.Equal(a.Ports, b.Ports) && slices.EqualFunc(a.Endpoints, b.Endpoints, func(x, y source.SliceEndpoint) bool { return x.Address == y.Address })
}

// endpointsOf gives where slices point to: addresses, and pods.
func endpointsOf(list []*source.EndpointSlice) (at map[netip.Addr]bool, pods map[source.Key]bool) {
	at, pods = map[netip.Addr]bool{}, map[source.Key]bool{}
	for _, s := range list {
		for i := range s.Endpoints {
			at[s.Endpoints[i].Address] = true
			if t := s.Endpoints[i].Target; t.Kind == "Pod" {
				pods[targetKey(s, t)] = true
			}
		}
	}
	return at, pods
}

func targetKey(s *source.EndpointSlice, t source.Ref) source.Key {
	if t.Namespace == "" {
		t.Namespace = s.Namespace
	}
	return source.Key{Namespace: t.Namespace, Name: t.Name}
}

// reindex corrects an index from K to the Services that point there.
func reindex[K comparable](old, now map[K]bool, svc source.Key, index func() map[K][]source.Key) {
	for k := range old {
		if !now[k] {
			m := index()
			rest := slices.DeleteFunc(slices.Clone(m[k]), func(s source.Key) bool { return s == svc })
			if m[k] = rest; len(rest) == 0 {
				delete(m, k)
			}
		}
	}
	for k := range now {
		if !old[k] {
			m := index()
			m[k] = append(slices.Clip(m[k]), svc)
			slices.SortFunc(m[k], compareKeys)
		}
	}
}

func compareKeys(a, b source.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// over: the pod runs nothing any more, and its address may be another's.
func over(p *source.Pod) bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

func (b *builder) podChanges() {
	var copiedAt, copiedUID bool
	changes(b.prev.snap.Pods, b.snap.Pods, func(k source.Key, old, now *source.Pod) {
		b.pods[k] = true
		b.add(b.services, b.servicesFor[k])
		if old != nil && !over(old) {
			if m := unshare(&b.podsByUID, &copiedUID); m[old.UID] == old {
				delete(m, old.UID)
			}
			b.move(old, func(list []*source.Pod) []*source.Pod {
				return slices.DeleteFunc(list, func(p *source.Pod) bool { return p == old })
			}, &copiedAt)
		}
		if now != nil && !over(now) {
			if now.UID != "" {
				unshare(&b.podsByUID, &copiedUID)[now.UID] = now
			}
			b.move(now, func(list []*source.Pod) []*source.Pod {
				list = append(list, now)
				slices.SortFunc(list, holder)
				return list
			}, &copiedAt)
		}
	})
}

// move changes who has the addresses of a pod. A pod on the host's network
// has none of its own.
func (b *builder) move(p *source.Pod, edit func([]*source.Pod) []*source.Pod, copied *bool) {
	if p.HostNetwork {
		return
	}
	for _, a := range p.IPs {
		m := unshare(&b.podsAt, copied)
		for _, other := range m[a] {
			b.pods[keyOfPod(other)] = true
		}
		if m[a] = edit(slices.Clone(m[a])); len(m[a]) == 0 {
			delete(m, a)
		}
		b.touched[a] = true
		b.add(b.services, b.servicesAt[a])
	}
}

// holder sorts pods that claim one address: an address is given anew only
// after it was taken back, so the newest has it.
func holder(a, b *source.Pod) int {
	if c := b.Created.Compare(a.Created); c != 0 {
		return c
	}
	rank := func(p *source.Pod) int {
		switch {
		case p.Terminating:
			return 2
		case p.Phase != "Running":
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.UID, b.UID), compareKeys(keyOfPod(a), keyOfPod(b)))
}

func (b *builder) add(set map[source.Key]bool, keys []source.Key) {
	for _, k := range keys {
		set[k] = true
	}
}

func (b *builder) serviceChanges() {
	changed := false
	changes(b.prev.snap.Services, b.snap.Services, func(k source.Key, old, now *source.Service) {
		b.services[k], b.reshaped[k], changed = true, true, true
		for _, s := range []*source.Service{old, now} {
			if s != nil {
				for _, a := range slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs) {
					b.touched[a] = true
				}
			}
		}
	})
	if changed || b.vips == nil {
		b.findVIPs()
	} else {
		b.problems = slices.Clone(b.prev.vipProblems())
	}
}

// vipProblems are kept from world to world while no Service changes.
func (w *World) vipProblems() []source.Problem {
	return slices.DeleteFunc(slices.Clone(w.problems), func(p source.Problem) bool { return p.Ref.Kind != "Service" })
}

// findVIPs says whose each VIP is. Two Services with one address: the older
// has it, of equally old ones the first by name; the other is reported.
func (b *builder) findVIPs() {
	b.vips, b.outerVIPs = map[netip.Addr]source.Key{}, map[netip.Addr]source.Key{}
	list := slices.SortedFunc(maps.Values(b.snap.Services), func(x, y *source.Service) int {
		if x.Created.IsZero() != y.Created.IsZero() { // not said: not older than anything
			return map[bool]int{true: 1, false: -1}[x.Created.IsZero()]
		}
		return cmp.Or(x.Created.Compare(y.Created), compareKeys(keyOfService(x), keyOfService(y)))
	})
	claim := func(m map[netip.Addr]source.Key, s *source.Service, a netip.Addr, field string) {
		if first, taken := m[a]; taken && first != keyOfService(s) {
			b.problems = append(b.problems, source.Problem{
				Ref: source.Ref{Kind: "Service", Namespace: s.Namespace, Name: s.Name}, Field: field,
				Err: fmt.Sprintf("%s is Service %s's", a, first), Fix: "give it another address; until then it has none",
			})
			return
		}
		m[a] = keyOfService(s)
	}
	for _, s := range list {
		if !hasVIP(s) {
			continue
		}
		for _, a := range s.ClusterIPs {
			claim(b.vips, s, a, "spec.clusterIPs")
		}
		for _, a := range outerVIPs(s) {
			claim(b.outerVIPs, s, a, "spec.externalIPs")
		}
	}
}

func keyOfService(s *source.Service) source.Key {
	return source.Key{Namespace: s.Namespace, Name: s.Name}
}

func (b *builder) nodeChanges() {
	changed, zones := map[string]bool{}, false
	changes(b.prev.snap.Nodes, b.snap.Nodes, func(name string, old, now *source.Node) {
		var o, n source.Node
		if old != nil {
			o = *old
		}
		if now != nil {
			n = *now
		}
		zones = zones || o.Zone != n.Zone
		if o.Zone != n.Zone || !slices.Equal(o.Addresses, n.Addresses) || !slices.Equal(o.PodCIDRs, n.PodCIDRs) {
			changed[name] = true
		}
	})
	for name, n := range b.snap.Nodes {
		for _, c := range n.PodCIDRs {
			if len(b.touched) > 0 && b.touched[gateway(c)] { // see probeSources
				changed[name] = true
			}
		}
	}
	if len(changed) > 0 {
		b.podsWhere(func(p *source.Pod) bool { return changed[p.Node] })
	}
	if zones || b.domain != b.prev.domain {
		for k := range b.snap.Services {
			b.services[k] = true
		}
	}
}

func (b *builder) podsWhere(f func(*source.Pod) bool) {
	for k, p := range b.snap.Pods {
		if f(p) {
			b.pods[k] = true
		}
	}
}

func (b *builder) policyChanges() {
	spaces := map[string]bool{}
	changes(b.prev.snap.AccessPolicies, b.snap.AccessPolicies, func(k source.Key, _, _ *v1alpha1.AccessPolicy) { spaces[k.Namespace] = true })
	if !reflect.DeepEqual(b.prev.snap.BrokenPolicies, b.snap.BrokenPolicies) {
		for _, p := range slices.Concat(b.prev.snap.BrokenPolicies, b.snap.BrokenPolicies) {
			spaces[p.Ref.Namespace] = true
		}
	}
	if len(spaces) > 0 {
		b.policies = access.New(b.snap)
	}
	b.problems = append(b.problems, b.policies.Problems()...)
	all := b.prev.snap.Mesh != b.snap.Mesh || b.prev.domain != b.domain
	if all || len(spaces) > 0 {
		b.podsWhere(func(p *source.Pod) bool { return all || spaces[p.Namespace] })
	}
}

// trafficChanges makes the Services anew whose callers are told something else.
func (b *builder) trafficChanges() {
	changed := false
	changes(b.prev.snap.TrafficPolicies, b.snap.TrafficPolicies, func(source.Key, *v1alpha1.TrafficPolicy, *v1alpha1.TrafficPolicy) { changed = true })
	if changed {
		b.traffic = traffic.New(b.prev.traffic, b.snap)
		b.add(b.services, b.traffic.Changed(b.prev.traffic))
	}
	b.problems = append(b.problems, b.traffic.Problems()...)
}
