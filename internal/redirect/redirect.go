// Package redirect plans which connections of a pod go through its sidecar. It
// is pure: it turns a Config into a Plan and renders the plan as text for
// tests and for the iptables back end; internal/netfilter writes it to the
// kernel. sidecar/intercept calls it.
package redirect

import (
	"errors"
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

// ProbeV4 and ProbeV6 are where the sidecar dials, at ProbePort, to prove that
// the redirect works. Loopback needs no route and can never leave the pod.
var (
	ProbeV4 = netip.AddrFrom4([4]byte{127, 6, 6, 6})
	ProbeV6 = netip.IPv6Loopback()
)

// Config says what to leave alone, besides loopback and the sidecar's own
// traffic.
type Config struct {
	SidecarUID        uint32
	SkipUIDs          []uint32
	SkipOutboundPorts []PortRange
	SkipInboundPorts  []PortRange
	SkipOutboundCIDRs []netip.Prefix
}

// PortRange is a range of TCP ports, both ends included.
type PortRange struct{ First, Last uint16 }

// New gives the plan of a Config, or says which of its fields is wrong.
func New(c Config) (Plan, error) { return Plan{}, errors.New("redirect plan: not built yet") }
