package balance

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/endpoint"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// defaultAffinity is Kubernetes' for ClientIP affinity without a timeout.
const defaultAffinity = 3 * time.Hour

// site is one place as the wire describes it, checked.
type site struct {
	key    string
	addr   netip.Addr
	id     spiffeid.ID // zero: outside the mesh
	bypass []uint32    // ports its redirect skips: plaintext
	http2  bool
	own    bool
	pod    string
	weight uint32
	ports  []uint32
	rules  endpoint.Endpoint
}

// Compile builds a version from the wire form. Endpoints that prev (nil: none)
// already had keep their state; the states of those that are no more are
// marked gone. Calls for one destination come one after the other, each with
// the result of the one before.
func Compile(prev *Destination, d *wire.Destination, self Self) *Destination {
	next := &Destination{}
	if prev != nil {
		next.ledger = prev.ledger
	} else {
		next.ledger = newLedger()
	}
	next.version = next.ledger.begin()
	switch k := d.GetKind().(type) {
	case *wire.Destination_External:
		next.Kind = External
	case *wire.Destination_Service:
		next.Kind = Service
		next.compileService(k.Service, self)
	case *wire.Destination_Workload:
		next.Kind = Workload
		next.compileWorkload(k.Workload, self)
	default:
		// A newer control plane's kind: reading it as External would send in
		// plaintext what may have to be mTLS.
		next.Broken = append(next.Broken, "a kind of destination this version does not know")
	}
	next.ledger.finish(next.keeps)
	return next
}

func (d *Destination) compileService(s *wire.Service, self Self) {
	d.Namespace, d.Name = s.GetNamespace(), s.GetName()
	if a := s.GetSessionAffinity(); a.GetClientIp() {
		d.Affinity = time.Duration(a.GetTimeoutSeconds()) * time.Second
		if d.Affinity == 0 {
			d.Affinity = defaultAffinity
		}
	}
	sites := make([]*site, 0, len(s.GetEndpoints()))
	for _, e := range s.GetEndpoints() {
		if at := d.site(e, self); at != nil {
			sites = append(sites, at)
		}
	}
	client := endpoint.Client{Node: self.Node, Zone: self.Zone}
	policy := endpoint.Policy{Local: s.GetInternalTrafficPolicy() == wire.TrafficScope_TRAFFIC_SCOPE_LOCAL}
	d.ports = make(map[uint16]*Port, len(s.GetPorts()))
	for i, sp := range s.GetPorts() {
		if p := d.newPort(sp); p != nil && d.ports[p.Number] == nil {
			p.account = d.ledger.account(p.Number)
			p.fill(d, i, sites, func(eps []endpoint.Endpoint) ([]int, endpoint.Verdict) {
				return endpoint.Select(eps, client, policy, make([]int, 0, len(eps)))
			})
			d.ports[p.Number] = p
		}
	}
}

func (d *Destination) compileWorkload(w *wire.Workload, self Self) {
	e := w.GetEndpoint()
	d.Namespace, d.Name = e.GetNamespace(), e.GetPod()
	d.workload = d.site(e, self)
	d.account = d.ledger.account(0)
	d.ports = make(map[uint16]*Port, len(w.GetPorts()))
	for _, sp := range w.GetPorts() {
		if p := d.newPort(sp); p != nil && d.ports[p.Number] == nil {
			d.ports[p.Number] = p
		}
	}
}

// newPort gives nil for a port that no TCP connection can mean.
func (d *Destination) newPort(sp *wire.ServicePort) *Port {
	if sp.GetTransport() != wire.Transport_TRANSPORT_TCP {
		return nil
	}
	if sp.GetPort() == 0 || sp.GetPort() > 65535 {
		d.Broken = append(d.Broken, fmt.Sprintf("port %q: number %d", sp.GetName(), sp.GetPort()))
		return nil
	}
	return &Port{Number: uint16(sp.GetPort()), Name: sp.GetName(), Protocol: sp.GetProtocol(), AppProtocol: sp.GetAppProtocol(),
		Policy: compilePolicy(sp.GetTrafficPolicy()), born: d.ledger.born, none: telemetry.ReasonNoEndpoints}
}

