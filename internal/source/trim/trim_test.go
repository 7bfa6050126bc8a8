package trim

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-mesh/heddle/internal/source"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", " 10.0.0.1 ": "10.0.0.1", "010.000.000.001": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "FD00::1": "fd00::1",
		"": "", "10.0.0": "", "10.0.0.256": "", "fe80::1%eth0": "", "10..0.1": "", "x": "", "-1.0.0.0": "",
	} {
		got, err := ParseAddr(in)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("address %q: %v %v, want %q", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"10.1.2.3/8": "10.0.0.0/8", " 010.0.0.0/8": "10.0.0.0/8", "fd00::1/64": "fd00::/64", "0.0.0.0/0": "0.0.0.0/0",
		"10.0.0.0": "", "10.0.0.0/33": "", "/8": "", "10.0.0.0/x": "", "10.0.0.0/-1": "",
	} {
		got, err := ParsePrefix(in)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("prefix %q: %v %v, want %q", in, got, err, want)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// TestConditions is KEP-1672's reading of what is not said.
func TestConditions(t *testing.T) {
	for _, tt := range []struct {
		ready, serving, terminating *bool
		want                        [3]bool
	}{
		{nil, nil, nil, [3]bool{true, true, false}},
		{ptr(false), nil, nil, [3]bool{false, true, false}},
		{ptr(false), ptr(true), ptr(true), [3]bool{false, true, true}},
		{ptr(true), ptr(false), nil, [3]bool{true, false, false}},
	} {
		s, faults := EndpointSlice(&discoveryv1.EndpointSlice{
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{
				Ready: tt.ready, Serving: tt.serving, Terminating: tt.terminating,
			}}},
		})
		if len(faults) > 0 || len(s.Endpoints) != 1 {
			t.Fatal(faults)
		}
		e := s.Endpoints[0]
		if got := [3]bool{e.Ready, e.Serving, e.Terminating}; got != tt.want {
			t.Errorf("got %v, want %v", got, tt.want)
		}
	}
}

func TestSlicePorts(t *testing.T) {
	s, _ := EndpointSlice(&discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{
		{Name: ptr(""), Port: ptr(int32(1))}, {Port: ptr(int32(2))}, {Name: ptr("x")}, {Name: ptr("y"), Port: ptr(int32(70000))}, {Name: ptr("z"), Port: ptr(int32(5)), Protocol: ptr(corev1.ProtocolUDP)},
	}})
	want := []source.SlicePort{{Port: 1, Protocol: "TCP"}, {Protocol: "TCP"}, {Name: "x", Protocol: "TCP"}, {Name: "y", Protocol: "TCP"}, {Name: "z", Port: 5, Protocol: "UDP"}}
	for i, p := range s.Ports {
		if p != want[i] {
			t.Errorf("port %d: %+v, want %+v", i, p, want[i])
		}
	}
}

func TestPodProbes(t *testing.T) {
	http := func(port intstr.IntOrString, path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port, Path: path}}}
	}
	always := corev1.ContainerRestartPolicyAlways
	p, faults := Pod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"heddle.dev/status": "{}"}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{
				{Name: "once", LivenessProbe: http(intstr.FromInt32(1), "")},
				{Name: "heddle-sidecar", RestartPolicy: &always, ReadinessProbe: http(intstr.FromInt32(16020), "/ready")},
				{Name: "native", RestartPolicy: &always, StartupProbe: http(intstr.FromInt32(2), "")},
			},
			Containers: []corev1.Container{{
				Name: "app", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}},
				LivenessProbe:  http(intstr.FromString("web"), "/live"),
				ReadinessProbe: http(intstr.FromString("none"), "/"),
			}},
		},
	})
	want := []source.Probe{{Port: 2, Path: "/"}, {Port: 8080, Path: "/live"}}
	if len(p.Probes) != 2 || p.Probes[0] != want[0] || p.Probes[1] != want[1] {
		t.Errorf("probes %v, want %v", p.Probes, want)
	}
	if len(faults) != 1 || faults[0].Field != "spec.containers[0].readinessProbe" {
		t.Errorf("faults %v", faults)
	}
	if !p.Meshed || p.ServiceAccount != "default" {
		t.Errorf("%+v", p)
	}
}

// TestSkipInbound: what the injector decided counts, and not what the pod's
// annotation says later; the annotation counts for pods made by hand.
func TestSkipInbound(t *testing.T) {
	for _, tt := range []struct{ status, asked, want, fault string }{
		{"", "22", "[]", ""}, // no sidecar, no redirect
		{`{"skipInbound":"22,8000-8100"}`, "9090", "[22 8000-8100]", ""},
		{`{"skipInbound":""}`, "9090", "[]", ""},
		{"{}", "9090, 100-102", "[9090 100-102]", ""},
		{"not JSON", "9090", "[9090]", ""},
		{"{}", "", "[]", ""},
		{`{"skipInbound":"22,x"}`, "9090", "[]", `metadata.annotations["heddle.dev/status"]`},
		{"{}", "8100-8000", "[]", `metadata.annotations["heddle.dev/skip-inbound-ports"]`},
	} {
		notes := map[string]string{"heddle.dev/skip-inbound-ports": tt.asked}
		if tt.status != "" {
			notes["heddle.dev/status"] = tt.status
		}
		p, faults := Pod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: notes}})
		if got := fmt.Sprint(p.SkipInbound); got != tt.want {
			t.Errorf("status %q, annotation %q: %s, want %s", tt.status, tt.asked, got, tt.want)
		}
		if (len(faults) > 0) != (tt.fault != "") || tt.fault != "" && faults[0].Field != tt.fault {
			t.Errorf("status %q, annotation %q: faults %v", tt.status, tt.asked, faults)
		}
	}
}

func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "010.0.0.1", "::ffff:1.2.3.4", "fe80::1%x", "....", "0x1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddr(s)
		if err != nil {
			return
		}
		if again, err := ParseAddr(a.String()); err != nil || again != a || a.Is4In6() || a.Zone() != "" {
			t.Fatalf("%q gives %v, then %v %v", s, a, again, err)
		}
	})
}

// The target of a probe is the kubelet's request line: net/http's, to the URL
// that the kubelet makes of the path.
func TestProbeTarget(t *testing.T) {
	for path, want := range map[string]string{
		"": "/", "/": "/", "/healthz": "/healthz", "healthz": "/healthz", "/a b": "/a%20b", "/x?full=1": "/x?full=1",
		"?x": "/?x", "/x#part": "/x", "/%41": "/%41", "/%zz": "/%25zz",
	} {
		if got := target(path); got != want {
			t.Errorf("%q is asked for as %q, want %q", path, got, want)
		}
	}
}
