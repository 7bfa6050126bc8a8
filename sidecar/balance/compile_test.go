package balance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

var self = Self{Node: "n1", Zone: "z1", IPs: []netip.Addr{netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("fd00::9")}}

// ep makes a ready endpoint 10.1.0.<n> on node n1 that serves ports.
func ep(n int, ports ...uint32) *wire.Endpoint {
	return &wire.Endpoint{
		Key: fmt.Appendf(nil, "k%d", n), Address: netip.MustParseAddr(fmt.Sprintf("10.1.%d.%d", n/200, n%200)).AsSlice(),
		Ports: ports, Ready: true, Serving: true, Node: "n1", Pod: fmt.Sprintf("pod-%d", n),
		Peer: &wire.Peer{Identity: "spiffe://demo.test/ns/shop/sa/orders"},
	}
}

func service(eps ...*wire.Endpoint) *wire.Destination {
	return &wire.Destination{Kind: &wire.Destination_Service{Service: &wire.Service{
		Namespace: "shop", Name: "orders", Endpoints: eps,
		Ports: []*wire.ServicePort{
			{Name: "http", Port: 80, Protocol: wire.Protocol_PROTOCOL_HTTP1, AppProtocol: "http"},
			{Name: "admin", Port: 81},
			{Name: "dns", Port: 53, Transport: wire.Transport_TRANSPORT_UDP},
		},
	}}}
}

func workload(e *wire.Endpoint) *wire.Destination {
	return &wire.Destination{Kind: &wire.Destination_Workload{Workload: &wire.Workload{
		Endpoint: e, Ports: []*wire.ServicePort{{Name: "http", Port: 8080, Protocol: wire.Protocol_PROTOCOL_HTTP1}},
	}}}
}

// reachable lists all that Pick can give, by trying until it says no more.
func reachable(p *Port) (addrs []string, last telemetry.Reason) {
	var tried []*Endpoint
	for {
		e, reason := p.Pick(tried)
		if e == nil {
			slices.Sort(addrs)
			return addrs, reason
		}
		tried = append(tried, e)
		addrs = append(addrs, e.Addr.String())
	}
}

func with(e *wire.Endpoint, change func(*wire.Endpoint)) *wire.Endpoint {
	change(e)
	return e
}

func TestServiceEligible(t *testing.T) {
	notReady := func(e *wire.Endpoint) { e.Ready, e.Serving = false, false }
	terminating := func(e *wire.Endpoint) { e.Ready, e.Terminating = false, true }
	elsewhere := func(e *wire.Endpoint) { e.Node = "n2" }
	local := func(d *wire.Destination) *wire.Destination {
		d.GetService().InternalTrafficPolicy = wire.TrafficScope_TRAFFIC_SCOPE_LOCAL
		return d
	}
	tests := []struct {
		name   string
		d      *wire.Destination
		want   []string
		reason telemetry.Reason
	}{
		{"all ready", service(ep(1, 8080), ep(2, 8081)), []string{"10.1.0.1:8080", "10.1.0.2:8081"}, telemetry.ReasonConnectFailed},
		{"not ready left out", service(ep(1, 8080), with(ep(2, 8080), notReady)), []string{"10.1.0.1:8080"}, telemetry.ReasonConnectFailed},
		{"port not served", service(ep(1, 0, 9000), ep(2, 8080)), []string{"10.1.0.2:8080"}, telemetry.ReasonConnectFailed},
		{"only terminating", service(with(ep(1, 8080), terminating)), []string{"10.1.0.1:8080"}, telemetry.ReasonConnectFailed},
		{"none", service(), nil, telemetry.ReasonNoEndpoints},
		{"none ready", service(with(ep(1, 8080), notReady)), nil, telemetry.ReasonNoEndpoints},
		{"local has one", local(service(ep(1, 8080), with(ep(2, 8080), elsewhere))), []string{"10.1.0.1:8080"}, telemetry.ReasonConnectFailed},
		{"local has none", local(service(with(ep(2, 8080), elsewhere))), nil, telemetry.ReasonNoLocalEndpoints},
		{"local, none anywhere", local(service()), nil, telemetry.ReasonNoEndpoints},
		{"bad identity is not spoken to", service(with(ep(1, 8080), func(e *wire.Endpoint) { e.Peer.Identity = "orders" })), nil, telemetry.ReasonNoEndpoints},
		{"empty identity is not spoken to", service(with(ep(1, 8080), func(e *wire.Endpoint) { e.Peer.Identity = "" })), nil, telemetry.ReasonNoEndpoints},
		{"bad address", service(with(ep(1, 8080), func(e *wire.Endpoint) { e.Address = []byte{1} })), nil, telemetry.ReasonNoEndpoints},
		{"bad port", service(ep(1, 70000)), nil, telemetry.ReasonNoEndpoints},
		{"gateway", service(with(ep(1, 8080), func(e *wire.Endpoint) { e.GatewayAddress = []byte{10, 0, 0, 1} })), nil, telemetry.ReasonNoEndpoints},
		{"IPv6", service(with(ep(1, 8080), func(e *wire.Endpoint) { e.Address = netip.MustParseAddr("fd00::1").AsSlice() })),
			[]string{"[fd00::1]:8080"}, telemetry.ReasonConnectFailed},
		{"mapped IPv4", service(with(ep(1, 8080), func(e *wire.Endpoint) { e.Address = netip.MustParseAddr("::ffff:10.1.0.1").AsSlice() })),
			[]string{"10.1.0.1:8080"}, telemetry.ReasonConnectFailed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Compile(nil, tt.d, self)
			got, reason := reachable(d.Port(80))
			if !slices.Equal(got, tt.want) || reason != tt.reason {
				t.Errorf("got %v then %q, want %v then %q", got, reason, tt.want, tt.reason)
			}
			if strings.HasPrefix(tt.name, "bad") && len(d.Broken) == 0 {
				t.Error("nothing said of what was left out")
			}
		})
	}
}

