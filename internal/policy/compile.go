package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
)

// Compiled is an immutable policy, safe for concurrent use. The zero value
// and nil deny everything.
type Compiled struct {
	ok       bool
	selected bool
	mode     wire.MtlsMode
	ports    map[uint16]wire.MtlsMode
	rules    []rule
	probes   []probe
	nodes    []netip.Addr
	broken   []string
	// uncovered names whose rules a caller was not allowed by.
	uncovered string
}

type rule struct {
	source     string
	action     action
	named      bool // wants a proven identity
	l7         bool // wants what this version cannot judge
	identities names
	namespaces names
	prefixes   []netip.Prefix
	ports      []uint16
}

type probe struct {
	port uint16
	path string
}

type action uint8

const (
	deny action = iota // also what is not known
	allow
	audit
)

// Compile reads p. own is the trust domain in which a rule's namespaces are
// names. It never fails: a part that cannot be understood makes the whole
// deny, as Broken says. A rule on methods, paths or headers, which this
// version does not judge, never allows and always denies.
func Compile(p *wire.InboundPolicy, own spiffeid.TrustDomain) *Compiled {
	if p == nil {
		return &Compiled{}
	}
	c := &Compiled{
		ok:       true,
		selected: p.GetSelected(),
		mode:     strictUnlessPermissive(p.GetMode()),
		broken:   slices.Clone(p.GetBroken()),
	}
	if own.IsZero() {
		c.broken = append(c.broken, "no trust domain")
	}
	for _, pp := range p.GetPorts() {
		c.addPort(pp)
	}
	for _, wr := range p.GetRules() {
		r, err := compileRule(wr, own)
		if err != nil {
			c.broken = append(c.broken, fmt.Sprintf("%s: %v", wr.GetSource(), err))
			continue
		}
		c.rules = append(c.rules, r)
		c.selected = c.selected || r.action != audit
	}
	c.uncovered = notCovered(c.rules)
	for _, wp := range p.GetProbes() {
		if port, ok := portOf(wp.GetPort()); ok {
			c.probes = append(c.probes, probe{port, wp.GetPath()})
		}
	}
	for _, b := range p.GetNodeAddresses() {
		if a, ok := netip.AddrFromSlice(b); ok {
			c.nodes = append(c.nodes, a.Unmap())
		}
	}
	return c
}

// namedPolicies bounds how many policies a refusal names: it is for a log.
const namedPolicies = 3

// notCovered says which policies select a pod, when none of their rules allows.
func notCovered(rules []rule) string {
	var names []string
	for i := range rules {
		if rules[i].action == audit {
			continue
		}
		name, _, _ := strings.Cut(rules[i].source, "#")
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	more := ""
	if n := len(names) - namedPolicies; n > 0 {
		names, more = names[:namedPolicies], fmt.Sprintf(" and %d more", n)
	}
	return "no rule allows: " + strings.Join(names, ", ") + more
}

func (c *Compiled) addPort(pp *wire.PortPolicy) {
	port, ok := portOf(pp.GetPort())
	if !ok {
		c.broken = append(c.broken, fmt.Sprintf("mTLS mode of port %d: no such port", pp.GetPort()))
		return
	}
	if c.ports == nil {
		c.ports = map[uint16]wire.MtlsMode{}
	}
	mode := strictUnlessPermissive(pp.GetMode())
	if had, twice := c.ports[port]; twice && had != mode {
		mode = wire.MtlsMode_MTLS_MODE_STRICT
	}
	c.ports[port] = mode
}

// Mode is the mTLS mode of a port: permissive or strict.
func (c *Compiled) Mode(port uint16) wire.MtlsMode {
	if c == nil || !c.ok {
		return wire.MtlsMode_MTLS_MODE_STRICT
	}
	if m, ok := c.ports[port]; ok {
		return m
	}
	return c.mode
}

// Broken lists what cannot be understood, for status and logs.
func (c *Compiled) Broken() []string {
	if c == nil {
		return nil
	}
	return slices.Clone(c.broken)
}

func strictUnlessPermissive(m wire.MtlsMode) wire.MtlsMode {
	if m == wire.MtlsMode_MTLS_MODE_PERMISSIVE {
		return m
	}
	return wire.MtlsMode_MTLS_MODE_STRICT
}

func compileRule(wr *wire.AccessRule, own spiffeid.TrustDomain) (rule, error) {
	r := rule{
		source: wr.GetSource(),
		named:  wr.GetAnyAuthenticated() || len(wr.GetIdentities()) > 0 || len(wr.GetNamespaces()) > 0,
		l7:     len(wr.GetMethods()) > 0 || len(wr.GetPaths()) > 0 || len(wr.GetHeaders()) > 0,
	}
	switch wr.GetAction() {
	case wire.AccessRule_ACTION_ALLOW:
		r.action = allow
	case wire.AccessRule_ACTION_AUDIT:
		r.action = audit
	}
	for _, s := range wr.GetIdentities() {
		n, err := parseIdentity(s)
		if err != nil {
			return rule{}, err
		}
		r.identities = append(r.identities, n)
	}
	for _, ns := range wr.GetNamespaces() {
		if ns == "" || strings.ContainsAny(ns, "/*") {
			return rule{}, fmt.Errorf("namespace %q is not a name", ns)
		}
		r.namespaces = append(r.namespaces, name{"spiffe://" + own.Name() + "/ns/" + ns + "/", true})
	}
	for _, b := range wr.GetPrefixes() {
		p, ok := prefixOf(b)
		if !ok {
			return rule{}, fmt.Errorf("prefix %x is none", b)
		}
		r.prefixes = append(r.prefixes, p)
	}
	for _, n := range wr.GetPorts() {
		port, ok := portOf(n)
		if !ok {
			return rule{}, fmt.Errorf("port %d is none", n)
		}
		r.ports = append(r.ports, port)
	}
	return r, nil
}

// parseIdentity reads a SPIFFE ID of a rule: exact, or with a last segment of
// "*", which stands for one or more segments.
func parseIdentity(s string) (name, error) {
	base, wild := strings.CutSuffix(s, "/*")
	if !wild {
		base = s
	}
	if _, err := spiffeid.FromString(base); err != nil {
		return name{}, fmt.Errorf("identity %q: %w", s, err)
	}
	if wild {
		return name{base + "/", true}, nil
	}
	return name{base, false}, nil
}

func portOf(n uint32) (uint16, bool) { return uint16(n), n > 0 && n <= 65535 }

// prefixOf reads an address followed by one byte of prefix length.
func prefixOf(b []byte) (netip.Prefix, bool) {
	if len(b) == 0 {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(b[:len(b)-1])
	if !ok {
		return netip.Prefix{}, false
	}
	bits := int(b[len(b)-1])
	if a.Is4In6() && bits >= 96 { // callers are compared unmapped
		a, bits = a.Unmap(), bits-96
	}
	p, err := a.Prefix(bits)
	return p, err == nil
}
