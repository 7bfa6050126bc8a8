package trim

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/source"
)

// sidecarName is our own container (injector), whose ports and probes are not
// the application's.
const sidecarName = "heddle-sidecar"

// Pod trims a pod.
func Pod(p *corev1.Pod) (*source.Pod, []v1alpha1.FieldError) {
	var f faults
	_, meshed := p.Annotations[v1alpha1.StatusKey]
	out := &source.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID),
		Labels: p.Labels, Annotations: p.Annotations,
		Node:           p.Spec.NodeName,
		ServiceAccount: p.Spec.ServiceAccountName,
		HostNetwork:    p.Spec.HostNetwork,
		Created:        p.CreationTimestamp.Time,
		Phase:          string(p.Status.Phase),
		Terminating:    p.DeletionTimestamp != nil,
		Meshed:         meshed,
		Owner:          controller(p.OwnerReferences, p.Namespace),
	}
	if out.ServiceAccount == "" {
		out.ServiceAccount = "default"
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Ready = c.Status == corev1.ConditionTrue
		}
	}
	if meshed {
		out.SkipInbound = skipInbound(p, &f)
	}
	podIPs(p, out, &f)
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			container(c, fmt.Sprintf("spec.initContainers[%d]", i), out, &f)
		}
	}
	for i := range p.Spec.Containers {
		container(&p.Spec.Containers[i], fmt.Sprintf("spec.containers[%d]", i), out, &f)
	}
	return out, f
}

// skipInbound reads what the injector decided, or, where it did not say, what
// the pod asks for. A list that cannot be read counts as empty: callers then
// speak TLS and fail, rather than speak plaintext where they should not.
func skipInbound(p *corev1.Pod, f *faults) []redirect.PortRange {
	field, list := fmt.Sprintf("metadata.annotations[%q]", v1alpha1.SkipInboundPorts), p.Annotations[v1alpha1.SkipInboundPorts]
	var status struct {
		SkipInbound *string `json:"skipInbound"`
	}
	if json.Unmarshal([]byte(p.Annotations[v1alpha1.StatusKey]), &status) == nil && status.SkipInbound != nil {
		field, list = fmt.Sprintf("metadata.annotations[%q]", v1alpha1.StatusKey), *status.SkipInbound
	}
	ports, err := redirect.ParsePorts(list)
	if err != nil {
		*f = append(*f, v1alpha1.FieldError{Field: field, Err: err.Error(), Fix: "ports and ranges such as 22,8000-8100; until then callers expect mTLS on all ports"})
		return nil
	}
	return ports
}

func podIPs(p *corev1.Pod, out *source.Pod, f *faults) {
	for i, ip := range p.Status.PodIPs {
		if a, ok := f.addr(fmt.Sprintf("status.podIPs[%d].ip", i), ip.IP); ok && !slices.Contains(out.IPs, a) {
			out.IPs = append(out.IPs, a)
		}
	}
	if p.Status.PodIP == "" {
		return
	}
	if a, ok := f.addr("status.podIP", p.Status.PodIP); ok && !slices.Contains(out.IPs, a) {
		out.IPs = append([]netip.Addr{a}, out.IPs...)
	}
}

// container takes what one long-running container of the application says.
func container(c *corev1.Container, field string, out *source.Pod, f *faults) {
	if c.Name == sidecarName {
		return
	}
	for i, p := range c.Ports {
		if n, ok := f.port(fmt.Sprintf("%s.ports[%d].containerPort", field, i), p.ContainerPort); ok {
			protocol := string(p.Protocol)
			if protocol == "" {
				protocol = string(corev1.ProtocolTCP)
			}
			out.Ports = append(out.Ports, source.ContainerPort{Name: p.Name, Port: n, Protocol: protocol})
		}
	}
	for _, pr := range []struct {
		name  string
		probe *corev1.Probe
	}{{"startupProbe", c.StartupProbe}, {"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}} {
		if pr.probe == nil {
			continue
		}
		got, ok := probe(c, pr.probe)
		if !ok {
			continue
		}
		if got.Port == 0 {
			*f = append(*f, v1alpha1.FieldError{Field: field + "." + pr.name, Err: "its port is none of the container's", Fix: "a number, or the name of a port; left out"})
			continue
		}
		if !slices.Contains(out.Probes, got) {
			out.Probes = append(out.Probes, got)
		}
	}
}

// probe gives what the node sends over the network; false: nothing. gRPC
// probes are HTTP/2 to one path.
func probe(c *corev1.Container, p *corev1.Probe) (source.Probe, bool) {
	switch {
	case p.HTTPGet != nil:
		return source.Probe{Port: portOf(c, p.HTTPGet.Port), Path: target(p.HTTPGet.Path)}, true
	case p.TCPSocket != nil:
		return source.Probe{Port: portOf(c, p.TCPSocket.Port)}, true
	case p.GRPC != nil:
		return source.Probe{Port: clamp(p.GRPC.Port), Path: "/grpc.health.v1.Health/Check"}, true
	}
	return source.Probe{}, false
}

// target is what the kubelet makes of a probe's path in the request line: the
// slash before it and its escapes are added, a query stays, a fragment goes.
func target(path string) string {
	u, err := url.Parse(path)
	if err != nil {
		u = &url.URL{Path: path}
	}
	u.Scheme, u.Host = "http", "pod"
	sent, err := url.Parse(u.String())
	if err != nil {
		return path
	}
	return sent.RequestURI()
}

func portOf(c *corev1.Container, p intstr.IntOrString) uint16 {
	if p.Type == intstr.Int {
		return clamp(p.IntVal)
	}
	for _, cp := range c.Ports {
		if cp.Name == p.StrVal {
			return clamp(cp.ContainerPort)
		}
	}
	return clamp(int32(p.IntValue())) // "8080" is a number too
}

func clamp(n int32) uint16 {
	if n < 1 || n > 65535 {
		return 0
	}
	return uint16(n)
}
