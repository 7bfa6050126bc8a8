package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	stdslices "slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/internal/lab/address"
	"github.com/heddle-mesh/heddle/internal/lab/manifest"
	"github.com/heddle-mesh/heddle/internal/lab/slices"
	"github.com/heddle-mesh/heddle/internal/source"
)

// endpointLookup gives a ready endpoint of a Service's port.
type endpointLookup func(namespace, name string, port int32) (netip.AddrPort, bool)

// assignClusterIPs gives the Services with addresses. Those that ask for a
// certain one come first; the others keep what they have.
func (c *Cluster) assignClusterIPs() map[source.Key]*corev1.Service {
	var wanted []*manifest.Document
	present := map[string]bool{}
	for _, doc := range c.docs.ordered {
		if s, ok := doc.Object.(*corev1.Service); ok {
			wanted = append(wanted, doc)
			if needsIP(s) {
				present[doc.Ref.Namespace+"/"+doc.Ref.Name] = true
			}
		}
	}
	for _, pool := range c.services {
		for _, owner := range pool.Owners() {
			if !present[owner] {
				pool.Free(owner)
			}
		}
	}
	stdslices.SortStableFunc(wanted, func(a, b *manifest.Document) int {
		return cmp.Compare(c.turn(a), c.turn(b))
	})
	out := map[source.Key]*corev1.Service{}
	for _, doc := range wanted {
		s := doc.Object.(*corev1.Service).DeepCopy()
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		s.UID = StableUID("Service", s.Namespace, s.Name)
		if err := c.families(s); err != nil {
			c.problem(doc, "spec.ipFamilies", err.Error(), "ask for what the lab has, or leave it out")
			continue
		}
		if needsIP(s) {
			if err := c.assign(s); err != nil {
				c.problem(doc, "spec.clusterIP", err.Error(), "remove it: the lab chooses one")
				continue
			}
		}
		out[source.Key{Namespace: s.Namespace, Name: s.Name}] = s
	}
	return out
}

// turn orders Services: fixed addresses, then those that have one, then new ones.
func (c *Cluster) turn(doc *manifest.Document) int {
	s := doc.Object.(*corev1.Service)
	if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone {
		return 0
	}
	for _, pool := range c.services {
		if _, ok := pool.Of(s.Namespace + "/" + s.Name); ok {
			return 1
		}
	}
	return 2
}

func needsIP(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone
}

// families resolves ipFamilies and ipFamilyPolicy as the API server does.
func (c *Cluster) families(s *corev1.Service) error {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	both := len(c.services) > 1
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case s.Spec.IPFamilyPolicy != nil:
		policy = *s.Spec.IPFamilyPolicy
	case len(s.Spec.IPFamilies) > 1 || len(s.Spec.ClusterIPs) > 1:
		policy = corev1.IPFamilyPolicyRequireDualStack
	case s.Spec.ClusterIP == corev1.ClusterIPNone && len(s.Spec.Selector) == 0:
		// Nobody but who writes its slices knows: as the API server, allow both.
		policy = corev1.IPFamilyPolicyPreferDualStack
	}
	families := s.Spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && a.Is6() {
			families[0] = corev1.IPv6Protocol
		}
	}
	for _, f := range families {
		if f != corev1.IPv4Protocol && (f != corev1.IPv6Protocol || !both) {
			return fmt.Errorf("the lab has no family %s", f)
		}
	}
	switch policy {
	case corev1.IPFamilyPolicySingleStack:
		families = families[:1]
	case corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicyPreferDualStack:
		if !both && policy == corev1.IPFamilyPolicyRequireDualStack {
			return fmt.Errorf("the lab has one family only")
		}
		if both && len(families) == 1 {
			other := corev1.IPv6Protocol
			if families[0] == other {
				other = corev1.IPv4Protocol
			}
			families = append(stdslices.Clone(families), other)
		}
	}
	s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = families, &policy
	return nil
}

// assign gives a Service one address per family.
func (c *Cluster) assign(s *corev1.Service) error {
	owner := s.Namespace + "/" + s.Name
	fixed := s.Spec.ClusterIPs
	if len(fixed) == 0 && s.Spec.ClusterIP != "" {
		fixed = []string{s.Spec.ClusterIP}
	}
	var ips []string
	used := map[*address.Pool]bool{}
	for i, f := range s.Spec.IPFamilies {
		pool := c.services[bitsOf(f)]
		used[pool] = true
		if i < len(fixed) {
			a, err := netip.ParseAddr(fixed[i])
			if err != nil {
				return err
			}
			if a.BitLen() != bitsOf(f) {
				return fmt.Errorf("%v is not of family %s", a, f)
			}
			if err := pool.Claim(owner, a); err != nil {
				return err
			}
			ips = append(ips, a.String())
			continue
		}
		a, err := pool.Stable(owner)
		if err != nil {
			return err
		}
		ips = append(ips, a.String())
	}
	for _, pool := range c.services {
		if !used[pool] {
			pool.Free(owner)
		}
	}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = ips[0], ips
	return nil
}

func bitsOf(f corev1.IPFamily) int {
	if f == corev1.IPv6Protocol {
		return 128
	}
	return 32
}

// buildSlices rebuilds the EndpointSlices of all Services.
func (c *Cluster) buildSlices(services map[source.Key]*corev1.Service) {
	byNamespace := map[string][]*corev1.Pod{}
	for _, p := range c.sorted() {
		if p.stage >= placed {
			byNamespace[p.obj.Namespace] = append(byNamespace[p.obj.Namespace], p.obj)
		}
	}
	next := map[source.Key][]*discoveryv1.EndpointSlice{}
	for key, s := range services {
		next[key] = slices.Build(slices.Input{Service: s, Pods: byNamespace[key.Namespace], Zone: c.zone, Previous: c.slices[key]})
	}
	c.slices = next
}

// allSlices are ours and those written by hand, sorted by name.
func (c *Cluster) allSlices() []*discoveryv1.EndpointSlice {
	out := c.docs.handMade()
	for _, key := range stdslices.SortedFunc(maps.Keys(c.slices), compareKeys) {
		out = append(out, c.slices[key]...)
	}
	return out
}

func compareKeys(a, b source.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// endpointLookup works on this Step's Services and slices, which do not change
// any more: it may be used from another goroutine.
func (c *Cluster) endpointLookup(services map[source.Key]*corev1.Service) endpointLookup {
	all := c.allSlices()
	return func(namespace, name string, port int32) (netip.AddrPort, bool) {
		s := services[source.Key{Namespace: namespace, Name: name}]
		if s == nil {
			return netip.AddrPort{}, false
		}
		for _, sp := range s.Spec.Ports {
			if sp.Port != port {
				continue
			}
			for _, slice := range all {
				if slice.Namespace == namespace && slice.Labels[discoveryv1.LabelServiceName] == name {
					if at, ok := firstReady(slice, sp.Name); ok {
						return at, true
					}
				}
			}
		}
		return netip.AddrPort{}, false
	}
}

func firstReady(s *discoveryv1.EndpointSlice, portName string) (netip.AddrPort, bool) {
	for _, p := range s.Ports {
		if p.Port == nil || p.Name != nil && *p.Name != portName || p.Name == nil && portName != "" {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, ip := range e.Addresses {
				if a, err := netip.ParseAddr(ip); err == nil {
					return netip.AddrPortFrom(a, uint16(*p.Port)), true
				}
			}
		}
	}
	return netip.AddrPort{}, false
}
