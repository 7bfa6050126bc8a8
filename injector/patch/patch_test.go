package patch

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
)

func TestWanted(t *testing.T) {
	m := func(v string) map[string]string { return map[string]string{v1alpha1.InjectKey: v} }
	cases := []struct {
		name                  string
		nsName                string
		ns, label, annotation map[string]string
		want                  Reason
		err                   string
	}{
		{"namespace", "shop", m("enabled"), nil, nil, Injected, ""},
		{"nobody asks", "shop", nil, nil, nil, NotEnabled, ""},
		{"namespace says no", "shop", m("disabled"), nil, nil, NotEnabled, ""},
		{"pod only", "shop", nil, m("enabled"), nil, Injected, ""},
		{"annotation only", "shop", nil, nil, m("enabled"), Injected, ""},
		{"pod says no", "shop", m("enabled"), m("disabled"), nil, Disabled, ""},
		{"label goes before annotation", "shop", m("enabled"), m("disabled"), m("enabled"), Disabled, ""},
		{"label goes before annotation, other way", "shop", nil, m("enabled"), m("disabled"), Injected, ""},
		{"cluster's own", "kube-system", m("enabled"), m("enabled"), nil, ProtectedNamespace, ""},
		{"our own", "heddle-system", m("enabled"), nil, nil, ProtectedNamespace, ""},
		{"typo on the pod", "shop", m("enabled"), m("true"), nil, BadValue, `Pod shop/p: metadata.labels["heddle.dev/inject"]: "true" is not a choice (write enabled or disabled)`},
		{"typo on the namespace", "shop", m("yes"), nil, nil, BadValue, `Namespace shop: metadata.labels["heddle.dev/inject"]: "yes" is not a choice (write enabled or disabled)`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: c.label, Annotations: c.annotation}}
			got := Patch(pod, Namespace{Name: c.nsName, Labels: c.ns}, testConfig())
			text := ""
			if got.Err != nil {
				text = got.Err.Error()
			}
			if got.Reason != c.want || text != c.err || (got.Reason == Injected) != (len(got.Patch) > 0) {
				t.Errorf("got %q, %q, %d operations", got.Reason, text, len(got.Patch))
			}
		})
	}
}

func TestNamespaceDefaults(t *testing.T) {
	ns := enabled
	ns.Annotations = map[string]string{v1alpha1.LogLevel: "debug", v1alpha1.SkipUIDs: "x"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	got := Patch(pod, ns, testConfig())
	want := `Namespace shop: metadata.annotations["heddle.dev/skip-uids"]: "x" is not a user ID (write numbers from 0 to 4294967294, comma-separated)`
	if got.Reason != BadValue || got.Err.Error() != want {
		t.Fatalf("%q: %v", got.Reason, got.Err)
	}
	pod.Annotations = map[string]string{v1alpha1.SkipUIDs: "7"}
	out := patched(t, pod, ns)
	if args := out.Spec.InitContainers[1].Args; !slices.Contains(args, "--log-level=debug") {
		t.Errorf("sidecar's arguments %q", args)
	}
	if args := out.Spec.InitContainers[0].Args; !slices.Contains(args, "--skip-uids=7") {
		t.Errorf("init's arguments %q", args)
	}
}

// The status says which ports the redirect leaves alone on the way in, exactly
// as the redirect is told, whoever asked for it.
func TestStatusSaysSkippedPorts(t *testing.T) {
	for _, c := range []struct {
		pod, ns  string // annotations; "-": none
		excluded []uint16
		want     string
	}{
		{"-", "-", nil, ""},
		{"-", "-", []uint16{22, 25}, "22,25"},
		{"-", "9090", []uint16{22}, "22,9090"},
		{"8100, 8000-8099", "9090", []uint16{22}, "22,8000-8100"},
		{"", "9090", nil, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}}
		ns, cfg := enabled, testConfig()
		cfg.ExcludedPorts = c.excluded
		if c.pod != "-" {
			pod.Annotations = map[string]string{v1alpha1.SkipInboundPorts: c.pod}
		}
		if c.ns != "-" {
			ns.Annotations = map[string]string{v1alpha1.SkipInboundPorts: c.ns}
		}
		out := applied(t, pod, Patch(pod, ns, cfg).Patch)
		var s map[string]any
		if err := json.Unmarshal([]byte(out.Annotations[v1alpha1.StatusKey]), &s); err != nil || s["skipInbound"] != c.want {
			t.Errorf("%+v: status %s, %v", c, out.Annotations[v1alpha1.StatusKey], err)
		}
		flag := "--skip-inbound-ports=" + c.want
		if got := slices.Contains(out.Spec.InitContainers[0].Args, flag); got != (c.want != "") {
			t.Errorf("%+v: init's arguments %q", c, out.Spec.InitContainers[0].Args)
		}
	}
}

