package state

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/protocol"
	"github.com/heddle-mesh/heddle/internal/source"
)

// workload is what a pod's own address means: the pod, ready or not, with the
// protocols that Services know of its ports.
func (w *World) workload(p *source.Pod, a netip.Addr) *wire.Update {
	e := &wire.Endpoint{
		Key: a.AsSlice(), Address: a.AsSlice(),
		Ready: p.Ready, Serving: p.Ready, Terminating: p.Terminating, Node: p.Node,
	}
	w.describe(e, p)
	if n := w.snap.Nodes[p.Node]; n != nil {
		e.Zone = n.Zone
	}
	wl := &wire.Workload{Endpoint: e, Ports: w.portsOf(p)}
	return &wire.Update{Content: &wire.Update_Destination{Destination: &wire.Destination{Kind: &wire.Destination_Workload{Workload: wl}}}}
}

// portsOf gives the ports of a pod that are known, by their own numbers. What
// a Service says of one, with an appProtocol or a telling name, goes before
// the name that the pod gives it; of several Services the first by name that
// says anything.
func (w *World) portsOf(p *source.Pod) []*wire.ServicePort {
	type key struct {
		port uint16
		l4   string
	}
	found := map[key]*wire.ServicePort{}
	learn := func(k key, name, app string) {
		proto := protocol.Of(app, name, k.l4)
		if had := found[k]; had == nil || had.Protocol == wire.Protocol_PROTOCOL_DETECT && proto != wire.Protocol_PROTOCOL_DETECT {
			found[k] = &wire.ServicePort{Name: name, Port: uint32(k.port), Transport: protocol.Transport(k.l4), AppProtocol: app, Protocol: proto}
		}
	}
	for _, svc := range w.servicesOfPod(p) {
		s := w.snap.Services[svc]
		for _, slice := range w.slicesOf[svc] {
			if s == nil || !holds(slice, p) {
				continue
			}
			for _, sp := range slice.Ports {
				if sp.Port == 0 {
					continue
				}
				app := sp.AppProtocol
				for _, port := range s.Ports {
					if port.Name == sp.Name && port.Protocol == sp.Protocol {
						app = cmp.Or(port.AppProtocol, app)
					}
				}
				learn(key{sp.Port, sp.Protocol}, sp.Name, app)
			}
		}
	}
	for _, cp := range p.Ports {
		learn(key{cp.Port, cp.Protocol}, cp.Name, "")
	}
	out := make([]*wire.ServicePort, 0, len(found))
	for _, sp := range found {
		out = append(out, sp)
	}
	slices.SortFunc(out, func(a, b *wire.ServicePort) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Transport, b.Transport))
	})
	return out
}

// servicesOfPod are the Services that have the pod among their endpoints.
func (w *World) servicesOfPod(p *source.Pod) []source.Key {
	var out []source.Key
	if p.HostNetwork {
		return nil // its address is the node's, and everybody's on it
	}
	for _, a := range p.IPs {
		out = append(out, w.servicesAt[a]...)
	}
	slices.SortFunc(out, compareKeys)
	return slices.Compact(out)
}

func holds(s *source.EndpointSlice, p *source.Pod) bool {
	return slices.ContainsFunc(s.Endpoints, func(e source.SliceEndpoint) bool { return slices.Contains(p.IPs, e.Address) })
}
