package state

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/protocol"
	"github.com/heddle-mesh/heddle/internal/endpoint"
	"github.com/heddle-mesh/heddle/internal/source"
)

// proxyNameLabel gives a Service to another proxy than the cluster's.
const proxyNameLabel = "service.kubernetes.io/service-proxy-name"

// hasVIP: rules A1 and A2 of Service semantics. The rest has no VIP for us;
// packets to one that is left over go as they would without us.
func hasVIP(s *source.Service) bool {
	_, others := s.Labels[proxyNameLabel]
	return !s.Headless && s.Type != "ExternalName" && len(s.ClusterIPs) > 0 && !others
}

// outerVIPs are addresses outside the cluster's ranges that lead pods to the
// Service too. Source ranges only the node can obey, so it is left to it.
func outerVIPs(s *source.Service) []netip.Addr {
	out := slices.Clone(s.ExternalIPs)
	if len(s.LoadBalancerRanges) == 0 {
		out = append(out, s.LoadBalancerIPs...)
	}
	return out
}

// serviceEntries makes the content of a Service's VIPs of one family. As in
// the kernel's forwarding, each family is a world of its own (rule A11): a VIP
// leads to endpoints of its own family.
func (w *World) serviceEntries(s *source.Service, v6 bool) []entry {
	svc := &wire.Service{
		Namespace:                s.Namespace,
		Name:                     s.Name,
		Ports:                    w.policed(s, servicePorts(s)),
		Endpoints:                w.endpoints(s, v6),
		InternalTrafficPolicy:    scope(s.InternalLocal),
		ExternalTrafficPolicy:    scope(s.ExternalLocal),
		TrafficDistribution:      distribution(s.TrafficDistribution),
		PublishNotReadyAddresses: s.PublishNotReady,
	}
	if s.ClientIPAffinity > 0 {
		svc.SessionAffinity = &wire.SessionAffinity{ClientIp: true, TimeoutSeconds: uint32(s.ClientIPAffinity.Seconds())}
	}
	// The internal policy binds ClusterIPs only, and the external one nobody
	// inside the cluster (rules B5, B7).
	inner := &wire.Destination{Kind: &wire.Destination_Service{Service: svc}}
	outer := inner
	if s.InternalLocal {
		all := bare(svc)
		all.Endpoints, all.InternalTrafficPolicy = svc.Endpoints, scope(false)
		outer = &wire.Destination{Kind: &wire.Destination_Service{Service: all}}
	}
	var out []entry
	var vips [][]byte
	for i, a := range slices.Concat(s.ClusterIPs, outerVIPs(s)) {
		owner, dest := w.vips, inner
		if i >= len(s.ClusterIPs) {
			owner, dest = w.outerVIPs, outer
		}
		if owner[a] != keyOfService(s) {
			continue
		}
		vips = append(vips, a.AsSlice())
		if a.Is6() == v6 {
			out = append(out, entry{addrPrefix + a.String(), &wire.Update{Content: &wire.Update_Destination{Destination: dest}}})
		}
	}
	inner.GetService().Vips, outer.GetService().Vips = vips, vips
	return out
}

func scope(local bool) wire.TrafficScope {
	if local {
		return wire.TrafficScope_TRAFFIC_SCOPE_LOCAL
	}
	return wire.TrafficScope_TRAFFIC_SCOPE_CLUSTER
}

func distribution(s string) wire.TrafficDistribution {
	switch s {
	case "PreferClose", "PreferSameZone":
		return wire.TrafficDistribution_TRAFFIC_DISTRIBUTION_PREFER_SAME_ZONE
	case "PreferSameNode":
		return wire.TrafficDistribution_TRAFFIC_DISTRIBUTION_PREFER_SAME_NODE
	}
	return wire.TrafficDistribution_TRAFFIC_DISTRIBUTION_ANY
}

// policed adds what TrafficPolicies say to the ports.
func (w *World) policed(s *source.Service, ports []*wire.ServicePort) []*wire.ServicePort {
	for _, p := range ports {
		if p.Transport == wire.Transport_TRANSPORT_TCP {
			p.TrafficPolicy = w.traffic.Policy(keyOfService(s), uint16(p.Port))
		}
	}
	return ports
}

func servicePorts(s *source.Service) []*wire.ServicePort {
	var out []*wire.ServicePort
	for _, p := range s.Ports {
		out = append(out, &wire.ServicePort{
			Name: p.Name, Port: uint32(p.Port), Transport: protocol.Transport(p.Protocol), AppProtocol: p.AppProtocol,
			Protocol: protocol.Of(p.AppProtocol, p.Name, p.Protocol), NodePort: uint32(p.NodePort),
		})
	}
	return out
}

// row is one endpoint on its way: an address, its number for each port of the
// Service (rule A7; 0: none), and what the slice says of it.
type row struct {
	addr  netip.Addr
	ports []uint32
	ep    *source.SliceEndpoint
	pod   *source.Pod
}