func TestBadValues(t *testing.T) {
	for key, values := range map[string][]string{
		v1alpha1.SkipOutboundPorts: {"0", "65536", "-", "9-8", "1,,2", "+1", "0x10", "1_0", "8080 --x", strings.Repeat("1,", 64) + "1"},
		v1alpha1.SkipInboundPorts:  {"http"},
		v1alpha1.SkipOutboundCIDRs: {"10.0.0.0", "10.0.0.1/8", "::ffff:10.0.0.0/104", "fe80::%eth0/64", "$(X)"},
		v1alpha1.SkipUIDs:          {"-1", "4294967295", "root", "1 2"},
		v1alpha1.LogLevel:          {"", "INFO", "trace", "info\n"},
		v1alpha1.RedirectBackend:   {"ebpf", " nftables"},
		v1alpha1.NativeSidecar:     {"yes", "True"},
		v1alpha1.CPURequest:        {"0", "-1", "much"},
		v1alpha1.MemoryLimit:       {"64 Mi", ""},
	} {
		for _, v := range values {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{key: v}}}
			got := Patch(pod, enabled, testConfig())
			if got.Reason != BadValue || len(got.Patch) > 0 || !strings.Contains(got.Err.Error(), key) || !strings.Contains(got.Err.Error(), "(") {
				t.Errorf("%s: %q: %q, %v", key, v, got.Reason, got.Err)
			}
			if len(got.Err.Error()) > 400 {
				t.Errorf("%s: message of %d bytes", key, len(got.Err.Error()))
			}
		}
	}
}

func TestLongRunning(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	spec := &corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "once"}, {Name: "native", RestartPolicy: &always}},
		Containers:     []corev1.Container{{Name: "app"}, {Name: "helper"}},
	}
	var got []string
	for field, c := range longRunning(spec) {
		got = append(got, field+"="+c.Name)
	}
	want := []string{"spec.initContainers[1]=native", "spec.containers[0]=app", "spec.containers[1]=helper"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for range longRunning(spec) {
		break // a caller that stops early is not called again
	}
}

// Names at their limits go through whole: nothing we add is made of them.
func TestLongNames(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("p", 253)}}
	ns := enabled
	ns.Name = strings.Repeat("n", 63)
	if got := Patch(pod, ns, testConfig()); got.Reason != Injected {
		t.Error(got.Reason, got.Err)
	}
	pod.Spec.HostNetwork = true
	if got := Patch(pod, ns, testConfig()); !strings.Contains(got.Err.Error(), ns.Name+"/"+pod.Name) {
		t.Error(got.Err)
	}
}

