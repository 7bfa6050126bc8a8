package slices

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", Selector: map[string]string{"app": "web"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func pod(name string, number int, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "node1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			PodIPs:     []corev1.PodIP{{IP: fmt.Sprintf("10.244.1.%d", number)}, {IP: fmt.Sprintf("fd00::%x", number)}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func notReadyPod(p *corev1.Pod) { p.Status.Conditions = nil }
func ending(p *corev1.Pod)      { p.DeletionTimestamp = &metav1.Time{} }

func containers(ports ...corev1.ContainerPort) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Ports: ports}} }
}

// brief writes slices as "name ports: address flags ...", flags r(eady)
// s(erving) t(erminating).
func brief(list []*discoveryv1.EndpointSlice) string {
	var lines []string
	for _, s := range list {
		var b strings.Builder
		b.WriteString(s.Name)
		for _, p := range s.Ports {
			fmt.Fprintf(&b, " %s/%d", *p.Name, *p.Port)
		}
		b.WriteString(":")
		for _, e := range s.Endpoints {
			fmt.Fprintf(&b, " %s=", e.Addresses[0])
			for _, f := range []struct {
				set  *bool
				name string
			}{{e.Conditions.Ready, "r"}, {e.Conditions.Serving, "s"}, {e.Conditions.Terminating, "t"}} {
				if *f.set {
					b.WriteString(f.name)
				}
			}
			if e.Zone != nil {
				b.WriteString("@" + *e.Zone)
			}
			if e.Hostname != nil {
				b.WriteString("," + *e.Hostname)
			}
			if e.Hints != nil {
				fmt.Fprintf(&b, " hints%v%v", e.Hints.ForZones, e.Hints.ForNodes)
			}
		}
		lines = append(lines, b.String())
	}
	return strings.Join(lines, "\n")
}

