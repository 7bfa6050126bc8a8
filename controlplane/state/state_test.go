package state_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/source"
	iwire "github.com/heddle-mesh/heddle/internal/wire"
)

// fleet gives a snapshot of n Services with m meshed pods each.
func fleet(n, m int) *source.Snapshot {
	s := &source.Snapshot{
		Revision: 1,
		Nodes:    map[string]*source.Node{"n0": {Name: "n0", Zone: "z0"}, "n1": {Name: "n1", Zone: "z1"}},
		Pods:     map[source.Key]*source.Pod{}, Services: map[source.Key]*source.Service{},
		EndpointSlices: map[source.Key]*source.EndpointSlice{},
	}
	for i := range n {
		k := source.Key{Namespace: "ns", Name: fmt.Sprintf("s%04d", i)}
		s.Services[k] = &source.Service{
			Namespace: k.Namespace, Name: k.Name, Type: "ClusterIP",
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports:      []source.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}},
		}
		slice := &source.EndpointSlice{Namespace: k.Namespace, Name: k.Name, Service: k.Name, Ports: []source.SlicePort{{Name: "http", Port: 8080, Protocol: "TCP"}}}
		for j := range m {
			p := &source.Pod{
				Namespace: k.Namespace, Name: fmt.Sprintf("%s-%d", k.Name, j), UID: fmt.Sprintf("uid-%d-%d", i, j), Node: fmt.Sprintf("n%d", j%2),
				ServiceAccount: k.Name, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(1 + j), byte(i >> 8), byte(i)})},
				Phase: "Running", Ready: true, Meshed: true,
			}
			s.Pods[source.Key{Namespace: p.Namespace, Name: p.Name}] = p
			slice.Endpoints = append(slice.Endpoints, source.SliceEndpoint{
				Address: p.IPs[0], Ready: true, Serving: true, Node: p.Node, Target: source.Ref{Kind: "Pod", Namespace: p.Namespace, Name: p.Name},
			})
		}
		s.EndpointSlices[k] = slice
	}
	return s
}

// with gives the next snapshot, with every map that f may change copied.
func with(s *source.Snapshot, f func(*source.Snapshot)) *source.Snapshot {
	n := *s
	n.Revision++
	n.Nodes, n.Pods, n.Services = maps.Clone(s.Nodes), maps.Clone(s.Pods), maps.Clone(s.Services)
	n.EndpointSlices, n.AccessPolicies = maps.Clone(s.EndpointSlices), maps.Clone(s.AccessPolicies)
	f(&n)
	return &n
}

// flip changes whether the first endpoint of a Service is ready.
func flip(s *source.Snapshot, k source.Key) *source.Snapshot {
	n := *s
	n.Revision++
	n.EndpointSlices = maps.Clone(s.EndpointSlices)
	slice := *s.EndpointSlices[k]
	slice.Endpoints = append([]source.SliceEndpoint{}, slice.Endpoints...)
	slice.Endpoints[0].Ready = !slice.Endpoints[0].Ready
	n.EndpointSlices[k] = &slice
	return &n
}

func TestSameContentSameResource(t *testing.T) {
	s := fleet(3, 2)
	w1 := state.Build(nil, s, state.Options{})
	a, b := w1.Resource("addr/10.96.0.0", state.Peer{}), w1.Resource("addr/10.96.0.1", state.Peer{})
	pod := w1.Resource("addr/10.1.0.0", state.Peer{})
	out := w1.Resource("addr/192.0.2.1", state.Peer{})
	w2 := state.Build(w1, flip(s, source.Key{Namespace: "ns", Name: "s0000"}), state.Options{})
	if got := w2.Resource("addr/10.96.0.0", state.Peer{}); got == a || bytes.Equal(got.Version, a.Version) || got.Revision != 2 || got.Update.Revision != 2 {
		t.Errorf("changed Service: %+v", got)
	}
	if got := w2.Resource("addr/10.96.0.1", state.Peer{}); got != b {
		t.Error("unchanged Service has a new resource")
	}
	if got := w2.Resource("addr/10.1.0.0", state.Peer{}); got != pod {
		t.Error("pod whose Service changed has a new resource")
	}
	if got := w2.Resource("addr/192.0.2.1", state.Peer{}); got != out {
		t.Error("external address has a new resource")
	}
	// A change that means nothing keeps the resource too.
	w3 := state.Build(w2, with(w2Snap(s), func(n *source.Snapshot) {
		p := *n.Pods[source.Key{Namespace: "ns", Name: "s0001-0"}]
		p.Annotations = map[string]string{"x": "y"}
		n.Pods[source.Key{Namespace: "ns", Name: "s0001-0"}] = &p
	}), state.Options{})
	if got := w3.Resource("addr/10.96.0.1", state.Peer{}); got != b {
		t.Error("an annotation made a new resource")
	}
}

func w2Snap(s *source.Snapshot) *source.Snapshot {
	return flip(s, source.Key{Namespace: "ns", Name: "s0000"})
}

