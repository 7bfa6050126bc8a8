package trim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
)

// defaultAffinity is Kubernetes' default of sessionAffinityConfig.clientIP.
const defaultAffinity = 3 * time.Hour

// Service trims a Service.
func Service(s *corev1.Service) (*source.Service, []v1alpha1.FieldError) {
	var f faults
	out := &source.Service{
		Namespace: s.Namespace, Name: s.Name,
		Created: s.CreationTimestamp.Time,
		Labels:  s.Labels, Annotations: s.Annotations,
		Type:                   string(s.Spec.Type),
		Headless:               s.Spec.ClusterIP == corev1.ClusterIPNone,
		ExternalName:           s.Spec.ExternalName,
		Selector:               s.Spec.Selector,
		InternalLocal:          deref(s.Spec.InternalTrafficPolicy) == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal:          s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		TrafficDistribution:    deref(s.Spec.TrafficDistribution),
		PublishNotReady:        s.Spec.PublishNotReadyAddresses,
		HealthCheckNodePort:    clamp(s.Spec.HealthCheckNodePort),
		NoLoadBalancerNodePort: s.Spec.AllocateLoadBalancerNodePorts != nil && !*s.Spec.AllocateLoadBalancerNodePorts,
	}
	if out.Type == "" {
		out.Type = string(corev1.ServiceTypeClusterIP)
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.ClientIPAffinity = defaultAffinity
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && deref(c.ClientIP.TimeoutSeconds) > 0 {
			out.ClientIPAffinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	addresses(s, out, &f)
	for i, p := range s.Spec.Ports {
		n, ok := f.port(fmt.Sprintf("spec.ports[%d].port", i), p.Port)
		if !ok {
			continue
		}
		sp := source.ServicePort{Name: p.Name, Port: n, Protocol: string(p.Protocol), AppProtocol: deref(p.AppProtocol), NodePort: clamp(p.NodePort)}
		if sp.Protocol == "" {
			sp.Protocol = string(corev1.ProtocolTCP)
		}
		out.Ports = append(out.Ports, sp)
	}
	return out, f
}

func addresses(s *corev1.Service, out *source.Service, f *faults) {
	ips := s.Spec.ClusterIPs
	field := "spec.clusterIPs[%d]"
	if len(ips) == 0 && s.Spec.ClusterIP != "" {
		ips, field = []string{s.Spec.ClusterIP}, "spec.clusterIP"
	}
	for i, ip := range ips {
		if ip == corev1.ClusterIPNone || ip == "" {
			continue
		}
		if a, ok := f.addr(at(field, i), ip); ok && !slices.Contains(out.ClusterIPs, a) {
			out.ClusterIPs = append(out.ClusterIPs, a)
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		if a, ok := f.addr(fmt.Sprintf("spec.externalIPs[%d]", i), ip); ok {
			out.ExternalIPs = append(out.ExternalIPs, a)
		}
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP == "" || in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		if a, ok := f.addr(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP); ok {
			out.LoadBalancerIPs = append(out.LoadBalancerIPs, a)
		}
	}
	for i, c := range s.Spec.LoadBalancerSourceRanges {
		if p, ok := f.prefix(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), c); ok {
			out.LoadBalancerRanges = append(out.LoadBalancerRanges, p)
		}
	}
	slices.SortFunc(out.LoadBalancerRanges, func(a, b netip.Prefix) int { return a.Compare(b) })
}

func at(field string, i int) string {
	if field == "spec.clusterIP" {
		return field
	}
	return fmt.Sprintf(field, i)
}
