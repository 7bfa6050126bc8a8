package node

import (
	"maps"
	"net/netip"
	"slices"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
	"github.com/heddle-mesh/heddle/internal/endpoint"
)

// apiService is the API server's Service.
const apiService = "default/kubernetes"

// bootstrap is the API server's Service by what we were started with: without
// it neither the control plane nor the network plugin can start. nil: we were
// not given what it takes.
func (a *agent) bootstrap() *pb.NodeService {
	vip, err := netip.ParseAddrPort(a.cfg.API.API)
	if err != nil {
		return nil
	}
	s := &pb.Service{Namespace: "default", Name: "kubernetes", Vips: [][]byte{vip.Addr().AsSlice()},
		Ports: []*pb.ServicePort{{Name: "https", Port: uint32(vip.Port())}}}
	for _, e := range a.cfg.API.Servers {
		if e.Addr() == vip.Addr() {
			return nil // the environment names a real server: there is no Service address to lead anywhere
		}
		if e.Addr().Is4() != vip.Addr().Is4() {
			continue // no packet to one family comes out as one of the other
		}
		s.Endpoints = append(s.Endpoints, &pb.Endpoint{Key: []byte(e.String()), Address: e.Addr().AsSlice(), Ports: []uint32{uint32(e.Port())}, Ready: true, Serving: true})
	}
	if len(s.Endpoints) == 0 {
		return nil // better nothing than a refusal: something else may lead there
	}
	return &pb.NodeService{Service: s}
}

// checkAPI says what we were not started with.
func (a *agent) checkAPI() {
	api := a.cfg.API.API
	vip, err := netip.ParseAddrPort(api)
	switch {
	case api == "":
		a.log.Error("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: the API server cannot be asked where the control plane is; start the agent as a pod of the cluster, or set them")
	case err != nil: // a name: there is no Service address to lead anywhere
	case len(a.cfg.API.Servers) == 0:
		a.log.Warn("no API server is named by --api-server: until the control plane tells, its Service address leads nowhere, unless something else leads it", "service_address", api)
	case !slices.ContainsFunc(a.cfg.API.Servers, func(s netip.AddrPort) bool { return s.Addr().Is4() == vip.Addr().Is4() }):
		a.log.Warn("no API server that --api-server names is of the family of its Service address, which leads nowhere until the control plane tells; name one", "service_address", api)
	}
}

// reachable leads the API server's Service address also to the servers that we
// were started with, unless the control plane told better in this run (certain)
// and names one that works. What is kept on disk may be of before the servers
// moved, and a list without any is none to go by: if it alone counted, neither
// the control plane nor the network plugin could come to an API server and
// learn of the new ones.
func reachable(told, servers plan.Service, certain bool) plan.Service {
	out := plan.Service{Addrs: slices.Clone(told.Addrs), Flows: map[plan.Flow]plan.Action{}, Local: told.Local}
	maps.Copy(out.Flows, told.Flows)
	for f, given := range servers.Flows {
		a, known := out.Flows[f]
		works := a.Verdict == endpoint.Usable
		switch {
		case !known:
			a = given
		case works && certain:
			continue
		case works:
			a.Endpoints = union(a.Endpoints, given.Endpoints)
			a.Serving = union(a.Serving, given.Serving)
		default:
			a.Verdict, a.Endpoints, a.Serving = given.Verdict, given.Endpoints, union(a.Serving, given.Serving)
		}
		out.Flows[f] = a
	}
	for _, a := range servers.Addrs {
		if !slices.Contains(out.Addrs, a) {
			out.Addrs = append(out.Addrs, a)
		}
	}
	return out
}

func union(a, b []netip.AddrPort) []netip.AddrPort {
	out := slices.Concat(a, b)
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}