func TestInboundIsForItsPodOnly(t *testing.T) {
	w := state.Build(nil, fleet(2, 1), state.Options{})
	own := state.Peer{Namespace: "ns", ServiceAccount: "s0000", PodUID: "uid-0-0"}
	if r := w.Resource("inbound", own); r == nil || r.Update.GetInbound().GetPod() != "s0000-0" {
		t.Errorf("own: %v", r)
	}
	for name, p := range map[string]state.Peer{
		"no pod":          {Namespace: "ns", ServiceAccount: "s0000"},
		"other account":   {Namespace: "ns", ServiceAccount: "s0001", PodUID: "uid-0-0"},
		"other namespace": {Namespace: "x", ServiceAccount: "s0000", PodUID: "uid-0-0"},
		"pod gone":        {Namespace: "ns", ServiceAccount: "s0000", PodUID: "uid-9-9"},
	} {
		if r := w.Resource("inbound", p); r != nil {
			t.Errorf("%s gets %v", name, r.Update)
		}
	}
	for _, name := range []string{"", "addr/", "addr/x", "addr/10.096.0.1", "addr/::ffff:10.96.0.1", "addr/fe80::1%eth0", "addr/FD00::1", "nonsense"} {
		if r := w.Resource(name, own); r != nil {
			t.Errorf("%q gives %v", name, r.Update)
		}
	}
	if w.PodByUID("uid-0-0") == nil || w.PodByUID("") != nil || w.PodByUID("uid-9-9") != nil {
		t.Error("PodByUID")
	}
}

// TestRandomHistory changes a small world at random, many times, and compares
// the World built step by step with one built from nothing: same versions
// everywhere. Meanwhile no address's revision goes back, other content always
// comes under a later revision, and a peer that follows by Diff holds at the
// end what a new peer gets.
func TestRandomHistory(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, rand.New(rand.NewPCG(seed, 1)), 150) })
	}
}

func history(t *testing.T, r *rand.Rand, steps int) {
	s := fleet(4, 3)
	var w *state.World
	held := map[string]*state.Resource{}
	dest := map[string]*wire.Destination{}
	asked := map[string]bool{"addr/10.9.9.9": true, "mesh": true}
	for range steps {
		s = with(s, func(n *source.Snapshot) { mutate(r, n) })
		w = state.Build(w, s, state.Options{})
		fresh := state.Build(nil, s, state.Options{})
		list, peers := names(s, "addr/10.9.9.9")
		for _, n := range list {
			asked[n] = true
		}
		for n := range asked {
			if r.IntN(3) == 0 {
				continue // not asked for in this world
			}
			follow(t, n, w.Resource(n, state.Peer{}), fresh.Resource(n, state.Peer{}), held, dest)
		}
		for _, p := range peers {
			got, want := w.Resource("inbound", p), fresh.Resource("inbound", p)
			if (got == nil) != (want == nil) || got != nil && !bytes.Equal(got.Version, want.Version) {
				t.Fatalf("inbound of %v differs:\n%v\n%v", p, got, want)
			}
		}
		if fmt.Sprint(w.Problems()) != fmt.Sprint(fresh.Problems()) {
			t.Fatalf("problems differ:\n%v\n%v", w.Problems(), fresh.Problems())
		}
	}
}

// follow is a peer that holds name and gets what is newer.
func follow(t *testing.T, name string, got, want *state.Resource, held map[string]*state.Resource, dest map[string]*wire.Destination) {
	t.Helper()
	if got == nil || want == nil || !bytes.Equal(got.Version, want.Version) {
		t.Fatalf("%s differs:\n%v\n%v", name, got, want)
	}
	old := held[name]
	if old != nil && !bytes.Equal(old.Version, got.Version) && got.Revision <= old.Revision {
		t.Fatalf("%s went from revision %d to %d with other content\n%v\n%v", name, old.Revision, got.Revision, old.Update, got.Update)
	}
	held[name] = got
	if got.Update.GetDestination() == nil {
		return
	}
	u := state.Diff(old, got)
	d := u.GetDestination()
	if delta := u.GetDestinationDelta(); delta != nil {
		if !bytes.Equal(delta.BaseVersion, old.Version) {
			t.Fatalf("%s: delta of another base", name)
		}
		var err error
		if d, err = iwire.Apply(dest[name], delta); err != nil {
			t.Fatal(err)
		}
	}
	if !iwire.Equal(d, got.Update.GetDestination()) {
		t.Fatalf("%s: after the difference\n%v\nwant\n%v", name, d, got.Update)
	}
	dest[name] = d
}

