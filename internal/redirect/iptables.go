package redirect

import (
	"fmt"
	"strings"
)

// Our chains in the nat table of iptables, and the built-in chains from which
// they are entered.
const (
	chainOutbound = "HEDDLE_OUTPUT"
	chainInbound  = "HEDDLE_INBOUND"
)

// plainSYN is how iptables-save writes --syn: the first packet of a TCP
// connection and nothing else.
const plainSYN = "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN"

// Iptables renders the plan for one family, one line per rule, in the very
// words of iptables-save, so that what the kernel holds can be compared line by
// line. chains are ours, in the nat table; jumps lead into them from the
// built-in chains, each to be there once; rules are all that they hold. The
// zero Plan has the same chains and jumps and no rules.
func (p Plan) Iptables(v6 bool) (chains, jumps, rules []string) {
	chains = []string{chainOutbound, chainInbound}
	jumps = []string{
		"OUTPUT " + plainSYN + " -j " + chainOutbound,
		"PREROUTING " + plainSYN + " -j " + chainInbound,
	}
	for _, r := range p.Rules {
		if r.Dst.IsValid() && r.Dst.Addr().Is6() != v6 {
			continue
		}
		rules = append(rules, r.iptables())
	}
	return chains, jumps, rules
}

// iptables gives the words in the order in which iptables-save prints them.
func (r Rule) iptables() string {
	w := []string{"-A", chainOutbound}
	if r.Inbound {
		w[1] = chainInbound
	}
	// A prefix of length 0 matches all, and iptables-save leaves it out.
	if r.Dst.IsValid() && r.Dst.Bits() > 0 {
		w = append(w, "-d", r.Dst.String())
	}
	if r.ViaLo {
		w = append(w, "-i lo")
	}
	if r.To != 0 || r.Ports != (PortRange{}) {
		w = append(w, "-p tcp") // ports and REDIRECT want the protocol named
	}
	if r.UID != nil {
		w = append(w, fmt.Sprintf("-m owner --uid-owner %d", *r.UID))
	}
	if r.Local {
		w = append(w, "-m addrtype --dst-type LOCAL")
	}
	switch {
	case r.Ports == (PortRange{}):
	case r.Ports.First == r.Ports.Last:
		w = append(w, fmt.Sprintf("-m tcp --dport %d", r.Ports.First))
	default:
		w = append(w, fmt.Sprintf("-m tcp --dport %d:%d", r.Ports.First, r.Ports.Last))
	}
	if r.To == 0 {
		w = append(w, "-j RETURN")
	} else {
		w = append(w, fmt.Sprintf("-j REDIRECT --to-ports %d", r.To))
	}
	return strings.Join(w, " ")
}