func TestPorts(t *testing.T) {
	d := Compile(nil, service(ep(1, 8080, 9000)), self)
	if d.Kind != Service || d.Namespace != "shop" || d.Name != "orders" {
		t.Errorf("%+v", d)
	}
	p := d.Port(80)
	if p.Protocol != wire.Protocol_PROTOCOL_HTTP1 || p.Name != "http" || p.Number != 80 || p.AppProtocol != "http" {
		t.Errorf("%+v", p)
	}
	if e, _ := d.Port(81).Pick(nil); e.Addr.Port() != 9000 {
		t.Errorf("second port goes to %s", e.Addr)
	}
	if d.Port(82) != nil || d.Port(53) != nil {
		t.Error("a port the Service does not have over TCP")
	}

	x := Compile(nil, &wire.Destination{Kind: &wire.Destination_External{}}, self)
	if p := x.Port(4711); x.Kind != External || p == nil || p.Number != 4711 {
		t.Error("External has no such port")
	} else if e, reason := p.Pick(nil); e != nil || reason != telemetry.ReasonOK {
		t.Error("External picked", e, reason)
	}

	for _, odd := range []*wire.Destination{nil, {}} {
		if u := Compile(nil, odd, self); u.Kind != Unknown || u.Port(80) != nil || len(u.Broken) == 0 {
			t.Errorf("not understood, yet %+v", u)
		}
	}
}

func TestEndpointMeaning(t *testing.T) {
	pick := func(e *wire.Endpoint) *Endpoint {
		got, reason := Compile(nil, service(e), self).Port(80).Pick(nil)
		if got == nil {
			t.Fatal(reason)
		}
		return got
	}
	if e := pick(with(ep(1, 8080), func(e *wire.Endpoint) { e.Peer.Http2 = true })); e.ID.String() != "spiffe://demo.test/ns/shop/sa/orders" || !e.HTTP2 || e.Own || e.Pod != "pod-1" {
		t.Errorf("meshed: %+v", e)
	}
	if e := pick(with(ep(1, 8080), func(e *wire.Endpoint) { e.Peer = nil })); !e.ID.IsZero() || e.HTTP2 {
		t.Errorf("outside: %+v", e)
	}
	if e := pick(ep(9, 8080)); !e.Own || !e.ID.IsZero() {
		t.Errorf("own pod: %+v", e)
	}
	if e := pick(with(ep(1, 8080), func(e *wire.Endpoint) { e.Peer.BypassPorts = []uint32{8080}; e.Peer.Http2 = true })); !e.ID.IsZero() || e.HTTP2 {
		t.Errorf("bypassed port: %+v", e)
	}
	if e := pick(with(ep(1, 8080), func(e *wire.Endpoint) { e.Peer.BypassPorts = []uint32{80} })); e.ID.IsZero() {
		t.Errorf("bypass of the Service's number is not the pod's: %+v", e)
	}
}