// endpoints joins the slices of a Service, in the order of their keys.
func (w *World) endpoints(s *source.Service, v6 bool) []*wire.Endpoint {
	var rows []row
	at := map[netip.Addr][]int{} // rows of an address
	for _, slice := range w.slicesOf[keyOfService(s)] {
		if slice.Headless || slice.IPv6 != v6 { // rules A3, A4
			continue
		}
		ports := joinPorts(s, slice)
		if ports == nil {
			continue
		}
		for i := range slice.Endpoints {
			ep := &slice.Endpoints[i]
			pod, ok := w.behind(slice, ep)
			if !ok {
				continue
			}
			r := row{ep.Address, ports, ep, pod}
			if keep := mergeRow(rows, at[r.addr], &r); keep {
				at[r.addr] = append(at[r.addr], len(rows))
				rows = append(rows, r)
			}
		}
	}
	out := make([]*wire.Endpoint, 0, len(rows))
	for i := range rows {
		if r := &rows[i]; slices.ContainsFunc(r.ports, func(n uint32) bool { return n != 0 }) {
			e := w.endpoint(r)
			if len(at[r.addr]) > 1 {
				e.Key = rowKey(r)
			}
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *wire.Endpoint) int { return bytes.Compare(a.Key, b.Key) })
	return out
}

// joinPorts gives a slice's number for each port of the Service, by name and
// protocol; nil if it serves none of them.
func joinPorts(s *source.Service, slice *source.EndpointSlice) []uint32 {
	var out []uint32
	for i, p := range s.Ports {
		for _, sp := range slice.Ports {
			if sp.Port != 0 && sp.Name == p.Name && sp.Protocol == p.Protocol {
				if out == nil {
					out = make([]uint32, len(s.Ports))
				}
				out[i] = uint32(sp.Port)
				break
			}
		}
	}
	return out
}

// mergeRow puts r beside the rows of the same address, so that no ip:port of a
// port stands twice (rule A5); false: r is in them now.
func mergeRow(rows []row, same []int, r *row) bool {
	for _, i := range same {
		old := &rows[i]
		better := endpoint.Better(conditions(r.ep), conditions(old.ep))
		if slices.Equal(old.ports, r.ports) {
			if better {
				*old = *r
			}
			return false
		}
		if alike(old, r) && disjoint(old.ports, r.ports) {
			old.ports = slices.Clone(old.ports)
			for p, n := range r.ports {
				old.ports[p] += n
			}
			return false
		}
		for p, n := range r.ports {
			if n == 0 || old.ports[p] != n {
				continue
			}
			loser := r
			if better {
				loser = old
			}
			loser.ports = slices.Clone(loser.ports)
			loser.ports[p] = 0
		}
	}
	return true
}

func disjoint(a, b []uint32) bool {
	for i := range a {
		if a[i] != 0 && b[i] != 0 {
			return false
		}
	}
	return true
}

// alike: the two say the same of the endpoint, but for its ports.
func alike(a, b *row) bool {
	x, y := a.ep, b.ep
	return a.pod == b.pod && x.Ready == y.Ready && x.Serving == y.Serving && x.Terminating == y.Terminating &&
		x.Node == y.Node && x.Zone == y.Zone && slices.Equal(x.HintZones, y.HintZones) && slices.Equal(x.HintNodes, y.HintNodes)
}

func conditions(e *source.SliceEndpoint) endpoint.Endpoint {
	return endpoint.Endpoint{Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating}
}

// rowKey tells rows of one address apart, by their first number; the address
// alone is the key of the others, so that it outlives a change of ports.
func rowKey(r *row) []byte {
	key := r.addr.AsSlice()
	for _, n := range r.ports {
		if n != 0 {
			return binary.BigEndian.AppendUint16(key, uint16(n))
		}
	}
	return key
}

// behind gives the pod behind an endpoint, nil if it is none. False: the slice
// lags, its pod is gone or another has the address; sending there would be
// sending to somebody else, and whether in plaintext nobody can say.
func (w *World) behind(slice *source.EndpointSlice, ep *source.SliceEndpoint) (*source.Pod, bool) {
	holder := w.podAt(ep.Address)
	if ep.Target.Kind != "Pod" {
		return holder, true
	}
	pod := w.snap.Pods[targetKey(slice, ep.Target)]
	switch {
	case pod == nil || over(pod):
		return nil, false
	case pod == holder || pod.HostNetwork:
		return pod, true
	case holder == nil && len(pod.IPs) == 0: // the slice came before the pod's status
		return pod, true
	}
	return nil, false
}

func (w *World) endpoint(r *row) *wire.Endpoint {
	e := &wire.Endpoint{
		Key: r.addr.AsSlice(), Address: r.addr.AsSlice(), Ports: r.ports,
		Ready: r.ep.Ready, Serving: r.ep.Serving, Terminating: r.ep.Terminating,
		Node: r.ep.Node, Zone: r.ep.Zone, HintZones: r.ep.HintZones, HintNodes: r.ep.HintNodes,
	}
	if r.pod != nil {
		w.describe(e, r.pod)
	}
	if n := w.snap.Nodes[e.Node]; e.Zone == "" && n != nil {
		e.Zone = n.Zone
	}
	return e
}

// describe adds what the pod says.
func (w *World) describe(e *wire.Endpoint, p *source.Pod) {
	e.Pod, e.Namespace, e.Workload = p.Name, p.Namespace, workloadName(p)
	if p.Meshed && !p.HostNetwork {
		e.Peer = &wire.Peer{Identity: w.identity(p), BypassPorts: protocol.Bypassed(p, e.Ports)}
	}
}

// workloadName is the owner's; of a ReplicaSet that a Deployment made, the
// Deployment's.
func workloadName(p *source.Pod) string {
	if h := p.Labels["pod-template-hash"]; h != "" && p.Owner.Kind == "ReplicaSet" {
		return strings.TrimSuffix(p.Owner.Name, "-"+h)
	}
	return cmp.Or(p.Owner.Name, p.Name)
}
