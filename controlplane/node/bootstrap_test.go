package node

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/find"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
)

func started(api string, servers ...string) *agent {
	cfg := Config{Node: "n1", API: find.Config{API: api}}
	for _, s := range servers {
		cfg.API.Servers = append(cfg.API.Servers, netip.MustParseAddrPort(s))
	}
	return &agent{cfg: cfg, log: slog.New(slog.DiscardHandler)}
}

// kubernetes is the API server's Service as the control plane tells of it.
func kubernetes(vip string, endpoints ...string) *pb.NodeServices {
	s := &pb.Service{Namespace: "default", Name: "kubernetes", Vips: [][]byte{netip.MustParseAddr(vip).AsSlice()}, Ports: []*pb.ServicePort{{Name: "https", Port: 443}}}
	for _, e := range endpoints {
		at := netip.MustParseAddrPort(e)
		s.Endpoints = append(s.Endpoints, &pb.Endpoint{Key: []byte(e), Address: at.Addr().AsSlice(), Ports: []uint32{uint32(at.Port())}, Ready: true, Serving: true})
	}
	return &pb.NodeServices{Services: []*pb.NodeService{{Service: s}}}
}

// Where the API server's Service address leads.
func TestAPIServersAddress(t *testing.T) {
	const flag, other, moved = "192.0.2.1:6443", "192.0.2.2:6443", "192.0.2.9:6443"
	for name, tc := range map[string]struct {
		agent *agent
		told  *pb.NodeServices
		met   bool
		want  string // endpoints of 10.96.0.1:443 or [fd96::1]:443; empty: it is not ours
	}{
		"nothing told":                        {started("10.96.0.1:443", flag, other), nil, false, flag + " " + other},
		"kept, the servers moved":             {started("10.96.0.1:443", flag), kubernetes("10.96.0.1", moved), false, flag + " " + moved},
		"kept, as ever":                       {started("10.96.0.1:443", flag), kubernetes("10.96.0.1", flag), false, flag},
		"kept, none was there":                {started("10.96.0.1:443", flag), kubernetes("10.96.0.1"), false, flag},
		"kept, another address":               {started("10.96.0.1:443", flag), kubernetes("10.97.0.1", moved), false, flag},
		"told":                                {started("10.96.0.1:443", flag), kubernetes("10.96.0.1", moved), true, moved},
		"told without an endpoint":            {started("10.96.0.1:443", flag), kubernetes("10.96.0.1"), true, flag},
		"told without the Service":            {started("10.96.0.1:443", flag), &pb.NodeServices{}, true, flag},
		"no flag":                             {started("10.96.0.1:443"), kubernetes("10.96.0.1", moved), false, moved},
		"no flag, nothing told":               {started("10.96.0.1:443"), nil, false, ""},
		"no environment":                      {started("", flag), nil, false, ""},
		"a name":                              {started("api.example:443", flag), nil, false, ""},
		"the environment names a real server": {started(flag, flag, other), nil, false, ""},
		"servers of another family":           {started("10.96.0.1:443", "[2001:db8::1]:6443"), nil, false, ""},
		"one server of the family":            {started("10.96.0.1:443", "[2001:db8::1]:6443", flag), nil, false, flag},
		"IPv6 alone":                          {started("[fd96::1]:443", "[2001:db8::1]:6443"), nil, false, "[2001:db8::1]:6443"},
	} {
		p := &programmer{agent: tc.agent, services: map[string]compiled{}}
		p.met.Store(tc.met)
		var told *pb.Update
		if tc.told != nil {
			told = &pb.Update{Content: &pb.Update_Node{Node: tc.told}}
		}
		for range 2 { // the second time from what was planned before
			rules := p.compile(told)
			var got []string
			for _, vip := range []string{"10.96.0.1", "fd96::1"} {
				o := rules.Trace(plan.Packet{From: netip.MustParseAddr("10.244.0.9"), To: plan.Flow{Addr: netip.MustParseAddr(vip), Proto: plan.TCP, Port: 443}})
				for _, w := range o.To {
					got = append(got, w.Endpoint.String())
				}
				if o.Fate != plan.Passed && o.Fate != plan.Sent {
					got = append(got, o.String())
				}
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("%s: leads to %q, want %q", name, s, tc.want)
			}
		}
	}
}

// What is missing is said at the start, with what to do.
func TestCheckAPI(t *testing.T) {
	for name, tc := range map[string]struct {
		agent *agent
		want  string
	}{
		"nothing":        {started(""), "KUBERNETES_SERVICE_HOST"},
		"no server":      {started("10.96.0.1:443"), "no API server is named by --api-server"},
		"another family": {started("10.96.0.1:443", "[2001:db8::1]:6443"), "of the family"},
		"all":            {started("[fd96::1]:443", "[2001:db8::1]:6443"), ""},
		"a name":         {started("api.example:443"), ""},
	} {
		var log strings.Builder
		tc.agent.log = slog.New(slog.NewTextHandler(&log, nil))
		tc.agent.checkAPI()
		if got := log.String(); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %s", name, fmt.Sprint(got))
		}
	}
}
