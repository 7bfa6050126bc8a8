package state

import (
	"slices"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/forward"
)

// NodeAgent is the service account, in the control plane's own namespace, that
// node agents run as. Nobody else is told of a whole node.
const (
	NodeAgentNamespace = "heddle-system"
	NodeAgentAccount   = "heddle-node"
)

// node is what the agent of a node programs. The revision is the world's own:
// a replica that lags has no newer content under it.
func (w *World) node(p Peer) *Resource {
	pod := w.podsByUID[p.PodUID]
	if p.Kind != wire.PeerKind_PEER_KIND_NODE || p.Namespace != NodeAgentNamespace || p.ServiceAccount != NodeAgentAccount ||
		pod == nil || pod.Namespace != p.Namespace || pod.ServiceAccount != p.ServiceAccount {
		return nil
	}
	content, version := w.forwards.For(forward.Place{Node: w.snap.Nodes[pod.Node], Services: w.snap.ServiceCIDRs}, w.forwarded)
	return &Resource{Name: "node", Version: version, Revision: w.revision,
		Update: &wire.Update{Name: "node", Version: version, Revision: w.revision, Content: &wire.Update_Node{Node: content}}}
}

// forwarded goes through the Services, in no order.
func (w *World) forwarded(yield func(forward.Item) bool) {
	for key, n := range w.services {
		item := forward.Item{Service: n.forward, Build: func() *wire.NodeService {
			parts := forward.Parts{Service: n.service, Ports: servicePorts(n.service)}
			if !hasVIP(n.service) {
				return nil
			}
			for _, a := range n.service.ClusterIPs {
				if w.vips[a] == key {
					parts.VIPs = append(parts.VIPs, a)
				}
			}
			if len(parts.VIPs) == 0 {
				return nil
			}
			parts.Endpoints = slices.Concat(w.endpoints(n.service, false), w.endpoints(n.service, true))
			return forward.Make(parts)
		}}
		if !yield(item) {
			return
		}
	}
}
