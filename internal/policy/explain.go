package policy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/heddle-mesh/heddle/api/wire"
)

// Explanation is a Decision with everything that was looked at for it.
type Explanation struct {
	Decision
	Mode wire.MtlsMode // of the port
	// Rules are all of the policy's, in its order; empty where the decision fell
	// before rules were looked at.
	Rules []Judged
	// By is the place in Rules of the one that decided; -1: none did.
	By int
}

// Judged is one rule as a caller met it.
type Judged struct {
	Source  string // kind/namespace/name#rule
	Action  string // allow, deny or audit
	Matches bool
	Why     string // why it matches, or the first thing that does not
}

// Explain is Decide for people: the same answer, and why. It is not for the
// request path.
func Explain(c *Compiled, who Caller, req Request) Explanation {
	e := Explanation{Decision: Decide(c, who, req), Mode: c.Mode(req.Port), By: -1}
	if c == nil || !c.ok || len(c.broken) > 0 || e.Reason == PlaintextRefused {
		return e
	}
	who.Addr = who.Addr.Unmap().WithZone("")
	for i := range c.rules {
		r := &c.rules[i]
		j := Judged{Source: r.source, Action: r.action.String()}
		if r.action == deny {
			j.Matches = r.mayMean(who, req)
		} else {
			j.Matches = r.covers(who, req)
		}
		if j.Matches {
			j.Why = r.whyMatched(who)
		} else {
			j.Why = r.whyNot(who, req)
		}
		if e.By < 0 && j.Matches && !e.ProbeOnly && j.Source == e.Source && r.action == map[bool]action{true: allow, false: deny}[e.Allow] {
			e.By = i
		}
		e.Rules = append(e.Rules, j)
	}
	return e
}

func (a action) String() string {
	switch a {
	case allow:
		return "allow"
	case audit:
		return "audit"
	}
	return "deny"
}

func (r *rule) whyMatched(who Caller) string {
	var parts []string
	switch {
	case r.named && who.ID.IsZero():
		parts = append(parts, "no identity is proven, so nothing shows that this deny means others")
	case r.named:
		parts = append(parts, who.ID.String())
	case len(r.prefixes) == 0:
		parts = append(parts, "anybody")
	}
	if len(r.prefixes) > 0 {
		parts = append(parts, "address "+who.Addr.String())
	}
	if r.l7 {
		parts = append(parts, "methods, paths and headers are not judged by this version")
	}
	return strings.Join(parts, ", ")
}

// whyNot gives the first thing that keeps the rule from matching, in the order
// in which the rule is looked at.
func (r *rule) whyNot(who Caller, req Request) string {
	switch {
	case !r.at(who.Addr, req.Port) && len(r.ports) > 0 && !r.hasPort(req.Port):
		return "is for " + few("port", "ports", r.ports)
	case !r.at(who.Addr, req.Port) && !who.Addr.IsValid():
		return "is for " + few("address", "addresses", r.prefixes) + ", and the caller's address is not known"
	case !r.at(who.Addr, req.Port):
		return "is for " + few("address", "addresses", r.prefixes) + ", not " + who.Addr.String()
	case r.l7:
		return "names methods, paths or headers, which this version does not judge"
	case who.ID.IsZero():
		return "wants a proven identity"
	case !r.identities.match(who.ID.String()):
		return "is for " + few("identity", "identities", r.identities)
	}
	var spaces []string
	for _, n := range r.namespaces {
		_, ns, _ := strings.Cut(n.text, "/ns/")
		spaces = append(spaces, strings.TrimSuffix(ns, "/"))
	}
	return "is for " + few("namespace", "namespaces", spaces)
}

func (r *rule) hasPort(port uint16) bool {
	bare := rule{ports: r.ports}
	return bare.at(netip.Addr{}, port)
}

// String is the name as a policy says it.
func (n name) String() string {
	if !n.prefix {
		return n.text
	}
	return n.text + "*"
}

// named bounds how many of a list a line names.
const named = 3

func few[T any](one, more string, list []T) string {
	var texts []string
	for i, v := range list {
		if i == named {
			texts = append(texts, strconv.Itoa(len(list)-named)+" more")
			break
		}
		texts = append(texts, fmt.Sprint(v))
	}
	if len(list) == 1 {
		return one + " " + texts[0]
	}
	return more + " " + strings.Join(texts, ", ")
}
