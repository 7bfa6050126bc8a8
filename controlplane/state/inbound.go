package state

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/source"
)

// inbound is what a pod's sidecar enforces.
func (w *World) inbound(p *source.Pod) *wire.InboundPolicy {
	out := &wire.InboundPolicy{
		Pod: p.Name, Namespace: p.Namespace, Node: p.Node,
		Protocols: w.portsOf(p),
	}
	w.policies.Apply(out, p, w.snap.Mesh)
	for _, pr := range p.Probes {
		out.Probes = append(out.Probes, &wire.Probe{Port: uint32(pr.Port), Path: pr.Path})
	}
	slices.SortFunc(out.Probes, func(a, b *wire.Probe) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Path, b.Path))
	})
	if n := w.snap.Nodes[p.Node]; n != nil {
		out.Zone = n.Zone
		for _, a := range w.probeSources(n) {
			out.NodeAddresses = append(out.NodeAddresses, a.AsSlice())
		}
	}
	return out
}

// probeSources are where a node's probes come from: its addresses and, with
// most network plugins, the first address of its pod ranges, which is the
// gateway's and never a pod's. Should a pod have it, it is not trusted.
func (w *World) probeSources(n *source.Node) []netip.Addr {
	out := slices.Clone(n.Addresses)
	for _, c := range n.PodCIDRs {
		if gw := gateway(c); c.Contains(gw) && len(w.podsAt[gw]) == 0 {
			out = append(out, gw)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// gateway is the first address of a pod range.
func gateway(c netip.Prefix) netip.Addr { return c.Masked().Addr().Next() }