func TestPodNames(t *testing.T) {
	for want, meta := range map[string]metav1.ObjectMeta{
		"Pod shop/web-0":                 {Name: "web-0", GenerateName: "web-"},
		"Pod shop/web-*":                 {GenerateName: "web-"},
		"Pod of ReplicaSet shop/web-7f9": {OwnerReferences: []metav1.OwnerReference{{Kind: "X", Name: "x"}, {Kind: "ReplicaSet", Name: "web-7f9", Controller: new(true)}}},
		"unnamed Pod in shop":            {},
	} {
		if got := podName(&corev1.Pod{ObjectMeta: meta}, "shop"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	if err := testConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, break_ := range map[string]func(*Config){
		"port":        func(c *Config) { c.ControlPlane = "host" },
		"port 0":      func(c *Config) { c.ControlPlane = "host:0" },
		"expansion":   func(c *Config) { c.ControlPlane = "$(X):1" },
		"domain":      func(c *Config) { c.TrustDomain = "Cluster Local" },
		"image":       func(c *Config) { c.SidecarImage = "" },
		"no roots":    func(c *Config) { c.TrustBundle = "" },
		"private key": func(c *Config) { c.TrustBundle += strings.ReplaceAll(testBundle, "CERTIFICATE", "PRIVATE KEY") },
		"not PEM":     func(c *Config) { c.TrustBundle += "$(SECRET)" },
	} {
		c := testConfig()
		break_(&c)
		if c.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestApply(t *testing.T) {
	for _, c := range []struct{ doc, ops, want string }{
		{`{"a":[1,2]}`, `[{"op":"add","path":"/a/1","value":9}]`, `{"a":[1,9,2]}`},
		{`{"a":[1,2]}`, `[{"op":"add","path":"/a/2","value":9}]`, `{"a":[1,2,9]}`},
		{`{"a":[1,2]}`, `[{"op":"add","path":"/a/-","value":9}]`, `{"a":[1,2,9]}`},
		{`{"a":[1,2]}`, `[{"op":"remove","path":"/a/0"}]`, `{"a":[2]}`},
		{`{"a":[1,2]}`, `[{"op":"replace","path":"/a/0","value":{"b":1}}]`, `{"a":[{"b":1},2]}`},
		{`{"a":{"x/y":1,"~":2}}`, `[{"op":"remove","path":"/a/x~1y"},{"op":"replace","path":"/a/~0","value":3}]`, `{"a":{"~":3}}`},
		{`{"a":[{"b":[1]}]}`, `[{"op":"add","path":"/a/0/b/0","value":0}]`, `{"a":[{"b":[0,1]}]}`},
		{`{}`, `[{"op":"remove","path":"/a"}]`, ""},
		{`{}`, `[{"op":"replace","path":"/a","value":1}]`, ""},
		{`{}`, `[{"op":"add","path":"/a/b","value":1}]`, ""},
		{`{"a":1}`, `[{"op":"add","path":"/a/b","value":1}]`, ""},
		{`{"a":[]}`, `[{"op":"add","path":"/a/1","value":1}]`, ""},
		{`{"a":[]}`, `[{"op":"remove","path":"/a/-"}]`, ""},
		{`{"a":[]}`, `[{"op":"add","path":"/a/-1","value":1}]`, ""},
		{`{"a":1}`, `[{"op":"move","path":"/a"}]`, ""},
		{`{}`, `[{"op":"add","path":"a","value":1}]`, ""},
	} {
		var ops []Operation
		if err := json.Unmarshal([]byte(c.ops), &ops); err != nil {
			t.Fatal(err)
		}
		doc, err := decode([]byte(c.doc))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if doc, err = Apply(doc, ops); err == nil {
			b, _ := json.Marshal(doc)
			got = string(b)
		}
		if got != c.want {
			t.Errorf("%s %s: got %q, %v", c.doc, c.ops, got, err)
		}
	}
}

// Whatever pod comes: injecting is idempotent, keeps the order of what was
// there, and Uninject undoes it to the last field.
func TestProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		pod := randomPod(rng)
		before := pod.DeepCopy()
		once := patched(t, pod, enabled)
		if diff := cmp.Diff(before, pod); diff != "" {
			t.Fatalf("Patch changed its argument:\n%s", diff)
		}
		if again := Patch(once, enabled, testConfig()); again.Reason != AlreadyInjected || len(again.Patch) > 0 {
			t.Fatalf("again: %q %v", again.Reason, again.Patch)
		}
		back := applied(t, once, Uninject(once).Patch)
		if diff := cmp.Diff(asJSON(t, before), asJSON(t, back)); diff != "" {
			t.Fatalf("uninject(inject(x)) is not x:\n%s", diff)
		}
		if len(once.Spec.InitContainers) < 1 || once.Annotations[v1alpha1.StatusKey] == "" {
			t.Fatal("not injected")
		}
	}
}

func randomPod(rng *rand.Rand) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}}
	always := corev1.ContainerRestartPolicyAlways
	names := []string{"a", "b", "c", "d", "e"}
	for _, n := range names[:rng.IntN(4)] {
		c := corev1.Container{Name: "init-" + n}
		if rng.IntN(3) == 0 {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for _, n := range names[:1+rng.IntN(4)] {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: n, Ports: []corev1.ContainerPort{{ContainerPort: int32(1 + rng.IntN(15000))}}})
	}
	for _, n := range names[:rng.IntN(3)] {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: n})
	}
	for _, n := range names[:rng.IntN(3)] {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, n, "x")
	}
	if rng.IntN(2) == 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.NativeSidecar, []string{"true", "false"}[rng.IntN(2)])
	}
	return pod
}

