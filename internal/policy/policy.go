// Package policy decides who may reach a pod: the mTLS mode of a port and the
// access rules, compiled from wire.InboundPolicy to an immutable value. It
// opens no connection and reads no certificate. The sidecar's inbound side
// calls it for each connection and request, the node agent and the CLI's
// explain call the same function. What it does not understand, it denies.
package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
)

// Caller is who asks.
type Caller struct {
	ID   spiffeid.ID // proven by mTLS; zero: plaintext, nobody is proven
	Addr netip.Addr  // source address of the connection
}

// Request is what is asked for.
type Request struct {
	Port uint16
	// Path is the target of an HTTP request as it stands in the request line;
	// "" judges the connection, before any request.
	Path string
}

// Decision is the answer; the zero value refuses.
type Decision struct {
	Allow bool
	// ProbeOnly: let in although the rules refuse, because it may be a probe
	// of the node. Nothing but a bare connect, or an HTTP request for which
	// Decide, asked again with its Path, allows, may reach the application.
	ProbeOnly bool
	Reason    Reason // why refused; "" when allowed
	// Source is the rule that decided, kind/namespace/name#rule; where no rule
	// allows, the policies whose rules do not; "": none did.
	Source string
	Audit  string // an audit rule that matches, to be logged
}

// Reason is a word of telemetry's table of reasons, which level 1 of the house
// cannot import; convert it.
type Reason string

// The reasons for which Decide refuses.
const (
	PlaintextRefused Reason = "plaintext_refused"
	AccessDenied     Reason = "access_denied"
)

// noPolicy is the Source of a refusal by nil, the zero value or a policy that
// never came.
const noPolicy = "no policy"

// Decide judges a connection (Path "") or a request. It does not allocate.
//
// Any deny that matches wins. Once an allow or deny rule selects the pod, what
// no allow covers is refused. Without a proven identity a caller cannot show
// that a deny of identities or namespaces does not mean it, so that deny
// matches it. A broken policy refuses all but the node's probes: refusing
// those would restart the pod, and nobody else can send them.
func Decide(c *Compiled, who Caller, req Request) Decision {
	if c == nil || !c.ok {
		return Decision{Reason: AccessDenied, Source: noPolicy}
	}
	who.Addr = who.Addr.Unmap().WithZone("")
	d := c.judge(who, req)
	if !d.Allow && who.ID.IsZero() && c.probed(who.Addr, req) {
		return Decision{Allow: true, ProbeOnly: true, Audit: d.Audit}
	}
	return d
}

func (c *Compiled) judge(who Caller, req Request) Decision {
	if len(c.broken) > 0 {
		return Decision{Reason: AccessDenied, Source: c.broken[0]}
	}
	plain := who.ID.IsZero()
	if plain && c.Mode(req.Port) != wire.MtlsMode_MTLS_MODE_PERMISSIVE {
		return Decision{Reason: PlaintextRefused}
	}
	var d Decision
	for i := range c.rules {
		r := &c.rules[i]
		switch {
		case r.action == allow:
			if !d.Allow && r.covers(who, req) {
				d.Allow, d.Source = true, r.source
			}
		case r.action == audit:
			if d.Audit == "" && r.covers(who, req) {
				d.Audit = r.source
			}
		case r.mayMean(who, req):
			return Decision{Reason: AccessDenied, Source: r.source, Audit: d.Audit}
		}
	}
	if !d.Allow && c.selected {
		return Decision{Reason: AccessDenied, Source: c.uncovered, Audit: d.Audit}
	}
	d.Allow = true
	return d
}

// Probed tells whether a caller may be the node, probing this port, or with a
// Path this very path. c may be nil.
func (c *Compiled) Probed(who Caller, req Request) bool {
	return c != nil && who.ID.IsZero() && c.probed(who.Addr.Unmap().WithZone(""), req)
}

// probed: the node may probe this port, or this very path.
func (c *Compiled) probed(addr netip.Addr, req Request) bool {
	if !slices.Contains(c.nodes, addr) {
		return false
	}
	for _, p := range c.probes {
		if p.port == req.Port && (req.Path == "" || req.Path == p.path) {
			return true
		}
	}
	return false
}

// covers: everything that the rule says is proven of the caller.
func (r *rule) covers(who Caller, req Request) bool {
	return !r.l7 && r.at(who.Addr, req.Port) && (!r.named || !who.ID.IsZero() && r.names(who.ID))
}

// mayMean: nothing that is proven of the caller says that the rule does not
// mean it.
func (r *rule) mayMean(who Caller, req Request) bool {
	return r.at(who.Addr, req.Port) && (!r.named || who.ID.IsZero() || r.names(who.ID))
}

// at compares what needs no identity.
func (r *rule) at(addr netip.Addr, port uint16) bool {
	if len(r.ports) > 0 && !slices.Contains(r.ports, port) {
		return false
	}
	if len(r.prefixes) == 0 {
		return true
	}
	for _, p := range r.prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// names compares a proven identity.
func (r *rule) names(id spiffeid.ID) bool {
	s := id.String()
	return r.identities.match(s) && r.namespaces.match(s)
}

// names of callers: any of them; an empty list names all.
type names []name

// name is an exact SPIFFE ID, or the beginning of some, ending in a slash.
type name struct {
	text   string
	prefix bool
}

func (n names) match(id string) bool {
	if len(n) == 0 {
		return true
	}
	for i := range n {
		if n[i].prefix && len(id) > len(n[i].text) && strings.HasPrefix(id, n[i].text) || n[i].text == id {
			return true
		}
	}
	return false
}
