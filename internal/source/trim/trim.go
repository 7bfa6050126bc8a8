// Package trim cuts Kubernetes objects down to the fields that Heddle reads
// (internal/source). It resolves nil conditions (KEP-1672), reads addresses as
// leniently as Kubernetes did when they were written, and says what it had to
// leave out. It reads no files and asks no server; both doors call it.
package trim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
)

// faults are the fields that were left out.
type faults []v1alpha1.FieldError

func (f *faults) addr(field, s string) (netip.Addr, bool) {
	a, err := ParseAddr(s)
	if err != nil {
		*f = append(*f, v1alpha1.FieldError{Field: field, Err: err.Error(), Fix: "an IP address; left out"})
	}
	return a, err == nil
}

func (f *faults) prefix(field, s string) (netip.Prefix, bool) {
	p, err := ParsePrefix(s)
	if err != nil {
		*f = append(*f, v1alpha1.FieldError{Field: field, Err: err.Error(), Fix: "a prefix such as 10.0.0.0/8; left out"})
	}
	return p, err == nil
}

func (f *faults) port(field string, n int32) (uint16, bool) {
	if n < 1 || n > 65535 {
		*f = append(*f, v1alpha1.FieldError{Field: field, Err: fmt.Sprintf("%d is no port", n), Fix: "1 to 65535; left out"})
		return 0, false
	}
	return uint16(n), true
}

// ParseAddr reads an address as old Kubernetes versions let it be written:
// with spaces around it and leading zeros, which are decimal. IPv4 in IPv6
// becomes IPv4.
func ParseAddr(s string) (netip.Addr, error) {
	s = strings.TrimSpace(s)
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, err = netip.ParseAddr(withoutZeros(s))
	}
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is no IP address", s)
	}
	return a.Unmap(), nil
}

func withoutZeros(s string) string {
	parts := strings.Split(s, ".")
	for i, p := range parts {
		if p = strings.TrimLeft(p, "0"); p == "" && parts[i] != "" {
			p = "0"
		}
		parts[i] = p
	}
	return strings.Join(parts, ".")
}

// ParsePrefix reads a CIDR as leniently and gives it masked.
func ParsePrefix(s string) (netip.Prefix, error) {
	s = strings.TrimSpace(s)
	head, bits, _ := strings.Cut(s, "/")
	a, err := ParseAddr(head)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no prefix", s)
	}
	p, err := netip.ParsePrefix(a.String() + "/" + bits)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no prefix", s)
	}
	return p.Masked(), nil
}

// Namespace trims a namespace.
func Namespace(n *corev1.Namespace) *source.Namespace {
	return &source.Namespace{Name: n.Name, Labels: n.Labels, Annotations: n.Annotations}
}

// Node trims a node.
func Node(n *corev1.Node) (*source.Node, []v1alpha1.FieldError) {
	var f faults
	out := &source.Node{Name: n.Name, Labels: n.Labels, Zone: n.Labels[corev1.LabelTopologyZone]}
	for i, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if ip, ok := f.addr(fmt.Sprintf("status.addresses[%d].address", i), a.Address); ok {
			out.Addresses = append(out.Addresses, ip)
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for i, c := range cidrs {
		if p, ok := f.prefix(fmt.Sprintf("spec.podCIDRs[%d]", i), c); ok {
			out.PodCIDRs = append(out.PodCIDRs, p)
		}
	}
	return out, f
}

// ServiceAccount trims a service account.
func ServiceAccount(s *corev1.ServiceAccount) *source.ServiceAccount {
	return &source.ServiceAccount{Namespace: s.Namespace, Name: s.Name, UID: string(s.UID)}
}

// ServiceCIDR gives the prefixes of one.
func ServiceCIDR(s *networkingv1.ServiceCIDR) ([]netip.Prefix, []v1alpha1.FieldError) {
	var f faults
	var out []netip.Prefix
	for i, c := range s.Spec.CIDRs {
		if p, ok := f.prefix(fmt.Sprintf("spec.cidrs[%d]", i), c); ok {
			out = append(out, p)
		}
	}
	return out, f
}

// EndpointSlice trims a slice. One of addressType FQDN has no endpoints left.
func EndpointSlice(s *discoveryv1.EndpointSlice) (*source.EndpointSlice, []v1alpha1.FieldError) {
	var f faults
	_, headless := s.Labels[corev1.IsHeadlessService]
	out := &source.EndpointSlice{
		Namespace: s.Namespace, Name: s.Name,
		Service:  s.Labels[discoveryv1.LabelServiceName],
		Headless: headless,
		IPv6:     s.AddressType == discoveryv1.AddressTypeIPv6,
	}
	for i, p := range s.Ports {
		sp := source.SlicePort{Name: deref(p.Name), Protocol: string(deref(p.Protocol)), AppProtocol: deref(p.AppProtocol)}
		if sp.Protocol == "" {
			sp.Protocol = string(corev1.ProtocolTCP)
		}
		// A nil name or number means that the port is skipped (rule A7).
		if p.Name != nil && deref(p.Port) != 0 {
			sp.Port, _ = f.port(fmt.Sprintf("ports[%d].port", i), *p.Port)
		}
		out.Ports = append(out.Ports, sp)
	}
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return out, f
	}
	for i, e := range s.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		field := fmt.Sprintf("endpoints[%d].addresses[0]", i)
		a, ok := f.addr(field, e.Addresses[0])
		if ok && a.Is6() != out.IPv6 {
			f = append(f, v1alpha1.FieldError{Field: field, Err: fmt.Sprintf("%s is not of addressType %s", a, s.AddressType), Fix: "one slice per family; left out"})
			continue
		}
		if ok {
			out.Endpoints = append(out.Endpoints, sliceEndpoint(&s.Endpoints[i], a))
		}
	}
	return out, f
}

func sliceEndpoint(e *discoveryv1.Endpoint, a netip.Addr) source.SliceEndpoint {
	out := source.SliceEndpoint{
		Address:     a,
		Ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
		Serving:     e.Conditions.Serving == nil || *e.Conditions.Serving,
		Terminating: deref(e.Conditions.Terminating),
		Node:        deref(e.NodeName),
		Zone:        deref(e.Zone),
		Hostname:    deref(e.Hostname),
	}
	if h := e.Hints; h != nil {
		for _, z := range h.ForZones {
			out.HintZones = append(out.HintZones, z.Name)
		}
		for _, n := range h.ForNodes {
			out.HintNodes = append(out.HintNodes, n.Name)
		}
		slices.Sort(out.HintZones)
		slices.Sort(out.HintNodes)
	}
	if t := e.TargetRef; t != nil {
		out.Target = source.Ref{Kind: t.Kind, Namespace: t.Namespace, Name: t.Name}
	}
	return out
}

func deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// controller gives the owner that controls an object.
func controller(refs []metav1.OwnerReference, namespace string) source.Ref {
	for _, r := range refs {
		if deref(r.Controller) {
			return source.Ref{Kind: r.Kind, Namespace: namespace, Name: r.Name}
		}
	}
	return source.Ref{}
}
