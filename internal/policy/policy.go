// Package policy decides who may reach a pod: the mTLS mode of a port and the
// access rules, compiled from wire.InboundPolicy to an immutable value. It
// opens no connection and reads no certificate. The sidecar's inbound side
// calls it for each connection and request, the node agent and the CLI's
// explain call the same function. What it does not understand, it denies.
package policy

import (
	"net/netip"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Compiled is an immutable policy, safe for concurrent use. The zero value
// and nil deny everything.
type Compiled struct{ ok bool }

// Caller is who asks.
type Caller struct {
	ID   spiffeid.ID // proven by mTLS; zero: plaintext, nobody is proven
	Addr netip.Addr  // source address of the connection
}

// Request is what is asked for.
type Request struct {
	Port uint16
	// Path of the HTTP request; "" judges the connection, before any request.
	Path string
}

// Decision is the answer; the zero value refuses.
type Decision struct {
	Allow bool
	// ProbeOnly: let in without identity because it may be a probe of the
	// node. Nothing but a bare connect, or an HTTP request for which Decide,
	// asked again with its Path, allows, may reach the application.
	ProbeOnly bool
	Reason    telemetry.Reason // why refused; "" when allowed
	Source    string           // the rule that decided, kind/namespace/name#rule; "" none did
	Audit     string           // an audit rule that matches; to be logged
}

// Compile reads p. own is the trust domain in which a rule's namespaces are
// names. It never fails: a part that cannot be understood makes the whole
// deny, as Broken says.
func Compile(p *wire.InboundPolicy, own spiffeid.TrustDomain) *Compiled {
	return &Compiled{ok: p != nil && !own.IsZero()}
}

// Mode is the mTLS mode of a port: permissive or strict.
func (c *Compiled) Mode(port uint16) wire.MtlsMode { return wire.MtlsMode_MTLS_MODE_STRICT }

// Broken lists what cannot be understood, for status and logs.
func (c *Compiled) Broken() []string { return nil }

// Decide judges a connection (Path "") or a request. It does not allocate.
func Decide(c *Compiled, who Caller, req Request) Decision { return Decision{} }
