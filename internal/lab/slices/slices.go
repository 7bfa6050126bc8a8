// Package slices builds the EndpointSlices of a Service from the pods it
// selects, as Kubernetes' controller does (KEP-752, conditions by KEP-1672):
// one set of slices per address family and per set of resolved ports. It is
// pure. It neither knows which endpoints a client uses (internal/endpoint) nor
// touches slices that somebody wrote by hand. internal/lab calls it.
package slices

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	stdslices "slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// maxEndpoints of one slice, as Kubernetes' default.
	maxEndpoints = 100
	// managedBy marks the slices that are ours, as the label's reference says.
	managedBy = "endpointslice-controller.k8s.io"
	// headlessLabel marks slices of headless Services.
	headlessLabel = "service.kubernetes.io/headless"
)

// Input is what the slices of one Service follow from.
type Input struct {
	Service *corev1.Service
	Pods    []*corev1.Pod            // of the Service's namespace; others are ignored
	Zone    func(node string) string // "" if unknown
	// Previous are the slices built last time: endpoints keep their slice.
	Previous []*discoveryv1.EndpointSlice
}

// Build gives the Service's slices, sorted by name; none for a Service without
// a selector, whose slices are written by hand, and for an ExternalName.
func Build(in Input) []*discoveryv1.EndpointSlice {
	svc := in.Service
	if len(svc.Spec.Selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	selector := labels.SelectorFromSet(svc.Spec.Selector)
	var pods []*corev1.Pod
	for _, p := range in.Pods {
		if p.Namespace == svc.Namespace && selector.Matches(labels.Set(p.Labels)) && mayServe(p) {
			pods = append(pods, p)
		}
	}
	stdslices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	var out []*discoveryv1.EndpointSlice
	for _, family := range svc.Spec.IPFamilies {
		out = append(out, in.family(family, pods)...)
	}
	stdslices.SortFunc(out, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// mayServe leaves out pods that have ended or have no address yet; terminating
// pods stay until they are gone.
func mayServe(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded && len(p.Status.PodIPs) > 0
}

// group is the endpoints that share one set of resolved ports.
type group struct {
	ports     []discoveryv1.EndpointPort
	endpoints map[string]discoveryv1.Endpoint // by pod UID
}

// family builds the slices of one address family.
func (in Input) family(family corev1.IPFamily, pods []*corev1.Pod) []*discoveryv1.EndpointSlice {
	groups := map[string]*group{}
	for _, p := range pods {
		addr, ok := addressOf(p, family)
		if !ok {
			continue
		}
		ports := resolve(in.Service, p)
		key := portsKey(ports)
		g := groups[key]
		if g == nil {
			g = &group{ports: ports, endpoints: map[string]discoveryv1.Endpoint{}}
			groups[key] = g
		}
		g.endpoints[string(p.UID)] = in.endpoint(p, addr)
	}
	if len(groups) == 0 { // an empty slice says: known, and nobody is there
		groups[""] = &group{}
	}
	taken := map[string]bool{}
	var out []*discoveryv1.EndpointSlice
	for _, key := range stdslices.Sorted(maps.Keys(groups)) {
		out = append(out, in.fill(family, key, groups[key], taken)...)
	}
	for _, s := range out {
		if s.Name == "" {
			s.Name = in.freeName(family, taken)
		}
		in.hint(s)
	}
	return out
}

// fill spreads a group over slices: who has a slice stays there, the others go
// where room is, and slices that became empty are dropped unless all are.
func (in Input) fill(family corev1.IPFamily, key string, g *group, taken map[string]bool) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	placed := map[string]bool{}
	for _, old := range in.Previous {
		if string(old.AddressType) != string(family) || portsKey(old.Ports) != key || taken[old.Name] {
			continue
		}
		s := in.newSlice(family, g.ports)
		s.Name = old.Name
		for _, e := range old.Endpoints {
			if e.TargetRef == nil {
				continue
			}
			uid := string(e.TargetRef.UID)
			if now, ok := g.endpoints[uid]; ok && !placed[uid] {
				placed[uid] = true
				s.Endpoints = append(s.Endpoints, now)
			}
		}
		taken[old.Name] = true
		out = append(out, s)
	}
	var rest []discoveryv1.Endpoint
	for uid, e := range g.endpoints {
		if !placed[uid] {
			rest = append(rest, e)
		}
	}
	stdslices.SortFunc(rest, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.TargetRef.Name, b.TargetRef.Name) })
	for _, s := range out {
		n := min(len(rest), maxEndpoints-len(s.Endpoints))
		s.Endpoints = append(s.Endpoints, rest[:n]...)
		rest = rest[n:]
	}
	for len(rest) > 0 || len(out) == 0 {
		s := in.newSlice(family, g.ports)
		n := min(len(rest), maxEndpoints)
		s.Endpoints = append(s.Endpoints, rest[:n]...)
		rest = rest[n:]
		out = append(out, s)
	}
	return dropEmpty(out, taken)
}