// fill gives the port the endpoints that serve it (number at index of their
// ports) and may be reached. The rules see only those, as kube-proxy's do.
func (p *Port) fill(d *Destination, index int, sites []*site, choose func([]endpoint.Endpoint) ([]int, endpoint.Verdict)) {
	all := make([]*Endpoint, 0, len(sites))
	weights := make([]uint32, 0, len(sites))
	rules := make([]endpoint.Endpoint, 0, len(sites))
	for _, at := range sites {
		if index >= len(at.ports) || at.ports[index] == 0 {
			continue
		}
		e := at.at(uint16(at.ports[index]))
		// State of endpoints that are not eligible now is kept as well: their
		// connections live on, and they may come back.
		e.State = d.ledger.state(at.stateKey(e))
		all = append(all, e)
		weights = append(weights, at.weight)
		rules = append(rules, at.rules)
	}
	eligible, verdict := choose(rules)
	if verdict == endpoint.Drop {
		p.none = telemetry.ReasonNoLocalEndpoints
	}
	if verdict != endpoint.Usable {
		p.resting = all
		return
	}
	p.endpoints = make([]*Endpoint, len(eligible))
	sums := make([]uint64, len(eligible))
	var sum uint64
	equal := true
	for i, j := range eligible {
		p.endpoints[i] = all[j]
		p.endpoints[i].weight = float64(weights[j])
		sum += uint64(weights[j])
		sums[i] = sum
		equal = equal && weights[j] == weights[eligible[0]]
	}
	if !equal {
		p.weights = sums
	}
	for _, j := range eligible {
		all[j] = nil
	}
	p.resting = slices.DeleteFunc(all, func(e *Endpoint) bool { return e == nil })
}

// site checks what the wire says of an endpoint; nil, and a line in Broken,
// if it cannot be spoken to as it wants to be.
func (d *Destination) site(e *wire.Endpoint, self Self) *site {
	broken := func(format string, args ...any) *site {
		d.Broken = append(d.Broken, fmt.Sprintf("endpoint %x of pod %q: ", e.GetKey(), e.GetPod())+fmt.Sprintf(format, args...))
		return nil
	}
	addr, ok := netip.AddrFromSlice(e.GetAddress())
	if !ok {
		return broken("address of %d bytes", len(e.GetAddress()))
	}
	if len(e.GetGatewayAddress()) > 0 {
		return broken("behind a gateway, which this version cannot reach")
	}
	for _, p := range e.GetPorts() {
		if p > 65535 {
			return broken("port number %d", p)
		}
	}
	s := &site{
		key: string(e.GetKey()), addr: addr.Unmap(), http2: e.GetPeer().GetHttp2(), pod: e.GetPod(),
		weight: max(e.GetWeight(), 1), ports: e.GetPorts(), bypass: e.GetPeer().GetBypassPorts(),
		rules: endpoint.Endpoint{
			Ready: e.GetReady(), Serving: e.GetServing(), Terminating: e.GetTerminating(),
			Node: e.GetNode(), Zone: e.GetZone(), HintZones: e.GetHintZones(), HintNodes: e.GetHintNodes(),
		},
	}
	s.own = slices.Contains(self.IPs, s.addr)
	if e.GetPeer() != nil {
		id, err := spiffeid.FromString(e.GetPeer().GetIdentity())
		if err != nil || id.Path() == "" {
			return broken("identity %q is no workload's SPIFFE ID", e.GetPeer().GetIdentity())
		}
		s.id = id
	}
	return s
}

// at is the endpoint of a port number, without its state.
func (s *site) at(port uint16) *Endpoint {
	e := &Endpoint{Addr: netip.AddrPortFrom(s.addr, port), Own: s.own, Pod: s.pod, weight: 1}
	if !s.own && !slices.Contains(s.bypass, uint32(port)) {
		e.ID = s.id
		e.HTTP2 = s.http2 && !s.id.IsZero()
	}
	return e
}

// stateKey holds all that a pooled connection depends on: when the identity
// expected at an address changes, its connections must not be used again.
func (s *site) stateKey(e *Endpoint) stateKey {
	return stateKey{key: s.key, addr: e.Addr, id: e.ID, own: e.Own}
}

// keeps says whether a workload's state, made lazily for a port, still holds.
func (d *Destination) keeps(k stateKey) bool {
	return d.workload != nil && d.workload.stateKey(d.workload.at(k.addr.Port())) == k
}

// pickWeighted gives an index drawn by weight; r is below the sum of weights.
func (p *Port) pickWeighted(r uint64) int {
	return sort.Search(len(p.weights), func(i int) bool { return p.weights[i] > r })
}