func TestWorkload(t *testing.T) {
	// A pod's own address goes to the pod, ready or not.
	d := Compile(nil, workload(with(ep(3), func(e *wire.Endpoint) { e.Ready = false })), self)
	if d.Kind != Workload || d.Name != "pod-3" {
		t.Errorf("%+v", d)
	}
	if p := d.Port(8080); p.Protocol != wire.Protocol_PROTOCOL_HTTP1 {
		t.Errorf("declared port: %+v", p)
	}
	p := d.Port(9999)
	e, _ := p.Pick(nil)
	if p.Protocol != wire.Protocol_PROTOCOL_DETECT || e.Addr.String() != "10.1.0.3:9999" || e.ID.IsZero() {
		t.Errorf("undeclared port: %+v %+v", p, e)
	}
	again, _ := d.Port(9999).Pick(nil)
	if again.State != e.State {
		t.Error("state of a port is not kept")
	}
	if e, reason := p.Pick([]*Endpoint{again}); e != nil || reason != telemetry.ReasonConnectFailed {
		t.Error("tried again", e, reason)
	}
	bad := Compile(nil, workload(with(ep(3), func(e *wire.Endpoint) { e.Peer.Identity = "x" })), self)
	if e, reason := bad.Port(80).Pick(nil); e != nil || reason != telemetry.ReasonNoEndpoints {
		t.Error("spoke to a broken endpoint", e, reason)
	}
}

func isGone(s *EndpointState) bool {
	select {
	case <-s.Gone():
		return true
	default:
		return false
	}
}

func states(d *Destination, port uint16) map[string]*EndpointState {
	out := map[string]*EndpointState{}
	for _, e := range d.Port(port).endpoints {
		out[e.Pod] = e.State
	}
	return out
}

func TestStateSurvives(t *testing.T) {
	v1 := Compile(nil, service(ep(1, 8080), ep(2, 8080), ep(3, 8080), ep(4, 8080)), self)
	one := states(v1, 80)
	one["pod-1"].Pool.CompareAndSwap(nil, "pool")

	v2 := Compile(v1, service(
		with(ep(1, 8080), func(e *wire.Endpoint) { e.Zone, e.Weight = "z9", 7 }),
		with(ep(2, 8080), func(e *wire.Endpoint) { e.Ready, e.Serving = false, false }),
		with(ep(3, 8080), func(e *wire.Endpoint) { e.Peer.Identity = "spiffe://demo.test/ns/shop/sa/other" }),
	), self)
	two := states(v2, 80)
	if two["pod-1"] != one["pod-1"] || two["pod-1"].Pool.Load() != "pool" {
		t.Error("state lost with a change of other fields")
	}
	if isGone(one["pod-2"]) {
		t.Error("not ready is not gone")
	}
	if !isGone(one["pod-3"]) || two["pod-3"] == one["pod-3"] || isGone(two["pod-3"]) {
		t.Error("connections to another identity would be used again")
	}
	if !isGone(one["pod-4"]) {
		t.Error("removed is not gone")
	}

	v3 := Compile(v2, service(ep(2, 8080), ep(4, 8080)), self)
	three := states(v3, 80)
	if three["pod-2"] != one["pod-2"] {
		t.Error("state lost while not ready")
	}
	if three["pod-4"] == one["pod-4"] || isGone(three["pod-4"]) {
		t.Error("an endpoint that came back is gone")
	}

	Compile(v3, &wire.Destination{Kind: &wire.Destination_External{}}, self)
	if !isGone(three["pod-2"]) || !isGone(three["pod-4"]) {
		t.Error("the Service went away, its endpoints stay")
	}
}

func TestWorkloadStateSurvives(t *testing.T) {
	v1 := Compile(nil, workload(ep(3)), self)
	a, _ := v1.Port(9999).Pick(nil)
	v2 := Compile(v1, workload(with(ep(3), func(e *wire.Endpoint) { e.Zone = "z7" })), self)
	if b, _ := v2.Port(9999).Pick(nil); b.State != a.State || isGone(a.State) {
		t.Error("state lost")
	}
	v3 := Compile(v2, workload(with(ep(3), func(e *wire.Endpoint) { e.Key = []byte("new pod, same address") })), self)
	if !isGone(a.State) {
		t.Error("another pod has the address, the old one's connections stay")
	}
	late, _ := v1.Port(7777).Pick(nil)
	if !isGone(late.State) {
		t.Error("an old version opened a connection to a pod that is no more")
	}
	if c, _ := v3.Port(9999).Pick([]*Endpoint{a}); c == nil || isGone(c.State) {
		t.Error("the new pod counts as tried")
	}
}
