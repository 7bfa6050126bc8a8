package redirect

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

func full() Config {
	return Config{
		SidecarUID:        SidecarUID,
		SkipUIDs:          []uint32{0, 1337, 0, SidecarUID},
		SkipOutboundPorts: []PortRange{{22, 22}, {8000, 8100}},
		SkipInboundPorts:  []PortRange{{9100, 9100}, {1, 65535}},
		SkipOutboundCIDRs: []netip.Prefix{
			netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/32"),
			netip.MustParsePrefix("198.51.100.7/32"), netip.MustParsePrefix("0.0.0.0/0"),
		},
		RedirectTCPDNS: true,
	}
}

func TestPlanGolden(t *testing.T) {
	for name, c := range map[string]Config{
		"default": {SidecarUID: SidecarUID},
		"full":    full(),
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			text := p.String()
			for _, v6 := range []bool{false, true} {
				_, jumps, rules := p.Iptables(v6)
				if v6 {
					text += "\nip6tables:\n"
				} else {
					text += "\niptables:\n"
				}
				for _, j := range jumps {
					text += "-A " + j + "\n"
				}
				text += strings.Join(rules, "\n") + "\n"
			}
			golden(t, name+".txt", text)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (run with -update if this is meant):\n%s", file, d)
	}
}

// verdict walks the plan as the kernel does.
func verdict(p Plan, pk Rule) string {
	for _, r := range p.Rules {
		if r.Inbound != pk.Inbound || r.ViaLo && !pk.ViaLo || r.Local && !pk.Local {
			continue
		}
		if r.UID != nil && (pk.UID == nil || *r.UID != *pk.UID) {
			continue
		}
		if r.Dst.IsValid() && !r.Dst.Contains(pk.Dst.Addr()) {
			continue
		}
		if r.Ports != (PortRange{}) && (pk.Ports.First < r.Ports.First || pk.Ports.First > r.Ports.Last) {
			continue
		}
		return r.Name + ": " + r.verdict()
	}
	return "none: leave alone"
}

func TestVerdicts(t *testing.T) {
	p, err := New(Config{
		SidecarUID: SidecarUID, SkipUIDs: []uint32{1337},
		SkipOutboundPorts: []PortRange{{8000, 8100}}, SkipInboundPorts: []PortRange{{9100, 9100}},
		SkipOutboundCIDRs: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	out := func(uid uint32, dst string, port uint16, local bool) Rule {
		return Rule{UID: &uid, Dst: host(netip.MustParseAddr(dst)), Ports: one(port), Local: local}
	}
	in := func(dst string, port uint16, local, lo bool) Rule {
		return Rule{Inbound: true, Dst: host(netip.MustParseAddr(dst)), Ports: one(port), Local: local, ViaLo: lo}
	}
	const app = 1000
	for _, tc := range []struct {
		what string
		pk   Rule
		want string
	}{
		{"app to a Service", out(app, "192.0.2.1", 80, false), "all: redirect to 16001"},
		{"root is an app", out(0, "192.0.2.1", 80, false), "all: redirect to 16001"},
		{"app to a Service, IPv6", out(app, "2001:db8::1", 80, false), "all: redirect to 16001"},
		{"sidecar to an endpoint", out(SidecarUID, "192.0.2.1", 80, false), "sidecar-uid: leave alone"},
		{"sidecar to itself by the pod's address", out(SidecarUID, "192.0.2.9", AdminPort, true), "sidecar-uid: leave alone"},
		{"sidecar probes", out(SidecarUID, "127.6.6.6", ProbePort, true), "probe: redirect to 16001"},
		{"sidecar probes, IPv6", out(SidecarUID, "::1", ProbePort, true), "probe: redirect to 16001"},
		{"skipped user", out(1337, "192.0.2.1", 80, false), "skip-uid: leave alone"},
		{"app to the admin port on loopback", out(app, "127.0.0.1", AdminPort, true), "own-port: redirect to 16001"},
		{"app to the admin port on its own address", out(app, "192.0.2.9", AdminPort, true), "own-port: redirect to 16001"},
		{"app to the inbound port on ::1", out(app, "::1", InboundPort, true), "own-port: redirect to 16001"},
		{"app to another pod's admin port", out(app, "192.0.2.1", AdminPort, false), "all: redirect to 16001"},
		{"app to a neighbour in its pod", out(app, "127.0.0.1", 80, true), "loopback: leave alone"},
		{"app to its own address", out(app, "192.0.2.9", 80, true), "all: redirect to 16001"},
		{"DNS over TCP", out(app, "192.0.2.1", 53, false), "dns: leave alone"},
		{"link local", out(app, "fe80::1", 80, false), "link-local: leave alone"},
		{"skipped range", out(app, "203.0.113.9", 80, false), "skip-cidr: leave alone"},
		{"skipped port", out(app, "192.0.2.1", 8100, false), "skip-port: leave alone"},
		{"behind the skipped ports", out(app, "192.0.2.1", 8101, false), "all: redirect to 16001"},
		{"from outside to the app", in("192.0.2.9", 80, true, false), "all: redirect to 16006"},
		{"from outside, link local", in("fe80::9", 80, true, false), "all: redirect to 16006"},
		{"from outside to the admin port", in("192.0.2.9", AdminPort, true, false), "admin: leave alone"},
		{"from outside to the outbound port", in("192.0.2.9", OutboundPort, true, false), "all: redirect to 16006"},
		{"from outside to a skipped port", in("192.0.2.9", 9100, true, false), "skip-port: leave alone"},
		{"forwarded through the pod", in("192.0.2.77", 80, false, false), "none: leave alone"},
		{"from the pod itself", in("192.0.2.9", 80, true, true), "loopback: leave alone"},
	} {
		if got := verdict(p, tc.pk); got != tc.want {
			t.Errorf("%s: %s; want %s", tc.what, got, tc.want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		c    Config
		want string
	}{
		"root as sidecar":   {Config{}, "sidecar UID is 0"},
		"no user":           {Config{SidecarUID: 1, SkipUIDs: []uint32{invalidUID}}, "no user"},
		"backwards":         {Config{SidecarUID: 1, SkipInboundPorts: []PortRange{{9, 8}}}, "port range 9-8"},
		"port 0":            {Config{SidecarUID: 1, SkipOutboundPorts: []PortRange{{0, 8}}}, "port range 0-8"},
		"host bits":         {Config{SidecarUID: 1, SkipOutboundCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8")}}, "write 10.0.0.0/8"},
		"mapped":            {Config{SidecarUID: 1, SkipOutboundCIDRs: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}}, "write it as IPv4"},
		"empty prefix":      {Config{SidecarUID: 1, SkipOutboundCIDRs: make([]netip.Prefix, 1)}, "prefix is empty"},
		"far too many UIDs": {Config{SidecarUID: 1, SkipUIDs: make([]uint32, maxSkips+1)}, "257 entries"},
	} {
		if _, err := New(tc.c); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v; want one with %q", name, err, tc.want)
		}
	}
}
