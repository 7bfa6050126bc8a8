// Package state makes of a source's snapshot what peers are told: one
// immutable World with a resource for each address, each pod's inbound policy,
// the trust bundles and the mesh's settings. It is pure: no I/O, no clock.
// controlplane/serve asks it for resources and differences.
package state

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/access"
	"github.com/heddle-mesh/heddle/controlplane/forward"
	"github.com/heddle-mesh/heddle/controlplane/traffic"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Options are what a World needs besides the snapshot.
type Options struct {
	TrustDomain   string // where the MeshConfig names none; default cluster.local
	ClusterDomain string // of DNS names; default cluster.local
	Roots         *wire.TrustBundles
}

// Peer is whom a resource is for, as its credential says.
type Peer struct {
	Kind                              wire.PeerKind
	Namespace, ServiceAccount, PodUID string
}

// Resource is one named thing at one version. It is read-only.
type Resource struct {
	Name    string
	Version []byte // hash of the content
	// Revision of the world in which something that the content is made of
	// changed last, as far as this process saw; content made first for a later
	// world may carry a later one. Two replicas may differ in it, never in
	// Version, and a replica that lags never has newer content at an equal or
	// older Revision.
	Revision uint64
	Update   *wire.Update // whole form
}

// World is everything at one revision, immutable and safe for concurrent use.
type World struct {
	revision uint64
	snap     *source.Snapshot
	opt      Options
	domain   string // trust domain
	problems []source.Problem

	slicesOf    map[source.Key][]*source.EndpointSlice // by Service, sorted by name
	servicesAt  map[netip.Addr][]source.Key            // whose slices hold the address, sorted
	servicesFor map[source.Key][]source.Key            // whose slices name the pod, sorted
	podsAt      map[netip.Addr][]*source.Pod           // the one that has the address first
	podsByUID   map[string]*source.Pod
	vips        map[netip.Addr]source.Key // ClusterIPs
	outerVIPs   map[netip.Addr]source.Key // external and load balancer addresses
	services    map[source.Key]*serviceNode
	pods        map[source.Key]*podNode
	policies    *access.Set
	traffic     *traffic.Set

	bundle, mesh *cell
	forwards     *forward.List         // the Services as nodes forward them
	left         map[netip.Addr]uint64 // addresses that were known once, and when they went
	base         uint64                // revision of everything that was never known
	externals    *externalMemo
}

// serviceNode is a Service; its cells hold what its VIPs of one family mean.
type serviceNode struct {
	service *source.Service
	v4, v6  *cell
	forward *forward.Service
}

// podNode is a pod that is not over.
type podNode struct {
	pod       *source.Pod
	inbound   *cell
	workloads []addrCell
}

type addrCell struct {
	addr netip.Addr
	cell *cell
}

const (
	defaultDomain = "cluster.local"
	addrPrefix    = "addr/"
)

// Revision of the snapshot that w was built from.
func (w *World) Revision() uint64 { return w.revision }

// PodByUID gives a pod that may hold an identity: nil once it is gone or over.
func (w *World) PodByUID(uid string) *source.Pod { return w.podsByUID[uid] }

// Problems are those of the snapshot and those found while building.
func (w *World) Problems() []source.Problem {
	return append(slices.Clone(w.snap.Problems), w.problems...)
}

// Resource gives what name means to a peer; nil: no such resource. The same
// content gives the same *Resource, with its old revision, from world to world.
func (w *World) Resource(name string, p Peer) *Resource {
	if ip, ok := strings.CutPrefix(name, addrPrefix); ok {
		a, err := netip.ParseAddr(ip)
		if err != nil || a.Zone() != "" || a.Unmap().String() != ip {
			return nil
		}
		return w.address(a, name)
	}
	switch name {
	case "bundle":
		return w.bundle.get(w, func() []entry {
			return []entry{{name, &wire.Update{Content: &wire.Update_Bundles{Bundles: w.opt.Roots}}}}
		}).find(name)
	case "mesh":
		return w.mesh.get(w, func() []entry {
			return []entry{{name, &wire.Update{Content: &wire.Update_Mesh{Mesh: w.settings()}}}}
		}).find(name)
	case "inbound":
		return w.inboundOf(p)
	case "node":
		return w.node(p)
	}
	return nil
}

