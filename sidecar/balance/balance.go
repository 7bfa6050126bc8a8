// Package balance turns what the control plane says stands at an address into
// something a connection can pick an endpoint from: Compile once per version,
// Pick per request, without lock or allocation.
//
// It dials nothing and pools nothing: sidecar/pool hangs its connections on
// EndpointState, which outlives the versions. Which endpoints are eligible is
// internal/endpoint's rule. Called by sidecar/control (Compile) and
// sidecar/outbound (Port, Pick).
package balance

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Self is where this sidecar stands.
type Self struct {
	Node, Zone string
	IPs        []netip.Addr // the pod's own
}

// Kind says what stands at an address.
type Kind uint8

// The kinds. The zero value is External.
const (
	External Kind = iota // dial the original destination as the app would
	Service              // a VIP
	Workload             // a pod's or host's own address
)

// Destination is one version of what stands at an address. Immutable but for
// the endpoints' states.
type Destination struct {
	Kind            Kind
	Namespace, Name string
	Broken          []string // endpoints left out and why, for the log
}

// Compile builds a version from the wire form, with the endpoint states of
// prev (nil: none). Calls for one destination come one after the other.
func Compile(prev *Destination, d *wire.Destination, self Self) *Destination { return &Destination{} }

// Port finds a port of the destination; nil: the Service has no such port.
// External and Workload have every port. A port of External has no endpoints.
func (d *Destination) Port(port uint16) *Port { return nil }

// Port is one port of a destination.
type Port struct {
	Number   uint16
	Protocol wire.Protocol
}

// Pick chooses an endpoint that is not among tried.
func (p *Port) Pick(tried []*Endpoint) (*Endpoint, telemetry.Reason) {
	return nil, telemetry.ReasonNoEndpoints
}

// Endpoint is where a connection goes.
type Endpoint struct {
	Addr  netip.AddrPort
	ID    spiffeid.ID // zero: outside the mesh, plaintext
	HTTP2 bool        // takes heddle/h2
	Own   bool        // this very pod: plaintext, direct
	Pod   string
	State *EndpointState
}

// EndpointState is what is learnt of an endpoint, kept across versions.
type EndpointState struct {
	// Pool belongs to sidecar/pool: set once with CompareAndSwap(nil, p).
	Pool atomic.Value
}

// Begin counts a request or connection as in flight.
func (s *EndpointState) Begin() {}

// End takes it back with the time the endpoint took to answer (connect time
// for a bare connection); failed: the connection could not be made.
func (s *EndpointState) End(latency time.Duration, failed bool) {}

// Gone is closed when the endpoint left the destination.
func (s *EndpointState) Gone() <-chan struct{} { return nil }
