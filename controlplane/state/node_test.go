package state_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/source"
	iwire "github.com/heddle-mesh/heddle/internal/wire"
)

// agent adds a node agent's pod to a node.
func agent(s *source.Snapshot, node string) state.Peer {
	p := &source.Pod{Namespace: "heddle-system", Name: "agent-" + node, UID: "agent-" + node, Node: node, ServiceAccount: "heddle-node", HostNetwork: true, Phase: "Running"}
	s.Pods[source.Key{Namespace: p.Namespace, Name: p.Name}] = p
	return state.Peer{Kind: wire.PeerKind_PEER_KIND_NODE, Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, PodUID: p.UID}
}

func TestNodeResource(t *testing.T) {
	s := fleet(3, 2)
	a, b := agent(s, "n0"), agent(s, "n1")
	s.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	s.Nodes["n0"].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	k := func(name string) source.Key { return source.Key{Namespace: "ns", Name: name} }
	s.Services[k("headless")] = &source.Service{Namespace: "ns", Name: "headless", Headless: true, Type: "ClusterIP"}
	s.Services[k("others")] = &source.Service{Namespace: "ns", Name: "others", Type: "ClusterIP", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.9.9")},
		Labels: map[string]string{"service.kubernetes.io/service-proxy-name": "x"}}
	w := state.Build(nil, s, state.Options{})
	r := w.Resource("node", a)
	n := r.Update.GetNode()
	if len(n.GetServices()) != 3 || n.GetZone() != "z0" || len(n.PodPrefixes) != 1 || len(n.ServicePrefixes) != 1 {
		t.Fatalf("the node's Services: %v", n)
	}
	svc := n.Services[0].Service
	if svc.Name != "s0000" || len(svc.Endpoints) != 2 || svc.Endpoints[0].Peer != nil || svc.Endpoints[0].Pod != "" || svc.Endpoints[0].Node != "n0" {
		t.Errorf("the first Service: %v", svc)
	}
	other := w.Resource("node", b)
	if bytes.Equal(other.Version, r.Version) || other.Update.GetNode().Services[0] != n.Services[0] {
		t.Error("two nodes have one version, or do not share Services")
	}
	for name, p := range map[string]state.Peer{
		"a sidecar's kind":   {Kind: wire.PeerKind_PEER_KIND_SIDECAR, Namespace: a.Namespace, ServiceAccount: a.ServiceAccount, PodUID: a.PodUID},
		"another account":    {Kind: a.Kind, Namespace: "ns", ServiceAccount: "s0000", PodUID: "uid-0-0"},
		"another's pod":      {Kind: a.Kind, Namespace: a.Namespace, ServiceAccount: a.ServiceAccount, PodUID: "uid-0-0"},
		"a pod that is gone": {Kind: a.Kind, Namespace: a.Namespace, ServiceAccount: a.ServiceAccount, PodUID: "nobody"},
	} {
		if w.Resource("node", p) != nil {
			t.Errorf("%s gets a node's Services", name)
		}
	}
}

// A delta carries what changed and leads to the same as the whole.
func TestNodeDelta(t *testing.T) {
	s := fleet(20, 2)
	p := agent(s, "n0")
	w := state.Build(nil, s, state.Options{})
	old := w.Resource("node", p)
	k := source.Key{Namespace: "ns", Name: "s0007"}
	s = with(s, func(s *source.Snapshot) {
		slice := *s.EndpointSlices[k]
		slice.Endpoints = slice.Endpoints[:1]
		s.EndpointSlices[k] = &slice
		delete(s.Services, source.Key{Namespace: "ns", Name: "s0003"})
	})
	w = state.Build(w, s, state.Options{})
	now := w.Resource("node", p)
	d := state.Diff(old, now).GetNodeDelta()
	if len(d.GetUpserted()) != 1 || len(d.GetRemoved()) != 1 || d.Removed[0] != "ns/s0003" || !bytes.Equal(d.BaseVersion, old.Version) {
		t.Fatalf("delta %v", d)
	}
	got, err := iwire.ApplyNode(old.Update.GetNode(), d)
	if err != nil || !iwire.Equal(got, now.Update.GetNode()) {
		t.Errorf("after the delta: %v, %v", got, err)
	}
	if got.Services[0] != old.Update.GetNode().Services[0] {
		t.Error("an unchanged Service was copied")
	}
	// Nothing that nodes forward by: the same version.
	s = with(s, func(s *source.Snapshot) {
		k := source.Key{Namespace: "ns", Name: "s0001"}
		svc := *s.Services[k]
		svc.Annotations = map[string]string{"a": "b"}
		s.Services[k] = &svc
	})
	w = state.Build(w, s, state.Options{})
	if r := w.Resource("node", p); !bytes.Equal(r.Version, now.Version) || r.Revision <= now.Revision {
		t.Errorf("version %x at revision %d after %x at %d", r.Version, r.Revision, now.Version, now.Revision)
	}
	// The node's own facts: the whole.
	s = with(s, func(s *source.Snapshot) { s.Nodes["n0"] = &source.Node{Name: "n0", Zone: "z9"} })
	w = state.Build(w, s, state.Options{})
	if u := state.Diff(now, w.Resource("node", p)); u.GetNode().GetZone() != "z9" {
		t.Errorf("after the node moved: %v", u)
	}
}
