package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heddle-mesh/heddle/internal/source"
)

// target is who is called.
type target struct {
	text    string
	doors   []door
	service *source.Service
	ports   []source.ServicePort // of the Service
	notes   []string
	empty   string // why there are no doors
}

// door is one port of one pod.
type door struct {
	pod  *source.Pod
	addr netip.Addr // of an endpoint that is no pod
	port uint16
}

// called finds whom a question means.
func (e *Explainer) called(q Question) (*target, error) {
	part := strings.Split(q.To, "/")
	ns, kind, name := q.Namespace, "pod", ""
	switch {
	case len(part) == 3:
		ns, kind, name = part[0], part[1], part[2]
	case len(part) == 2 && kindOf(part[0]) != "":
		kind, name = part[0], part[1]
	case len(part) == 2:
		ns, name = part[0], part[1]
	case len(part) == 1:
		name = part[0]
	}
	if kindOf(kind) == "" || ns == "" || name == "" {
		return nil, fmt.Errorf("--to %s: want NAMESPACE/POD, NAMESPACE/deploy/NAME or NAMESPACE/svc/NAME", q.To)
	}
	var t *target
	var err error
	switch kindOf(kind) {
	case "Service":
		t, err = e.toService(ns, name, q.Port)
	case "Deployment":
		t, err = e.toPods("Deployment", ns, name, q.Port, func(p *source.Pod) bool { return deployment(p) == name })
	default:
		t, err = e.toPods("pod", ns, name, q.Port, func(p *source.Pod) bool { return p.Name == name })
	}
	if err != nil {
		return nil, fmt.Errorf("--to %s: %w", q.To, err)
	}
	return t, nil
}

func kindOf(word string) string {
	switch word {
	case "svc", "service", "services":
		return "Service"
	case "deploy", "deployment", "deployments":
		return "Deployment"
	case "pod", "pods", "po":
		return "pod"
	}
	return ""
}

// deployment is the name of the Deployment that a pod belongs to: its
// ReplicaSet's, without the hash that ends it.
func deployment(p *source.Pod) string {
	switch p.Owner.Kind {
	case "Deployment":
		return p.Owner.Name
	case "ReplicaSet":
		if i := strings.LastIndexByte(p.Owner.Name, '-'); i > 0 {
			return p.Owner.Name[:i]
		}
	}
	return ""
}

func (e *Explainer) toPods(kind, ns, name string, port uint16, is func(*source.Pod) bool) (*target, error) {
	t := &target{text: kind + " " + ns + "/" + name}
	found := false
	for _, p := range e.live() {
		if p.Namespace != ns || !is(p) {
			continue
		}
		found = true
		ports := []uint16{port}
		if port == 0 {
			if ports = declared(p); len(ports) == 0 {
				return nil, fmt.Errorf("pod %s/%s declares no TCP port: say --port", p.Namespace, p.Name)
			}
		}
		for _, n := range ports {
			t.doors = append(t.doors, door{pod: p, port: n})
		}
	}
	if !found {
		return nil, e.absent(kind, ns, name)
	}
	if port != 0 {
		t.text += fmt.Sprintf(" port %d", port)
	}
	return t, nil
}

// declared are a pod's TCP ports, as it says itself or its Services' do.
func declared(p *source.Pod) []uint16 {
	var out []uint16
	for _, c := range p.Ports {
		if c.Protocol == "TCP" || c.Protocol == "" {
			out = append(out, c.Port)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (e *Explainer) toService(ns, name string, port uint16) (*target, error) {
	svc := e.snap.Services[source.Key{Namespace: ns, Name: name}]
	if svc == nil {
		return nil, e.absent("Service", ns, name)
	}
	t := &target{text: "Service " + ns + "/" + name, service: svc, empty: "the Service has no endpoint with a TCP port"}
	if svc.Type == "ExternalName" {
		return nil, fmt.Errorf("is another name for %s, outside the cluster: policies are about pods", svc.ExternalName)
	}
	var have []string
	for _, sp := range svc.Ports {
		if sp.Protocol != "TCP" && sp.Protocol != "" {
			continue
		}
		have = append(have, fmt.Sprint(sp.Port))
		if port == 0 || sp.Port == port {
			t.ports = append(t.ports, sp)
		}
	}
	if len(t.ports) == 0 {
		if len(have) == 0 {
			return nil, errors.New("has no TCP port")
		}
		return nil, fmt.Errorf("has no TCP port %d; it has %s (a pod's own port is asked for with --to of the pod)", port, some(have))
	}
	if port != 0 {
		t.text += fmt.Sprintf(" port %d", port)
	}
	if svc.Headless {
		t.notes = append(t.notes, "the Service is headless: callers dial its pods, which TrafficPolicies of Services do not reach")
	}
	for _, sp := range t.ports {
		t.doors = append(t.doors, e.endpoints(svc, sp)...)
	}
	return t, nil
}

// endpoints are where a Service's port leads, once each.
func (e *Explainer) endpoints(svc *source.Service, sp source.ServicePort) []door {
	var out []door
	for _, s := range e.snap.EndpointSlices {
		if s.Namespace != svc.Namespace || s.Service != svc.Name {
			continue
		}
		for _, p := range s.Ports {
			if p.Name != sp.Name || p.Port == 0 {
				continue
			}
			for _, ep := range s.Endpoints {
				d := door{addr: ep.Address, port: p.Port}
				if ep.Target.Kind == "Pod" {
					d.pod = e.snap.Pods[source.Key{Namespace: svc.Namespace, Name: ep.Target.Name}]
				}
				if d.pod == nil {
					d.pod = e.podAt(ep.Address)
				}
				if d.pod != nil {
					d.addr = netip.Addr{} // both families lead to the same sidecar
				}
				if !slices.Contains(out, d) {
					out = append(out, d)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b door) int { return strings.Compare(a.name(), b.name()) })
	return out
}

// podAt is the pod that has the address by itself.
func (e *Explainer) podAt(a netip.Addr) *source.Pod {
	for _, p := range e.live() {
		if !p.HostNetwork && slices.Contains(p.IPs, a) {
			return p
		}
	}
	return nil
}

func (d door) name() string {
	if d.pod == nil {
		return netip.AddrPortFrom(d.addr, d.port).String()
	}
	return fmt.Sprintf("%s/%s:%d", d.pod.Namespace, d.pod.Name, d.port)
}