func TestBuild(t *testing.T) {
	named := func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("web") }
	always := corev1.ContainerRestartPolicyAlways
	for _, c := range []struct {
		name string
		svc  *corev1.Service
		pods []*corev1.Pod
		want string
	}{
		{"nobody", service(nil), nil, "web-ipv4-0:"},
		{"ready, not ready, ending, ending and not ready", service(nil),
			[]*corev1.Pod{pod("a", 1, nil), pod("b", 2, notReadyPod), pod("c", 3, ending), pod("d", 4, func(p *corev1.Pod) { notReadyPod(p); ending(p) })},
			"web-ipv4-0 http/8080: 10.244.1.1=rs 10.244.1.2= 10.244.1.3=st 10.244.1.4=t"},
		{"publishNotReadyAddresses", service(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }),
			[]*corev1.Pod{pod("b", 2, notReadyPod), pod("c", 3, ending)}, "web-ipv4-0 http/8080: 10.244.1.2=r 10.244.1.3=rst"},
		{"ended, without address, of others", service(nil), []*corev1.Pod{
			pod("a", 1, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
			pod("b", 2, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			pod("c", 3, func(p *corev1.Pod) { p.Status.PodIPs = nil }),
			pod("d", 4, func(p *corev1.Pod) { p.Labels = nil }),
			pod("e", 5, func(p *corev1.Pod) { p.Namespace = "other" })}, "web-ipv4-0:"},
		{"both families", service(func(s *corev1.Service) {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		}), []*corev1.Pod{pod("a", 1, nil)}, "web-ipv4-0 http/8080: 10.244.1.1=rs\nweb-ipv6-0 http/8080: fd00::1=rs"},
		{"a pod of one family", service(func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }),
			[]*corev1.Pod{pod("a", 1, func(p *corev1.Pod) { p.Status.PodIPs = p.Status.PodIPs[:1] })}, "web-ipv6-0:"},
		{"named ports differ", service(named), []*corev1.Pod{
			pod("a", 1, containers(corev1.ContainerPort{Name: "web", ContainerPort: 8080, Protocol: "TCP"})),
			pod("b", 2, containers(corev1.ContainerPort{Name: "web", ContainerPort: 9090, Protocol: "TCP"})),
			pod("c", 3, containers(corev1.ContainerPort{Name: "web", ContainerPort: 8080, Protocol: "TCP"}))},
			"web-ipv4-0 http/8080: 10.244.1.1=rs 10.244.1.3=rs\nweb-ipv4-1 http/9090: 10.244.1.2=rs"},
		{"named port of another protocol, of no container", service(named), []*corev1.Pod{
			pod("a", 1, containers(corev1.ContainerPort{Name: "web", ContainerPort: 8080, Protocol: "UDP"}))},
			"web-ipv4-0: 10.244.1.1=rs"},
		{"named port of a native sidecar, not of an init container", service(named), []*corev1.Pod{
			pod("a", 1, func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{
					{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 1, Protocol: "TCP"}}},
					{RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 7, Protocol: "TCP"}}}}
			})}, "web-ipv4-0 http/7: 10.244.1.1=rs"},
		{"hostname under its own Service only", service(nil), []*corev1.Pod{
			pod("a", 1, func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "a0", "web" }),
			pod("b", 2, func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "b0", "else" })},
			"web-ipv4-0 http/8080: 10.244.1.1=rs,a0 10.244.1.2=rs"},
		{"zones and hints", service(func(s *corev1.Service) {
			s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameNode)
		}), []*corev1.Pod{pod("a", 1, func(p *corev1.Pod) { p.Spec.NodeName = "node9" }), pod("b", 2, func(p *corev1.Pod) { p.Spec.NodeName = "node9"; ending(p) })},
			"web-ipv4-0 http/8080: 10.244.1.1=rs@z9 hints[{z9}][{node9}] 10.244.1.2=st@z9"},
		{"no selector", service(func(s *corev1.Service) { s.Spec.Selector = nil }), []*corev1.Pod{pod("a", 1, nil)}, ""},
		{"ExternalName", service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), []*corev1.Pod{pod("a", 1, nil)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := brief(Build(Input{Service: c.svc, Pods: c.pods, Zone: zone}))
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func zone(node string) string {
	if node == "node9" {
		return "z9"
	}
	return ""
}

func TestLabels(t *testing.T) {
	s := service(func(s *corev1.Service) {
		s.Spec.ClusterIP = corev1.ClusterIPNone
		s.Labels = map[string]string{"team": "a", discoveryv1.LabelServiceName: "forged"}
	})
	got := Build(Input{Service: s, Zone: zone})[0].Labels
	if got["team"] != "a" || got[discoveryv1.LabelServiceName] != "web" || got[discoveryv1.LabelManagedBy] != managedBy {
		t.Errorf("labels %v", got)
	}
	if _, headless := got[headlessLabel]; !headless {
		t.Error("the slice of a headless Service does not say so")
	}
}

// TestEndpointsKeepTheirSlice grows a Service over two slices, shrinks it and
// lets it grow again: nobody moves, and no slice has more than 100.
func TestEndpointsKeepTheirSlice(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 150 {
		pods = append(pods, pod(fmt.Sprintf("p%03d", i), i, nil))
	}
	in := Input{Service: service(nil), Pods: pods, Zone: zone}
	first := Build(in)
	if len(first) != 2 || len(first[0].Endpoints) != 100 || len(first[1].Endpoints) != 50 {
		t.Fatalf("%d slices", len(first))
	}
	in.Previous = first
	in.Pods = slices.Concat(pods[:10], pods[90:]) // 80 of the first slice go
	second := Build(in)
	if len(second) != 2 || len(second[0].Endpoints) != 20 || len(second[1].Endpoints) != 50 {
		t.Fatalf("after shrinking: %d and %d", len(second[0].Endpoints), len(second[1].Endpoints))
	}
	in.Previous = second
	in.Pods = append(in.Pods, pod("zz", 200, nil))
	third := Build(in)
	if len(third[0].Endpoints) != 21 || len(third[1].Endpoints) != 50 {
		t.Fatalf("the new one did not go where room is: %d and %d", len(third[0].Endpoints), len(third[1].Endpoints))
	}
	in.Previous = third
	in.Pods = pods[100:]
	fourth := Build(in)
	if len(fourth) != 1 || fourth[0].Name != "web-ipv4-1" {
		t.Fatalf("the empty slice stays: %s", brief(fourth))
	}
	in.Previous = fourth
	in.Pods = nil
	if last := Build(in); len(last) != 1 || len(last[0].Endpoints) != 0 {
		t.Fatalf("nobody left: %s", brief(last))
	}
}
