package redirect

import (
	"fmt"
	"net/netip"
	"strings"
)

// Rule is one row of the plan: what a connection's first packet must look like
// and what becomes of the connection. Every field that is set must match; the
// first rule that matches decides. Rules see TCP only, and only a plain SYN:
// so a connection that was open before the rules came is never torn.
type Rule struct {
	Name    string       // what the rule is for, in one word
	Why     string       // the reason in one line, for people
	Inbound bool         // arrives from outside; else made by the pod's programs
	ViaLo   bool         // arrived on the loopback interface (inbound rules only)
	UID     *uint32      // the socket's user (outbound rules only)
	Dst     netip.Prefix // destination; zero: any, of both families
	Local   bool         // destination is an address of this network namespace
	Ports   PortRange    // destination port; zero: any
	To      uint16       // redirect to this local port; 0: leave alone
}

// Plan is the whole redirect of one pod, both families, in order.
type Plan struct{ Rules []Rule }

// The ranges that are never redirected from the pod's programs.
var (
	loopbackV4  = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	loopbackV6  = netip.PrefixFrom(netip.IPv6Loopback(), 128)
	linkLocalV6 = netip.MustParsePrefix("fe80::/10")
)

// New gives the plan of a Config, or says which of its fields are wrong.
func New(c Config) (Plan, error) {
	if err := c.validate(); err != nil {
		return Plan{}, fmt.Errorf("plan the redirect: %w", err)
	}
	return Plan{Rules: append(outboundRules(c), inboundRules(c)...)}, nil
}

// outboundRules are for connections that the pod's programs make. Their order
// is the point: the probe before the exemption (the sidecar itself dials it),
// the sidecar's own ports before loopback (the app dials them there).
func outboundRules(c Config) []Rule {
	const probeWhy = "the sidecar dials it to prove that the redirect works; before its exemption"
	rs := []Rule{
		{Name: "probe", Dst: host(ProbeV4), Ports: one(ProbePort), To: OutboundPort, Why: probeWhy},
		{Name: "probe", Dst: host(ProbeV6), Ports: one(ProbePort), To: OutboundPort, Why: probeWhy},
		{Name: "sidecar-uid", UID: &c.SidecarUID, Why: "the sidecar's own connections go out as they are"},
	}
	for _, u := range unique(c.SkipUIDs) {
		if u != c.SidecarUID {
			rs = append(rs, Rule{Name: "skip-uid", UID: &u, Why: "asked for by --skip-uids"})
		}
	}
	for _, p := range []uint16{OutboundPort, InboundPort, ProbePort, AdminPort} {
		rs = append(rs, Rule{Name: "own-port", Local: true, Ports: one(p), To: OutboundPort,
			Why: "the app must not talk to the sidecar's own ports: the sidecar sees the dial and refuses it"})
	}
	rs = append(rs,
		Rule{Name: "loopback", Dst: loopbackV4, Why: "programs of one pod talk to each other as they are"},
		Rule{Name: "loopback", Dst: loopbackV6, Why: "programs of one pod talk to each other as they are"},
		Rule{Name: "link-local", Dst: linkLocalV6, Why: "the redirect loses the interface, without which the address means nothing"},
	)
	if !c.RedirectTCPDNS {
		rs = append(rs, Rule{Name: "dns", Ports: one(dnsPort), Why: "DNS is left alone over TCP as over UDP"})
	}
	for _, p := range unique(c.SkipOutboundCIDRs) {
		rs = append(rs, Rule{Name: "skip-cidr", Dst: p, Why: "asked for by --skip-outbound-cidrs"})
	}
	for _, p := range unique(c.SkipOutboundPorts) {
		rs = append(rs, Rule{Name: "skip-port", Ports: p, Why: "asked for by --skip-outbound-ports"})
	}
	return append(rs, Rule{Name: "all", To: OutboundPort, Why: "everything else goes through the sidecar"})
}

// inboundRules are for connections that arrive from outside the pod.
func inboundRules(c Config) []Rule {
	rs := []Rule{
		{Name: "loopback", Inbound: true, ViaLo: true, Why: "came from this pod: the outbound rules have decided already"},
		{Name: "admin", Inbound: true, Ports: one(AdminPort), Why: "kubelet and Prometheus ask the sidecar itself"},
	}
	for _, p := range unique(c.SkipInboundPorts) {
		rs = append(rs, Rule{Name: "skip-port", Inbound: true, Ports: p, Why: "asked for by --skip-inbound-ports"})
	}
	return append(rs, Rule{Name: "all", Inbound: true, Local: true, To: InboundPort,
		Why: "everything else for this pod goes through the sidecar; what is only forwarded does not"})
}

// String renders the plan as a table for people, one line per rule.
func (p Plan) String() string {
	var b strings.Builder
	for _, inbound := range []bool{false, true} {
		if inbound {
			b.WriteString("inbound: TCP connections that arrive from outside the pod\n")
		} else {
			b.WriteString("outbound: TCP connections that the pod's programs make\n")
		}
		for _, r := range p.Rules {
			if r.Inbound == inbound {
				fmt.Fprintf(&b, "  %-11s  %-45s  %-17s  # %s\n", r.Name, r.match(), r.verdict(), r.Why)
			}
		}
	}
	b.WriteString("UDP, ICMP and everything else that is not TCP is left alone.\n")
	return b.String()
}

// match says in words what the rule is about.
func (r Rule) match() string {
	var w []string
	if r.ViaLo {
		w = append(w, "by the loopback interface")
	}
	if r.UID != nil {
		w = append(w, fmt.Sprintf("from UID %d", *r.UID))
	}
	if r.Dst.IsValid() {
		w = append(w, "to "+r.Dst.String())
	}
	if r.Local {
		w = append(w, "to an own address")
	}
	if r.Ports != (PortRange{}) {
		w = append(w, "port "+r.Ports.String())
	}
	if len(w) == 0 {
		return "any"
	}
	return strings.Join(w, " ")
}

func (r Rule) verdict() string {
	if r.To == 0 {
		return "leave alone"
	}
	return fmt.Sprintf("redirect to %d", r.To)
}

func one(port uint16) PortRange { return PortRange{port, port} }

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// unique drops repeated values and keeps the order.
func unique[T comparable](in []T) []T {
	seen := make(map[T]bool, len(in))
	var out []T
	for _, v := range in {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}
