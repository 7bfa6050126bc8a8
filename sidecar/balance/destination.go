// Package balance turns what the control plane says stands at an address into
// something a connection can pick an endpoint from: Compile once per version,
// Pick per request, without lock or allocation.
//
// It dials nothing and pools nothing: sidecar/pool hangs its connections on
// EndpointState, which outlives the versions. Which endpoints are eligible is
// internal/endpoint's rule. Called by internal/control (Compile) and
// sidecar/outbound (Port, Pick).
package balance

import (
	"net/netip"
	"time"

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

// The kinds.
const (
	Unknown  Kind = iota // said in a way we do not understand: refuse
	External             // dial the original destination as the app would
	Service              // a VIP
	Workload             // a pod's or host's own address
)

// Destination is one version of what stands at an address. Immutable but for
// the endpoints' states.
type Destination struct {
	Kind            Kind
	Namespace, Name string // of the Service or the pod
	// Affinity is how long a client stays with an endpoint; zero: it does not.
	// Kept for later: Pick does not read it yet.
	Affinity time.Duration
	// Broken tells of endpoints left out because what was said of them makes
	// no sense, for the log. They are never spoken to, in plaintext least.
	Broken []string

	ledger   *ledger
	ports    map[uint16]*Port
	workload *site    // Kind Workload
	account  *account // of a workload's ports
	version  uint64
}

// Port is one port of a destination.
type Port struct {
	Number      uint16
	Name        string
	Protocol    wire.Protocol
	AppProtocol string
	Policy      *Policy // never nil

	account   *account // shared by all ports of a workload's own address
	endpoints []*Endpoint
	resting   []*Endpoint // known, and not eligible
	// weights[i] is the sum of the weights of endpoints[:i+1]; nil: all equal.
	weights []uint64
	none    telemetry.Reason // why endpoints is empty
	born    time.Time        // origin of the states' clock
}

// Ports calls f for each declared port, in no order.
func (d *Destination) Ports(f func(*Port)) {
	for _, p := range d.ports {
		f(p)
	}
}

// Port finds a port of the destination; nil: the Service has no such port.
// External and Workload have every port; a port of External has no endpoint to
// pick, its original destination is where to go.
func (d *Destination) Port(port uint16) *Port {
	switch d.Kind {
	case External:
		return &Port{Number: port, Policy: noPolicy}
	case Workload:
		return d.workloadPort(port)
	}
	return d.ports[port]
}

// workloadPort makes the port asked for: any may be dialled on a pod's own
// address. The endpoint's state is the ledger's, so repeated calls share it.
func (d *Destination) workloadPort(number uint16) *Port {
	p := &Port{Number: number, Policy: noPolicy, account: d.account, born: d.ledger.born, none: telemetry.ReasonNoEndpoints}
	if declared := d.ports[number]; declared != nil {
		p.Name, p.Protocol, p.AppProtocol = declared.Name, declared.Protocol, declared.AppProtocol
	}
	if d.workload != nil {
		e := d.workload.at(number)
		e.State = d.ledger.lazily(d.version, d.workload.stateKey(e))
		p.endpoints = []*Endpoint{e}
	}
	return p
}
