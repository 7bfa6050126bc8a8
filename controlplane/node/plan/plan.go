// Package plan says what a node does to packets for Services: which flow goes
// to which endpoints, is refused or dropped, and whose source is rewritten. It
// is pure: what the control plane tells and where the node stands come in,
// rules as values go out. Back ends (controlplane/node/nft) write them to the
// kernel; Rules.Trace follows one packet through them, as the expected verdict
// that every back end is tested against.
//
// Semantics are kube-proxy's, but for what docs/conformance.md lists. ClusterIPs
// only so far: a Flow of another kind (NodePort, load balancer) will be another
// key with its own Action.
package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/endpoint"
)

// Proto is a transport protocol by its number in the IP header.
type Proto uint8

// The protocols that Services know.
const (
	TCP  Proto = 6
	UDP  Proto = 17
	SCTP Proto = 132
)

func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("proto-%d", uint8(p))
}

// Flow is what a new connection is known by: where its first packet goes.
type Flow struct {
	Addr  netip.Addr
	Proto Proto
	Port  uint16
}

func (f Flow) String() string {
	return f.Proto.String() + " " + netip.AddrPortFrom(f.Addr, f.Port).String()
}

// Action is what becomes of new packets of a Flow.
type Action struct {
	// Name of the port that the Flow belongs to, in letters that packet
	// filters allow, unique: namespace/name/proto/port/v4.
	Name string
	// Verdict: Usable goes to Endpoints, each with the same chance.
	Verdict   endpoint.Verdict
	Endpoints []netip.AddrPort // sorted, no doubles
	// Serving are the endpoints that a flow which exists may go on with,
	// whatever policy says: the ones chosen from and others that still serve.
	Serving []netip.AddrPort // sorted, no doubles
}

// Service is what one Service asks of this node.
type Service struct {
	Addrs []netip.Addr // its ClusterIPs: their other ports are refused
	Flows map[Flow]Action
	// Local are addresses of this node's endpoints. One of them that calls the
	// Service may get itself, and then its source must be rewritten.
	Local []netip.Addr
}

// Node is where we stand.
type Node struct {
	Name string // as endpoints name it
	Zone string
}

// Compile makes the rules of one Service. What cannot be understood is left
// out and told; an endpoint that is left out never hides the others.
func Compile(ns *wire.NodeService, n Node) (Service, []error) {
	c := compiler{svc: ns.GetService(), node: n, out: Service{Flows: map[Flow]Action{}}}
	for _, b := range c.svc.GetVips() {
		a, ok := netip.AddrFromSlice(b)
		if !ok || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
			c.bad("address %x cannot be a Service's", b)
			continue
		}
		c.out.Addrs = append(c.out.Addrs, a.Unmap())
	}
	c.readEndpoints()
	for i, p := range c.svc.GetPorts() {
		c.port(i, p)
	}
	c.out.Local = c.local()
	return c.out, c.errs
}

// compiler is one Compile.
type compiler struct {
	svc   *wire.Service
	node  Node
	out   Service
	addrs []netip.Addr        // of the good endpoints
	wires []*wire.Endpoint    // likewise
	eps   []endpoint.Endpoint // likewise
	errs  []error
}

func (c *compiler) bad(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("service %s/%s: "+format, append([]any{c.svc.GetNamespace(), c.svc.GetName()}, args...)...))
}

func (c *compiler) readEndpoints() {
	for _, e := range c.svc.GetEndpoints() {
		a, ok := netip.AddrFromSlice(e.GetAddress())
		if a = a.Unmap(); !ok || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
			c.bad("endpoint address %x cannot be reached", e.GetAddress())
			continue
		}
		c.addrs, c.wires = append(c.addrs, a), append(c.wires, e)
		c.eps = append(c.eps, endpoint.Endpoint{
			Ready: e.GetReady(), Serving: e.GetServing(), Terminating: e.GetTerminating(), Node: e.GetNode(), Zone: e.GetZone(),
			HintZones: e.GetHintZones(), HintNodes: e.GetHintNodes(),
		})
	}
}

var protos = map[wire.Transport]Proto{
	wire.Transport_TRANSPORT_TCP: TCP, wire.Transport_TRANSPORT_UDP: UDP, wire.Transport_TRANSPORT_SCTP: SCTP,
}

// port makes the Flows of the Service's i-th port: one for each ClusterIP.
func (c *compiler) port(i int, p *wire.ServicePort) {
	proto, ok := protos[p.GetTransport()]
	if !ok || p.GetPort() == 0 || p.GetPort() > 65535 {
		c.bad("port %q: number %d of transport %s is none", p.GetName(), p.GetPort(), p.GetTransport())
		return
	}
	for _, addr := range c.out.Addrs {
		f := Flow{Addr: addr, Proto: proto, Port: uint16(p.GetPort())}
		if _, taken := c.out.Flows[f]; taken {
			c.bad("port %q: %s stands twice", p.GetName(), f)
			continue
		}
		c.out.Flows[f] = c.action(i, f)
	}
}

// action chooses among the endpoints of the Flow's family that serve the port:
// each family and each port is a world of its own (rules A8, A11).
func (c *compiler) action(port int, f Flow) Action {
	family := "v4"
	if f.Addr.Is6() {
		family = "v6"
	}
	a := Action{Name: fmt.Sprintf("%s/%s/%s/%d/%s", c.svc.GetNamespace(), c.svc.GetName(), f.Proto, f.Port, family)}
	var eps []endpoint.Endpoint
	var at []netip.AddrPort
	for i, e := range c.wires {
		if port >= len(e.GetPorts()) || e.Ports[port] == 0 || e.Ports[port] > 65535 || c.addrs[i].Is4() != f.Addr.Is4() {
			continue
		}
		to := netip.AddrPortFrom(c.addrs[i], uint16(e.Ports[port]))
		eps, at = append(eps, c.eps[i]), append(at, to)
		if e.GetServing() || e.GetReady() {
			a.Serving = append(a.Serving, to)
		}
	}
	local := c.svc.GetInternalTrafficPolicy() == wire.TrafficScope_TRAFFIC_SCOPE_LOCAL
	chosen, verdict := endpoint.Select(eps, endpoint.Client{Node: c.node.Name, Zone: c.node.Zone}, endpoint.Policy{Local: local}, nil)
	a.Verdict = verdict
	for _, i := range chosen {
		a.Endpoints = append(a.Endpoints, at[i])
	}
	a.Endpoints, a.Serving = tidy(a.Endpoints), tidy(a.Serving)
	return a
}

func tidy(list []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// local gives the addresses of endpoints that stand on this node (rule A9).
func (c *compiler) local() []netip.Addr {
	var out []netip.Addr
	for i, e := range c.eps {
		if e.Node != "" && e.Node == c.node.Name {
			out = append(out, c.addrs[i])
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
