package redirect

import "net/netip"

// Rule is one row of the plan: what a connection's first packet must look like
// and what becomes of the connection. Every field that is set must match; the
// first rule that matches decides. Rules see TCP only, and only its first
// packet (a SYN).
type Rule struct {
	Name    string       // short and unique in the plan for fixed rules
	Why     string       // one line for people
	Inbound bool         // in the prerouting hook; else in the output hook
	ViaLo   bool         // arrived on the loopback interface (inbound rules only)
	UID     *uint32      // the socket's user (outbound rules only)
	Dst     netip.Prefix // destination; zero: any, of both families
	Local   bool         // destination is an address of this network namespace
	Ports   PortRange    // destination port; zero: any
	To      uint16       // redirect to this local port; 0: leave alone
}

// Plan is the whole redirect of one pod, both families, in order.
type Plan struct{ Rules []Rule }