func patched(t testing.TB, pod *corev1.Pod, ns Namespace) *corev1.Pod {
	t.Helper()
	r := Patch(pod, ns, testConfig())
	if r.Reason != Injected || r.Err != nil {
		t.Fatalf("not injected: %q %v", r.Reason, r.Err)
	}
	return applied(t, pod, r.Patch)
}

func applied(t testing.TB, pod *corev1.Pod, ops []Operation) *corev1.Pod {
	t.Helper()
	doc, err := decode(asJSON(t, pod))
	if err != nil {
		t.Fatal(err)
	}
	if doc, err = Apply(doc, ops); err != nil {
		t.Fatal(err)
	}
	var out corev1.Pod
	if err := json.Unmarshal(asJSON(t, doc), &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

func asJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzPatch feeds odd pods: no panic, the patch applies, twice is once, and it
// comes out again.
func FuzzPatch(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `{"metadata":null,"spec":null}`,
		`{"metadata":{"name":"a","annotations":{}},"spec":{"initContainers":[],"containers":[],"volumes":[]}}`,
		`{"metadata":{"annotations":{"heddle.dev/status":"{}"}},"spec":{"containers":[{"name":"heddle-sidecar"}]}}`,
		`{"metadata":{"annotations":{"heddle.dev/status":"null","heddle.dev/skip-uids":","}},"spec":{"containers":[{}]}}`,
		`{"spec":{"hostNetwork":true}}`, `{"spec":{"os":{"name":"windows"}}}`, `{"spec":{"os":{}}}`,
		`{"spec":{"securityContext":{"runAsUser":16000},"containers":[{"name":"a","securityContext":{}}]}}`,
		`{"spec":{"containers":[{"name":"a","ports":[{"containerPort":16001}]}]}}`,
		`{"spec":{"containers":[{"name":"a","ports":[{}]}],"volumes":[{"name":"heddle-token"}]}}`,
		`{"metadata":{"annotations":{"heddle.dev/skip-outbound-ports":"1-65535","heddle.dev/native-sidecar":"false","heddle.dev/cpu-limit":"1m"}},"spec":{}}`,
		`{"metadata":{"ownerReferences":[{}]},"spec":{"ephemeralContainers":[{"name":"heddle-init"}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var pod corev1.Pod
		if json.Unmarshal(b, &pod) != nil {
			return
		}
		r := Patch(&pod, enabled, testConfig())
		if (r.Reason == Injected) != (len(r.Patch) > 0) {
			t.Fatalf("reason %q and %d operations", r.Reason, len(r.Patch))
		}
		if r.Reason != Injected {
			return
		}
		var wire []Operation // through JSON, as to the API server
		if err := json.Unmarshal(asJSON(t, r.Patch), &wire); err != nil {
			t.Fatal(err)
		}
		out := applied(t, &pod, wire)
		if again := Patch(out, enabled, testConfig()); again.Reason != AlreadyInjected {
			t.Fatalf("again: %q %v", again.Reason, again.Err)
		}
		back := applied(t, out, Uninject(out).Patch)
		if Uninject(back).Reason != NotInjected {
			t.Fatal("still injected")
		}
	})
}