// address: a ClusterIP before a pod, and a pod before an external address that
// some Service claims, so that nobody can claim a pod's (CVE-2020-8554).
func (w *World) address(a netip.Addr, name string) *Resource {
	if key, ok := w.vips[a]; ok {
		return w.serviceAt(key, a, name)
	}
	if pod := w.podAt(a); pod != nil {
		return w.workloadAt(pod, a, name)
	}
	if key, ok := w.outerVIPs[a]; ok {
		return w.serviceAt(key, a, name)
	}
	since := w.base
	if r, ok := w.left[a]; ok {
		since = r
	}
	return w.externals.get(name, since)
}

// podAt is the pod that has the address now; nil if none.
func (w *World) podAt(a netip.Addr) *source.Pod {
	if at := w.podsAt[a]; len(at) > 0 {
		return at[0]
	}
	return nil
}

func (w *World) serviceAt(key source.Key, a netip.Addr, name string) *Resource {
	n := w.services[key]
	c := n.v4
	if a.Is6() {
		c = n.v6
	}
	return c.get(w, func() []entry { return w.serviceEntries(n.service, a.Is6()) }).find(name)
}

func (w *World) workloadAt(pod *source.Pod, a netip.Addr, name string) *Resource {
	n := w.pods[keyOfPod(pod)]
	if n == nil {
		return nil
	}
	for _, c := range n.workloads {
		if c.addr == a {
			return c.cell.get(w, func() []entry { return []entry{{name, w.workload(pod, a)}} }).find(name)
		}
	}
	return nil
}

// inboundOf: a peer gets the policy of its own pod, and only while that pod
// runs as the account that the credential names.
func (w *World) inboundOf(p Peer) *Resource {
	pod := w.podsByUID[p.PodUID]
	if p.PodUID == "" || pod == nil || pod.Namespace != p.Namespace || pod.ServiceAccount != p.ServiceAccount {
		return nil
	}
	n := w.pods[keyOfPod(pod)]
	if n == nil {
		return nil
	}
	return n.inbound.get(w, func() []entry {
		return []entry{{"inbound", &wire.Update{Content: &wire.Update_Inbound{Inbound: w.inbound(pod)}}}}
	}).find("inbound")
}

func keyOfPod(p *source.Pod) source.Key { return source.Key{Namespace: p.Namespace, Name: p.Name} }

// identity is the SPIFFE ID of a pod (docs/security.md).
func (w *World) identity(p *source.Pod) string {
	return "spiffe://" + w.domain + "/ns/" + p.Namespace + "/sa/" + p.ServiceAccount
}

// settings are what the whole mesh is told.
func (w *World) settings() *wire.MeshSettings {
	m := &wire.MeshSettings{TrustDomain: w.domain, ClusterDomain: w.opt.ClusterDomain}
	if m.ClusterDomain == "" {
		m.ClusterDomain = defaultDomain
	}
	if c := w.snap.Mesh; c != nil {
		m.TraceSampleRatio, m.TraceCollector, m.AccessLog = c.Spec.TraceSampling, c.Spec.TraceCollector, c.Spec.AccessLog
		for _, p := range c.Spec.ExcludedPorts {
			m.ExcludedPorts = append(m.ExcludedPorts, uint32(p))
		}
		slices.Sort(m.ExcludedPorts)
	}
	for _, p := range w.clusterPrefixes() {
		m.ClusterPrefixes = append(m.ClusterPrefixes, prefixBytes(p))
	}
	return m
}

// clusterPrefixes are the nodes' pod ranges and the Services' ranges. VIPs
// outside all of them stand for themselves: a folder need not have ServiceCIDRs.
func (w *World) clusterPrefixes() []netip.Prefix {
	out := slices.Clone(w.snap.ServiceCIDRs)
	for _, n := range w.snap.Nodes {
		out = append(out, n.PodCIDRs...)
	}
	ranges := len(out)
	for a := range w.vips {
		if !slices.ContainsFunc(out[:ranges], func(p netip.Prefix) bool { return p.Contains(a) }) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Compare(b) })
	return slices.Compact(out)
}

func prefixBytes(p netip.Prefix) []byte { return append(p.Addr().AsSlice(), byte(p.Bits())) }
