package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const good = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"

func pod(name, extra string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name + "\nspec:\n  containers:\n  - name: c\n    command: [/c]\n" + extra
}

// TestBadDocuments holds where a problem is found and that the rest goes on.
func TestBadDocuments(t *testing.T) {
	for _, c := range []struct {
		name, doc string
		line      int // in a file where doc begins at line 5
		ref       string
		field     string
		err       string
	}{
		{"syntax", "apiVersion: v1\nkind: [\n", 6, " ", "", "not YAML"},
		{"a key twice", "apiVersion: v1\nkind: Pod\nkind: Pod\n", 7, " ", "", `key "kind" already set`},
		{"no object", "- a\n", 5, " ", "", "not a Kubernetes object"},
		{"no kind", "apiVersion: v1\nmetadata: {name: x}\n", 5, " default/x", "kind", "are needed"},
		{"unknown kind", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n", 6, "Secret default/x", "kind", "does not know"},
		{"unknown field", pod("x", "  hostNetwerk: true\n"), 13, "Pod default/x", "hostNetwerk", "no such field"},
		{"wrong type", pod("x", "  hostNetwork: maybe\n"), 13, "Pod default/x", "spec.hostNetwork", "a string cannot be read as bool"},
		{"no name", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, command: [/c]}]}\n", 5, "Pod default/", "metadata.name", "no name"},
		{"bad name", pod("Web", ""), 8, "Pod default/Web", "metadata.name", `"Web"`},
		{"name at its limit plus one", pod(strings.Repeat("a", 254), ""), 8, "Pod default/" + strings.Repeat("a", 254), "metadata.name", "no more than 253"},
		{"namespace at its limit plus one", "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + strings.Repeat("a", 64) + "}\n", 7, "Namespace " + strings.Repeat("a", 64), "metadata.name", "no more than 63"},
		{"label at its limit plus one", "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: x\n  labels: {a: " + strings.Repeat("b", 64) + "}\n", 9, "ServiceAccount default/x", "metadata.labels", "no more than 63"},
		{"no command", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c, image: i}]}\n", 8, "Pod default/x", "spec.containers[0].command", "ignores images"},
		{"selector and template differ", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec:\n  selector: {matchLabels: {a: b}}\n  template: {metadata: {labels: {a: c}}, spec: {containers: [{name: c, command: [/c]}]}}\n",
			9, "Deployment default/x", "spec.selector", "does not select"},
		{"port", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  ports: [{port: 70000}]\n", 9, "Service default/x", "spec.ports[0].port", "70000 is not a port"},
		{"ports without names", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  ports: [{port: 1}, {port: 2}]\n", 9, "Service default/x", "spec.ports[0].name", "names them"},
		{"external name", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {type: ExternalName, externalName: '-'}\n", 8, "Service default/x", "spec.externalName", "not a DNS name"},
		{"a kind that is a path", "apiVersion: heddle.dev/v1alpha1\nkind: ../../../evil\nmetadata: {name: x}\n", 6, "../../../evil default/x", "kind", "is no kind"},
		{"another API's Pod", "apiVersion: heddle.dev/v1alpha1\nkind: Pod\nmetadata: {name: x}\n", 6, "Pod default/x", "kind", "of another API"},
		{"a volume that is a path", pod("x", "  volumes: [{name: ../../x, emptyDir: {}}]\n"), 13, "Pod default/x", "spec.volumes[0].name", "not a DNS label"},
		{"a volume twice", pod("x", "  volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]\n"), 13, "Pod default/x", "spec.volumes[1].name", "stands twice"},
		{"a mount of nothing", pod("x", "    volumeMounts: [{name: v, mountPath: /v}]\n"), 13, "Pod default/x", "spec.containers[0].volumeMounts[0].name", "no volume"},
		{"a mount without a place", pod("x", "    volumeMounts: [{name: v, mountPath: v}]\n  volumes: [{name: v, emptyDir: {}}]\n"), 13, "Pod default/x", "spec.containers[0].volumeMounts[0].mountPath", "begin with /"},
		{"a user below zero", pod("x", "    securityContext: {runAsUser: -7}\n"), 13, "Pod default/x", "spec.containers[0].securityContext.runAsUser", "-7 is no user"},
		{"a grace below zero", pod("x", "  terminationGracePeriodSeconds: -1\n"), 13, "Pod default/x", "spec.terminationGracePeriodSeconds", "negative"},
		{"a probe of a port that cannot be", pod("x", "    readinessProbe: {httpGet: {port: -5}}\n"), 13, "Pod default/x", "spec.containers[0].readinessProbe.httpGet.port", "-5 is not a port"},
		{"a probe that does nothing", pod("x", "    livenessProbe: {periodSeconds: 1}\n"), 13, "Pod default/x", "spec.containers[0].livenessProbe", "one action, this one 0"},
		{"a probe that does two things", pod("x", "    livenessProbe: {httpGet: {port: 1}, tcpSocket: {port: 1}}\n"), 13, "Pod default/x", "spec.containers[0].livenessProbe", "one action, this one 2"},
		{"a probe back in time", pod("x", "    startupProbe: {tcpSocket: {port: 1}, periodSeconds: -1}\n"), 13, "Pod default/x", "spec.containers[0].startupProbe.periodSeconds", "negative"},
		{"protocol", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  ports: [{port: 1, protocol: XXX}]\n", 9, "Service default/x", "spec.ports[0].protocol", "no protocol"},
		{"slice of names", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x}\naddressType: FQDN\n", 8, "EndpointSlice default/x", "addressType", "cannot be used"},
		{"slice of nonsense", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x}\naddressType: IPv4\nendpoints: [{addresses: [999.1.1.1]}]\n", 9, "EndpointSlice default/x", "endpoints[0].addresses", "no IPv4 address"},
		{"slice of the other family", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x}\naddressType: IPv4\nendpoints: [{addresses: ['2001:db8::1']}]\n", 9, "EndpointSlice default/x", "endpoints[0].addresses", "no IPv4 address"},
		{"slice of loopback", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x}\naddressType: IPv4\nendpoints: [{addresses: [127.0.0.1]}]\n", 9, "EndpointSlice default/x", "endpoints[0].addresses", "no endpoint's address"},
		{"slice's port", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x}\naddressType: IPv4\nports: [{port: -1}]\n", 9, "EndpointSlice default/x", "ports[0].port", "not a port"},
		{"no shape of an object", "metadata: nothing\n", 5, " ", "metadata", "a string cannot be read as an object"},
		{"a config map's files", pod("x", "  volumes:\n  - name: v\n    configMap: {name: c}\n"), 15, "Pod default/x", "spec.volumes[0].configMap", "has no ConfigMaps"},
		{"a secret's files among others", pod("x", "  volumes:\n  - name: v\n    projected: {sources: [{secret: {name: c}}]}\n"), 15, "Pod default/x", "spec.volumes[0].projected.sources[0].secret", "has no ConfigMaps"},
		{"a claim", pod("x", "  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n"), 13, "Pod default/x", "spec.volumes[0]", "sort of volume"},
		{"a secret's value", pod("x", "    env: [{name: A, valueFrom: {secretKeyRef: {name: c, key: k}}}]\n"), 13, "Pod default/x", "spec.containers[0].env[0].valueFrom.secretKeyRef", "has no ConfigMaps"},
		{"a config map's values", pod("x", "    envFrom: [{configMapRef: {name: c}}]\n"), 13, "Pod default/x", "spec.containers[0].envFrom[0].configMapRef", "has no ConfigMaps"},
		{"a job that never ends", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec: {template: {spec: {containers: [{name: c, command: [/c]}]}}}\n", 8, "Job default/x", "spec.template.spec.restartPolicy", "must end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			docs, problems := Parse("f.yaml", []byte(good+"---\n"+c.doc+"---\n"+pod("last", "")))
			if len(docs) != 2 || docs[0].Ref.Name != "shop" || docs[1].Ref.Name != "last" {
				t.Errorf("the rest did not go on: %v", docs)
			}
			if len(problems) == 0 {
				t.Fatal("no problem found")
			}
			p := problems[0]
			if p.Line != c.line || p.Ref.String() != c.ref || p.Field != c.field || !strings.Contains(p.Err, c.err) || p.File != "f.yaml" || p.Fix == "" {
				t.Errorf("got line %d of %s, ref %q, field %q: %s", p.Line, p.File, p.Ref, p.Field, p)
			}
		})
	}
}

// TestBadButUsed holds documents with a problem that go on all the same: a bad
// policy denies, and only the control plane can do that.
func TestBadButUsed(t *testing.T) {
	own := func(kind, rest string) string {
		return "apiVersion: heddle.dev/v1alpha1\nkind: " + kind + "\nmetadata:\n  name: x\n" + rest
	}
	for _, c := range []struct {
		name, doc string
		line      int // in a file where doc begins at line 5
		ref       string
		field     string
		err       string
	}{
		{"policy, field", own("AccessPolicy", "spec:\n  selector: {app: x}\n  rules:\n  - action: allow\n    form: []\n"), 13, "AccessPolicy default/x", "spec.rules[0].form", "no such field"},
		{"policy, value", own("AccessPolicy", "spec:\n  rules:\n  - action: allow\n    from:\n    - cidrs: [10.0.0.0/99]\n"), 13, "AccessPolicy default/x", "spec.rules[0].from[0].cidrs[0]", "is no prefix"},
		{"policy of a namespace", own("AccessPolicy", "  namespace: shop\nspec:\n  rules: all\n"), 11, "AccessPolicy shop/x", "spec.rules", "a string does not belong"},
		{"mesh config", own("MeshConfig", "spec:\n  mtsl: strict\n"), 10, "MeshConfig x", "spec.mtsl", "no such field"},
		{"traffic policy", own("TrafficPolicy", "spec:\n  retires: {}\n"), 10, "TrafficPolicy default/x", "spec.retires", "no such field"},
		{"no kind of ours", own("AcessPolicy", "spec: {}\n"), 6, "AcessPolicy default/x", "kind", "none of Heddle's"},
		{"of a version to come", "apiVersion: heddle.dev/v9\nkind: AccessPolicy\nmetadata: {name: x}\n", 6, "AccessPolicy default/x", "kind", "none of Heddle's"},
		{"in a list", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: heddle.dev/v1alpha1\n  kind: AccessPolicy\n  metadata: {name: x}\n  spec:\n    bad: 1\n", 12, "AccessPolicy default/x", "spec.bad", "no such field"},
		{"node port", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  type: NodePort\n  ports: [{port: 1, nodePort: 30000}]\n", 9, "Service default/x", "spec.type", "forwards nothing for a NodePort"},
		{"load balancer", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {type: LoadBalancer, ports: [{port: 1}]}\n", 8, "Service default/x", "spec.type", "forwards nothing for a LoadBalancer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			docs, problems := Parse("f.yaml", []byte(good+"---\n"+c.doc+"---\n"+pod("last", "")))
			if len(docs) != 3 || docs[1].Ref.String() != c.ref || docs[2].Ref.Name != "last" {
				t.Errorf("it did not go on: %v", docs)
			}
			if len(problems) == 0 {
				t.Fatal("no problem found")
			}
			p := problems[0]
			if p.Ref.String() != c.ref || p.Field != c.field || !strings.Contains(p.Err, c.err) || p.File != "f.yaml" || p.Fix == "" || p.Line != c.line {
				t.Errorf("got line %d of %s, ref %q, field %q: %s", p.Line, p.File, p.Ref, p.Field, p)
			}
			if lost(docs, problems) {
				t.Error("counts as lost")
			}
			if s, ok := docs[1].Object.(*corev1.Service); ok && (s.Spec.Type != corev1.ServiceTypeClusterIP || s.Spec.Ports[0].NodePort != 0) {
				t.Errorf("it stays %+v", s.Spec)
			}
		})
	}
}

// TestOptionalData holds that what may be missing is no problem.
func TestOptionalData(t *testing.T) {
	doc := pod("x", "    envFrom: [{configMapRef: {name: c, optional: true}}]\n  volumes: [{name: a, configMap: {name: c, optional: true}}, {name: b}]\n")
	docs, problems := Parse("f.yaml", []byte(doc))
	if len(problems) > 0 || len(docs) != 1 {
		t.Fatal(problems)
	}
	if docs[0].Object.(*corev1.Pod).Spec.Volumes[1].EmptyDir == nil {
		t.Error("a volume of nothing is not an emptyDir")
	}
}

func TestGoodDocuments(t *testing.T) {
	docs, problems := Parse("f.yaml", []byte("# nothing\n---\n\n---\n"+pod("a", "")+"--- # comment\napiVersion: v1\nkind: List\nitems:\n- "+
		strings.ReplaceAll(strings.TrimSpace(good), "\n", "\n  ")+"\n---\napiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: p}\nspec: {rules: [{action: allow}]}\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var got []string
	for _, d := range docs {
		got = append(got, fmt.Sprintf("%s@%d", d.Ref, d.Line))
	}
	if s := strings.Join(got, ", "); s != "Pod default/a@5, Namespace shop@14, AccessPolicy default/p@21" {
		t.Errorf("got %s", s)
	}
	p := docs[0].Object.(*corev1.Pod)
	if p.Spec.ServiceAccountName != "default" || *p.Spec.TerminationGracePeriodSeconds != 30 || p.Spec.RestartPolicy != "Always" {
		t.Errorf("defaults are missing: %+v", p.Spec)
	}
	if string(docs[2].JSON) != `{"apiVersion":"heddle.dev/v1alpha1","kind":"AccessPolicy","metadata":{"name":"p","namespace":"default"},"spec":{"rules":[{"action":"allow"}]}}` {
		t.Errorf("passed on as %s", docs[2].JSON)
	}
}

func TestNamesAtTheirLimits(t *testing.T) {
	for _, doc := range []string{
		pod(strings.Repeat("a", 253), ""),
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: " + strings.Repeat("a", 63) + ", labels: {" + strings.Repeat("k", 63) + ": " + strings.Repeat("v", 63) + "}}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: " + strings.Repeat("a", 63) + "}\nspec: {ports: [{port: 65535}]}\n",
	} {
		if docs, problems := Parse("f.yaml", []byte(doc)); len(docs) != 1 || len(problems) > 0 {
			t.Errorf("%v", problems)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(s *Set) string {
	var out []string
	for _, d := range s.Documents {
		out = append(out, d.Ref.Name)
	}
	return strings.Join(out, " ")
}

// TestABrokenFileDeletesNothing edits a file until it is whole again.
func TestABrokenFileDeletesNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	f := NewFolder([]string{dir}, nil)
	for _, step := range []struct {
		text, want string
		problems   int
	}{
		{pod("a", "") + "---\n" + pod("b", ""), "a b", 0},
		{pod("a", "") + "---\napiVersion: v1\nkind: Po", "a b", 1}, // half written
		{pod("a", "") + "---\n" + pod("b", "  hostNetwerk: true\n"), "a b", 1},
		{pod("a", ""), "a", 0},
		{pod("b", "") + "---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {type: NodePort, ports: [{port: 1}]}\n", "b s", 1}, // all of it can be used
		{"", "", 0},
	} {
		write(t, file, step.text)
		s := f.Read()
		if names(s) != step.want || len(s.Problems) != step.problems {
			t.Errorf("%q: got %q, problems %v", step.text, names(s), s.Problems)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if s := f.Read(); names(s) != "" {
		t.Errorf("the file is gone, %q stays", names(s))
	}
}

func TestOneObjectTwice(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), pod("x", ""))
	write(t, filepath.Join(dir, "b.yaml"), pod("x", ""))
	write(t, filepath.Join(dir, ".hidden.yaml"), pod("other", ""))
	write(t, filepath.Join(dir, "note.txt"), "no")
	s := NewFolder([]string{dir}, nil).Read()
	if names(s) != "x" || len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Err, "a.yaml:1") {
		t.Errorf("got %q, %v", names(s), s.Problems)
	}
}

// TestWatch changes a folder by writing, by rename and by swapping a symlink,
// as a ConfigMap volume does.
func TestWatch(t *testing.T) {
	top := t.TempDir()
	for _, d := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(top, d), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(top, d, "m.yaml"), pod(d, ""))
	}
	dir := filepath.Join(top, "watched")
	link := func(target string) {
		tmp := filepath.Join(top, "tmp-link")
		if err := os.Symlink(target, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	link("../one")
	if err := os.Symlink("..data/m.yaml", filepath.Join(dir, "m.yaml")); err != nil {
		t.Fatal(err)
	}
	f := NewFolder([]string{dir}, nil)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(t.Context()) }()
	expect := func(want string) {
		t.Helper()
		late := time.After(10 * time.Second)
		for {
			select {
			case s := <-f.Sets():
				if names(s) == want {
					return
				}
			case <-late:
				t.Fatalf("never saw %q", want)
			}
		}
	}
	expect("one")
	write(t, filepath.Join(dir, "x.yaml"), pod("x", ""))
	expect("one x")
	write(t, filepath.Join(dir, ".x.tmp"), pod("other", ""))
	if err := os.Rename(filepath.Join(dir, ".x.tmp"), filepath.Join(dir, "x.yaml")); err != nil {
		t.Fatal(err)
	}
	expect("one other")
	link("../two")
	expect("two other")
	if err := os.Remove(filepath.Join(dir, "x.yaml")); err != nil {
		t.Fatal(err)
	}
	expect("two")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good + "---\n" + pod("a", "")))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [null]}]\n"))
	f.Add([]byte("\n--- {apiVersion: heddle.dev/v1alpha1, kind: AccessPolicy,\n metadata: {name: a}, spec: {rules: 1}}\n"))
	f.Add([]byte("---\n--- x\n---\t\n\xff: [\n"))
	f.Add([]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: -1, selector: {matchExpressions: [{key: a, operator: In}]}}\n"))
	f.Add([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIPs: [x], ports: [{port: 1, targetPort: -5}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := strings.Count(string(data), "\n") + 1
		docs, problems := Parse("f", data)
		for _, d := range docs {
			if d.Line < 1 || d.Line > lines || d.Ref.Name == "" {
				t.Errorf("document at line %d of %d: %v", d.Line, lines, d.Ref)
			}
		}
		for _, p := range problems {
			if p.Line < 1 || p.Line > lines+1 || p.Err == "" {
				t.Errorf("problem at line %d of %d: %v", p.Line, lines, p)
			}
		}
	})
}

// TestWhatIsNoFile holds that a FIFO and a device under a manifest's name are
// reported and stop nothing.
func TestWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "b.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	s := NewFolder([]string{dir}, nil).Read()
	if len(s.Documents) != 1 || len(s.Problems) != 2 {
		t.Fatalf("got %v and %v", s.Documents, s.Problems)
	}
	for _, p := range s.Problems {
		if !strings.Contains(p.Err, "no regular file") {
			t.Errorf("got %v", p)
		}
	}
}

func TestDocumentBehindItsMarker(t *testing.T) {
	docs, problems := Parse("f.yaml", []byte("# x\n--- {apiVersion: v1, kind: Namespace,\n  metadata: {name: shop}}\n--- # nothing\n---\n"))
	if len(problems) > 0 || len(docs) != 1 || docs[0].Ref.Name != "shop" || docs[0].Line != 2 {
		t.Errorf("got %v and %v", docs, problems)
	}
}