func dropEmpty(out []*discoveryv1.EndpointSlice, taken map[string]bool) []*discoveryv1.EndpointSlice {
	var full []*discoveryv1.EndpointSlice
	for _, s := range out {
		if len(s.Endpoints) > 0 {
			full = append(full, s)
		}
	}
	if len(full) == 0 {
		full = out[:1]
	}
	for _, s := range out {
		if !stdslices.Contains(full, s) {
			delete(taken, s.Name)
		}
	}
	return full
}

func (in Input) newSlice(family corev1.IPFamily, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	svc := in.Service
	l := map[string]string{}
	for k, v := range svc.Labels {
		if k != discoveryv1.LabelServiceName && k != discoveryv1.LabelManagedBy && k != headlessLabel {
			l[k] = v
		}
	}
	l[discoveryv1.LabelServiceName] = svc.Name
	l[discoveryv1.LabelManagedBy] = managedBy
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		l[headlessLabel] = ""
	}
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Labels: l,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID, Controller: new(true)}},
		},
		AddressType: discoveryv1.AddressType(family),
		Ports:       ports,
		Endpoints:   []discoveryv1.Endpoint{},
	}
}

// freeName gives a name that no slice of the Service has: the same pods give
// the same names, in this life of the lab and the next.
func (in Input) freeName(family corev1.IPFamily, taken map[string]bool) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s-%s-%d", in.Service.Name, strings.ToLower(string(family)), i)
		if !taken[name] {
			taken[name] = true
			return name
		}
	}
}

// endpoint resolves the conditions as KEP-1672 says: serving is the pod's own
// readiness, ready is serving and not terminating, unless the Service publishes
// all its pods.
func (in Input) endpoint(p *corev1.Pod, addr string) discoveryv1.Endpoint {
	serving := podReady(p)
	terminating := p.DeletionTimestamp != nil
	ready := in.Service.Spec.PublishNotReadyAddresses || serving && !terminating
	e := discoveryv1.Endpoint{
		Addresses:  []string{addr},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
	}
	if p.Spec.NodeName != "" {
		e.NodeName = &p.Spec.NodeName
		if zone := in.Zone(p.Spec.NodeName); zone != "" {
			e.Zone = &zone
		}
	}
	if p.Spec.Hostname != "" && p.Spec.Subdomain == in.Service.Name {
		e.Hostname = &p.Spec.Hostname
	}
	return e
}

// hint says who should use an endpoint, for Services that want traffic near
// (KEP-2433, KEP-3015).
func (in Input) hint(s *discoveryv1.EndpointSlice) {
	d := in.Service.Spec.TrafficDistribution
	if d == nil {
		return
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !*e.Conditions.Ready {
			continue
		}
		h := &discoveryv1.EndpointHints{}
		switch *d {
		case corev1.ServiceTrafficDistributionPreferSameNode:
			if e.NodeName != nil {
				h.ForNodes = []discoveryv1.ForNode{{Name: *e.NodeName}}
			}
			fallthrough
		case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
			if e.Zone != nil {
				h.ForZones = []discoveryv1.ForZone{{Name: *e.Zone}}
			}
		}
		if h.ForNodes != nil || h.ForZones != nil {
			e.Hints = h
		}
	}
}

// resolve gives the ports of a Service on one pod; a named target port that the
// pod does not have is left out.
func resolve(svc *corev1.Service, p *corev1.Pod) []discoveryv1.EndpointPort {
	out := []discoveryv1.EndpointPort{}
	for i := range svc.Spec.Ports {
		sp := &svc.Spec.Ports[i]
		number, ok := targetPort(sp, p)
		if !ok {
			continue
		}
		out = append(out, discoveryv1.EndpointPort{
			Name: &sp.Name, Port: &number, Protocol: &sp.Protocol, AppProtocol: sp.AppProtocol,
		})
	}
	return out
}

func targetPort(sp *corev1.ServicePort, p *corev1.Pod) (int32, bool) {
	if sp.TargetPort.Type == intstr.Int {
		if sp.TargetPort.IntVal == 0 {
			return sp.Port, true
		}
		return sp.TargetPort.IntVal, true
	}
	find := func(c *corev1.Container) (int32, bool) {
		for _, cp := range c.Ports {
			if cp.Name == sp.TargetPort.StrVal && cp.Protocol == sp.Protocol {
				return cp.ContainerPort, true
			}
		}
		return 0, false
	}
	for i := range p.Spec.Containers {
		if n, ok := find(&p.Spec.Containers[i]); ok {
			return n, true
		}
	}
	for i := range p.Spec.InitContainers { // native sidecars serve too (KEP-753)
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			if n, ok := find(c); ok {
				return n, true
			}
		}
	}
	return 0, false
}

func portsKey(ports []discoveryv1.EndpointPort) string {
	var b strings.Builder
	for _, p := range ports {
		fmt.Fprintf(&b, "%s/%d/%s/", deref(p.Name), deref(p.Port), deref(p.Protocol))
		if p.AppProtocol != nil {
			b.WriteString(*p.AppProtocol)
		}
		b.WriteByte(';')
	}
	return b.String()
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func addressOf(p *corev1.Pod, family corev1.IPFamily) (string, bool) {
	for _, ip := range p.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err == nil && a.Is4() == (family == corev1.IPv4Protocol) {
			return ip.IP, true
		}
	}
	return "", false
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
