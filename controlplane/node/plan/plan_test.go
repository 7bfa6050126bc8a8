package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
	"github.com/heddle-mesh/heddle/controlplane/node/scenario"
)

func TestScenarios(t *testing.T) {
	for _, s := range scenario.Read(t, "testdata") {
		rules := s.Rules(t)
		for _, c := range s.Checks {
			if got := rules.Trace(c.Packet).String(); got != c.Want {
				t.Errorf("%s:%d: from %s to %s: %s, want %s", s.Name, c.Line, c.Packet.From, c.Packet.To, got, c.Want)
			}
		}
	}
}

// What cannot be understood is told with its Service and hides nothing else.
func TestCompileLeavesOut(t *testing.T) {
	svc := &wire.Service{
		Namespace: "shop", Name: "orders", Vips: [][]byte{{10, 96, 0, 1}, {1, 2}, {0, 0, 0, 0}, {127, 0, 0, 1}},
		Ports: []*wire.ServicePort{{Name: "good", Port: 80}, {Name: "none"}, {Name: "high", Port: 70000}, {Name: "double", Port: 80}, {Name: "what", Port: 1, Transport: 9}},
		Endpoints: []*wire.Endpoint{
			{Address: []byte{10, 244, 1, 5}, Ports: []uint32{8080}, Ready: true, Serving: true},
			{Address: []byte{127, 0, 0, 1}, Ports: []uint32{8080}, Ready: true},
			{Address: []byte{1}, Ports: []uint32{8080}, Ready: true},
			{Address: []byte{10, 244, 1, 6}, Ports: []uint32{80800}, Ready: true},
			{Address: []byte{10, 244, 1, 7}, Ready: true},
		},
	}
	got, errs := plan.Compile(&wire.NodeService{Service: svc}, plan.Node{Name: "n1"})
	if s := fmt.Sprint(got.Addrs, got.Flows); s != "[10.96.0.1] map[tcp 10.96.0.1:80:{shop/orders/tcp/80/v4 usable [10.244.1.5:8080] [10.244.1.5:8080]}]" {
		t.Errorf("rules: %s", s)
	}
	if len(errs) != 9 {
		t.Errorf("%d errors: %v", len(errs), errs)
	}
	for _, err := range errs {
		if !strings.HasPrefix(err.Error(), "service shop/orders: ") {
			t.Errorf("error without its Service: %v", err)
		}
	}
}

func TestParsePrefixes(t *testing.T) {
	got, errs := plan.ParsePrefixes([][]byte{{10, 96, 0, 0, 16}, nil, {10, 96, 0, 0}, {10, 96, 0, 0, 33}, append(make([]byte, 16), 112)})
	if fmt.Sprint(got) != "[10.96.0.0/16 ::/112]" || len(errs) != 3 {
		t.Errorf("%v, %v", got, errs)
	}
}

// FuzzCompile: whatever is told, no panic, and nothing impossible comes out.
func FuzzCompile(f *testing.F) {
	f.Add([]byte{10, 96, 0, 1}, uint32(80), []byte{10, 0, 0, 1}, uint32(8080), true)
	f.Add([]byte{}, uint32(70000), []byte{127, 0, 0, 1}, uint32(0), false)
	f.Fuzz(func(t *testing.T, vip []byte, port uint32, addr []byte, to uint32, ready bool) {
		s, _ := plan.Compile(&wire.NodeService{Service: &wire.Service{
			Name: "s", Vips: [][]byte{vip}, Ports: []*wire.ServicePort{{Port: port}},
			Endpoints: []*wire.Endpoint{{Address: addr, Ports: []uint32{to}, Ready: ready}},
		}}, plan.Node{Name: "n"})
		for flow, a := range s.Flows {
			if flow.Port == 0 || !flow.Addr.IsValid() {
				t.Errorf("flow %s", flow)
			}
			for _, e := range a.Endpoints {
				if e.Port() == 0 || e.Addr().Is4() != flow.Addr.Is4() {
					t.Errorf("%s leads to %s", flow, e)
				}
			}
		}
	})
}
