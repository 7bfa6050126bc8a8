// Package redirect plans which connections of a pod go through its sidecar. It
// is pure: New turns a Config into a Plan, one table of rules for both
// families, which is rendered as text for people and golden tests and as input
// for iptables-restore. internal/netfilter writes the plan into the kernel;
// sidecar/intercept calls both.
package redirect

import (
	"errors"
	"fmt"
	"net/netip"
)

// The sidecar's own ports and user. Dials to these ports are refused by the
// sidecar; the admin port is reachable from outside the pod only.
const (
	OutboundPort = 16001 // on loopback: what the pod's programs dial
	InboundPort  = 16006 // on all addresses: what is dialled from outside
	ProbePort    = 16009 // nobody listens: dials to it prove the redirect
	AdminPort    = 16020 // readiness, metrics
	SidecarUID   = 16000 // exempt from the outbound redirect
)

// maxSkips bounds each list of a Config: every entry is a rule that each new
// connection walks through, and a list this long is a mistake.
const maxSkips = 256

// dnsPort is DNS over TCP, to which resolvers turn when an answer is too long
// for UDP (RFC 7766).
const dnsPort = 53

// ProbeV4 and ProbeV6 are where the sidecar dials, at ProbePort, to prove that
// the redirect works. Loopback needs no route and can never leave the pod.
var (
	ProbeV4 = netip.AddrFrom4([4]byte{127, 6, 6, 6})
	ProbeV6 = netip.IPv6Loopback()
)

// Config says what to leave alone, besides loopback and the sidecar's own
// traffic.
type Config struct {
	SidecarUID        uint32 // never 0: every program of root would be exempt
	SkipUIDs          []uint32
	SkipOutboundPorts []PortRange
	SkipInboundPorts  []PortRange
	SkipOutboundCIDRs []netip.Prefix
	// RedirectTCPDNS redirects TCP port 53 as well. By default it is left
	// alone as UDP port 53 is: the two are one protocol, a resolver changes
	// between them in mid-lookup, and finding a name must not depend on the
	// sidecar knowing the server's address already.
	RedirectTCPDNS bool
}

// PortRange is a range of TCP ports, both ends included.
type PortRange struct{ First, Last uint16 }

// String gives "80" or "8000-8100".
func (r PortRange) String() string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// validate says every field that is wrong.
func (c Config) validate() error {
	var errs []error
	if c.SidecarUID == 0 {
		errs = append(errs, errors.New("sidecar UID is 0: every program of root would bypass the sidecar; run the sidecar under a user of its own"))
	}
	for _, u := range append([]uint32{c.SidecarUID}, c.SkipUIDs...) {
		if u == invalidUID {
			errs = append(errs, fmt.Errorf("UID %d means \"no user\"; want 0 to %d", u, uint32(invalidUID-1)))
		}
	}
	for _, l := range [][]PortRange{c.SkipOutboundPorts, c.SkipInboundPorts} {
		for _, r := range l {
			if r.First == 0 || r.First > r.Last {
				errs = append(errs, fmt.Errorf("port range %d-%d: want first ≤ last, both from 1 to 65535", r.First, r.Last))
			}
		}
	}
	for _, p := range c.SkipOutboundCIDRs {
		if err := checkPrefix(p); err != nil {
			errs = append(errs, err)
		}
	}
	for _, n := range []int{len(c.SkipUIDs), len(c.SkipOutboundPorts), len(c.SkipInboundPorts), len(c.SkipOutboundCIDRs)} {
		if n > maxSkips {
			errs = append(errs, fmt.Errorf("%d entries in one skip list; at most %d (join them into ranges)", n, maxSkips))
		}
	}
	return errors.Join(errs...)
}
