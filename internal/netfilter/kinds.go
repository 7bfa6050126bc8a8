package netfilter

import (
	"net/netip"

	"github.com/heddle-mesh/heddle/internal/redirect"
)

// everyKind is a plan with each kind of match and verdict that a real plan can
// have, for probing. Its values mean nothing.
func everyKind() redirect.Plan {
	p, err := redirect.New(redirect.Config{
		SidecarUID:        redirect.SidecarUID,
		SkipOutboundPorts: []redirect.PortRange{{First: 1, Last: 2}},
		SkipOutboundCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")},
	})
	if err != nil {
		panic(err) // a constant plan
	}
	return p
}
