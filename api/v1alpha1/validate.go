package v1alpha1

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// FieldError is one field that is not as it must be.
type FieldError struct {
	Field string // JSON path, such as spec.rules[0].action
	Err   string // what is wrong
	Fix   string // what to do about it
}

func (e FieldError) Error() string {
	s := e.Field + ": " + e.Err
	if e.Fix != "" {
		s += " (" + e.Fix + ")"
	}
	return s
}

// Validate gives what a schema cannot say, in the order of the fields; nil:
// the policy compiles.
func (p *AccessPolicy) Validate() []FieldError {
	var out []FieldError
	add := func(field, err, fix string) { out = append(out, FieldError{field, err, fix}) }
	if m := p.Spec.MTLS; m != nil {
		if m.Mode != MTLSPermissive && m.Mode != MTLSStrict {
			add("spec.mtls.mode", fmt.Sprintf("%q is no mode", m.Mode), "say permissive or strict")
		}
		out = append(out, ports("spec.mtls.ports", m.Ports)...)
	}
	if p.Spec.MTLS == nil && len(p.Spec.Rules) == 0 {
		add("spec", "says nothing", "give mtls or rules, or delete the policy")
	}
	for i, r := range p.Spec.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		if r.Action != Allow && r.Action != Deny && r.Action != Audit {
			add(at+".action", fmt.Sprintf("%q is no action", r.Action), "say allow, deny or audit")
		}
		for j, f := range r.From {
			out = append(out, f.validate(fmt.Sprintf("%s.from[%d]", at, j))...)
		}
		out = append(out, ports(at+".ports", r.Ports)...)
	}
	return out
}

func (f AccessFrom) validate(at string) []FieldError {
	var out []FieldError
	if len(f.Identities)+len(f.Namespaces)+len(f.CIDRs) == 0 {
		out = append(out, FieldError{at, "names nobody", "give identities, namespaces or cidrs; leave from out to mean anybody"})
	}
	for i, id := range f.Identities {
		parsed, err := spiffeid.FromString(strings.TrimSuffix(id, "/*"))
		switch {
		case err != nil:
			out = append(out, FieldError{fmt.Sprintf("%s.identities[%d]", at, i), fmt.Sprintf("%q: %v", id, err), "spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT, the last segment may be *"})
		case parsed.Path() == "" && !strings.HasSuffix(id, "/*"):
			// No workload has it: a deny would shut nobody out.
			out = append(out, FieldError{fmt.Sprintf("%s.identities[%d]", at, i), fmt.Sprintf("%q is a trust domain, not a workload", id), "write " + id + "/* to mean all of its workloads"})
		}
	}
	for i, ns := range f.Namespaces {
		if !isLabel(ns) {
			out = append(out, FieldError{fmt.Sprintf("%s.namespaces[%d]", at, i), fmt.Sprintf("%q is not a namespace's name", ns), "name one namespace; there are no wildcards"})
		}
	}
	for i, c := range f.CIDRs {
		if _, err := netip.ParsePrefix(c); err != nil {
			out = append(out, FieldError{fmt.Sprintf("%s.cidrs[%d]", at, i), fmt.Sprintf("%q is no prefix", c), "such as 10.0.0.0/8 or fd00::/8"})
		}
	}
	return out
}

// isLabel: a namespace is named as a DNS label (RFC 1123 §2.1). A name that no
// namespace can have would deny nobody.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func ports(at string, list []uint16) []FieldError {
	var out []FieldError
	for i, p := range list {
		if p == 0 {
			out = append(out, FieldError{fmt.Sprintf("%s[%d]", at, i), "0 is no port", "1 to 65535"})
		}
	}
	return out
}

// isHostPort tells HOST:PORT, of a name or an address, without scheme or path.
func isHostPort(s string) bool {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 {
		return false
	}
	if n, err := strconv.ParseUint(s[i+1:], 10, 16); err != nil || n == 0 {
		return false
	}
	host := s[:i]
	if strings.HasPrefix(host, "[") {
		a, err := netip.ParseAddr(strings.Trim(host, "[]"))
		return err == nil && a.Is6() && a.Zone() == "" && host == "["+a.String()+"]"
	}
	return len(host) <= 253 && strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == ""
}

// Validate gives what a schema cannot say; nil: the settings can be used.
func (m *MeshConfig) Validate() []FieldError {
	var out []FieldError
	if m.Name != "default" {
		out = append(out, FieldError{"metadata.name", fmt.Sprintf("%q does not count", m.Name), "only the one named default does"})
	}
	if td := m.Spec.TrustDomain; td != "" {
		if got, err := spiffeid.TrustDomainFromString(td); err != nil || got.Name() != td {
			out = append(out, FieldError{"spec.trustDomain", fmt.Sprintf("%q is no trust domain", td), "lower-case letters, digits, dots, dashes, such as cluster.local"})
		}
	}
	switch m.Spec.MTLS {
	case "", MTLSPermissive, MTLSStrict:
	default:
		out = append(out, FieldError{"spec.mtls", fmt.Sprintf("%q is no mode", m.Spec.MTLS), "say permissive or strict"})
	}
	out = append(out, ports("spec.excludedPorts", m.Spec.ExcludedPorts)...)
	if s := m.Spec.TraceSampling; !(s >= 0 && s <= 1) {
		out = append(out, FieldError{"spec.traceSampling", fmt.Sprintf("%v is no share", s), "0 to 1"})
	}
	if c := m.Spec.TraceCollector; c != "" && !isHostPort(c) {
		out = append(out, FieldError{"spec.traceCollector", fmt.Sprintf("%q is no address", c), "host:port of its OTLP/gRPC port, such as jaeger.observability:4317"})
	}
	return out
}