func mutate(r *rand.Rand, n *source.Snapshot) {
	for range 1 + r.IntN(3) {
		svc := source.Key{Namespace: "ns", Name: fmt.Sprintf("s%04d", r.IntN(4))}
		pod := source.Key{Namespace: "ns", Name: fmt.Sprintf("%s-%d", svc.Name, r.IntN(3))}
		switch r.IntN(9) {
		case 0, 1:
			mutateSlice(r, n, svc)
		case 2:
			delete(n.Pods, pod)
		case 3, 4:
			p := source.Pod{
				Namespace: pod.Namespace, Name: pod.Name, UID: fmt.Sprintf("uid-%s-%d", pod.Name, r.IntN(2)), Node: "n0", ServiceAccount: svc.Name,
				IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(r.IntN(6))})}, Phase: []string{"Running", "Running", "Failed"}[r.IntN(3)],
				Ready: r.IntN(2) == 0, Meshed: r.IntN(3) > 0, SkipInbound: []redirect.PortRange{{First: 22, Last: uint16(22 + r.IntN(2))}}, HostNetwork: r.IntN(8) == 0, Created: time.Unix(int64(r.IntN(3)), 0),
			}
			n.Pods[pod] = &p
		case 5:
			delete(n.Services, svc)
		case 6:
			ip := netip.AddrFrom4([4]byte{10, 96, 0, byte(r.IntN(4))})
			if r.IntN(4) == 0 {
				ip = netip.AddrFrom4([4]byte{10, 1, 0, byte(r.IntN(6))}) // clashes with pods
			}
			s := source.Service{Namespace: "ns", Name: svc.Name, Type: "ClusterIP", ClusterIPs: []netip.Addr{ip}, Ports: []source.ServicePort{{Name: "http", Port: uint16(80 + r.IntN(2)), Protocol: "TCP"}}}
			s.InternalLocal = r.IntN(2) == 0
			if r.IntN(3) == 0 {
				s.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(r.IntN(6))})}
			}
			n.Services[svc] = &s
		case 7:
			k := source.Key{Namespace: "ns", Name: fmt.Sprint("p", r.IntN(2))}
			if n.AccessPolicies == nil {
				n.AccessPolicies = map[source.Key]*v1alpha1.AccessPolicy{}
			}
			p := &v1alpha1.AccessPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}
			p.Spec.Rules = []v1alpha1.AccessRule{{Action: []v1alpha1.AccessAction{"allow", "deny", "nonsense"}[r.IntN(3)]}}
			n.AccessPolicies[k] = p
		case 8:
			n.Nodes["n0"] = &source.Node{Name: "n0", Zone: fmt.Sprint("z", r.IntN(2)), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(r.IntN(2))})}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
		}
	}
}

func mutateSlice(r *rand.Rand, n *source.Snapshot, svc source.Key) {
	k := source.Key{Namespace: "ns", Name: fmt.Sprintf("%s-%d", svc.Name, r.IntN(2))}
	if r.IntN(4) == 0 {
		delete(n.EndpointSlices, k)
		return
	}
	s := &source.EndpointSlice{Namespace: "ns", Name: k.Name, Service: svc.Name, Ports: []source.SlicePort{{Name: "http", Port: uint16(8080 + r.IntN(2)), Protocol: "TCP"}}}
	for range r.IntN(5) {
		e := source.SliceEndpoint{Address: netip.AddrFrom4([4]byte{10, 1, 0, byte(r.IntN(6))}), Ready: r.IntN(2) == 0, Serving: true, Terminating: r.IntN(3) == 0, Node: "n0"}
		if r.IntN(2) == 0 {
			e.Target = source.Ref{Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("%s-%d", svc.Name, r.IntN(3))}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	n.EndpointSlices[k] = s
}

// TestConcurrentReaders reads old and new worlds while newer ones are built.
func TestConcurrentReaders(t *testing.T) {
	s := fleet(20, 3)
	w := state.Build(nil, s, state.Options{})
	list, peers := names(s)
	var wg sync.WaitGroup
	for i := range 30 {
		next := w
		for range 2 {
			wg.Go(func() {
				for _, n := range list {
					if next.Resource(n, state.Peer{}) == nil {
						t.Errorf("no %s", n)
					}
				}
				for _, p := range peers {
					next.Resource("inbound", p)
				}
			})
		}
		s = flip(s, source.Key{Namespace: "ns", Name: fmt.Sprintf("s%04d", i%20)})
		w = state.Build(w, s, state.Options{})
	}
	wg.Wait()
}

// BenchmarkOneChange: 1,000 Services of 10 endpoints, one endpoint changes, its
// VIP is asked for and the difference is made.
func BenchmarkOneChange(b *testing.B) {
	s := fleet(1000, 10)
	w := state.Build(nil, s, state.Options{})
	list, _ := names(s)
	for _, n := range list {
		w.Resource(n, state.Peer{})
	}
	k := source.Key{Namespace: "ns", Name: "s0500"}
	old := w.Resource("addr/10.96.1.244", state.Peer{})
	b.ReportAllocs()
	for b.Loop() {
		s = flip(s, k)
		w = state.Build(w, s, state.Options{})
		now := w.Resource("addr/10.96.1.244", state.Peer{})
		if state.Diff(old, now).GetDestinationDelta() == nil {
			b.Fatal("no delta")
		}
		old = now
	}
}

// BenchmarkFirst: the same fleet from nothing, everything asked for once.
func BenchmarkFirst(b *testing.B) {
	s := fleet(1000, 10)
	list, _ := names(s)
	b.ReportAllocs()
	for b.Loop() {
		w := state.Build(nil, s, state.Options{})
		for _, n := range list {
			w.Resource(n, state.Peer{})
		}
	}
}
