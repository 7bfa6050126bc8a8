package install

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// text is what "heddle render" prints.
func text(ms []Manifest) string {
	var b strings.Builder
	for _, m := range ms {
		b.WriteString(m.Document())
	}
	return b.String()
}

func TestRenderGolden(t *testing.T) {
	for name, v := range map[string]Values{
		"default": {},
		"many": {Set: []string{"controlplane.replicas=2,injector.replicas=3", "node.apiServers={192.0.2.1:6443,[2001:db8::1]:6443}",
			"image.repository=registry.example/heddle", "image.pullSecrets={regcred}", "trustDomain=example.org", "logLevel=debug",
			"meshConfig.mtls=strict", "controlplane.nodeSelector.kubernetes\\.io/os=linux"}, SetString: []string{"image.tag=1.0"}},
		"bare": {Set: []string{"node.enabled=false,createNamespace=false,injector.nativeSidecars=false"}},
	} {
		t.Run(name, func(t *testing.T) {
			ms, err := Render(v, "v1.36.3", "v0.1.0")
			if err != nil {
				t.Fatal(err)
			}
			if name != "default" { // one copy of the CRDs is enough
				ms = ms[3:]
			}
			file, got := filepath.Join("testdata", name+".yaml"), text(ms)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRenderRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("a: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, kube string
		v          Values
		want       string
	}{
		{"unknown value", "v1.36.3", Values{Set: []string{"nodes.enabled=false"}}, "nodes"},
		{"type", "v1.36.3", Values{Set: []string{"injector.replicas=none"}}, "injector/replicas"},
		{"range", "v1.36.3", Values{Set: []string{"injector.replicas=0"}}, "injector/replicas"},
		{"not an address", "v1.36.3", Values{Set: []string{"node.apiServers={api.example}"}}, "apiServers"},
		{"syntax", "v1.36.3", Values{Set: []string{"a"}}, "--set a"},
		{"no file", "v1.36.3", Values{Files: []string{"/nowhere"}}, "/nowhere"},
		{"bad file", "v1.36.3", Values{Files: []string{bad}}, "bad.yaml"},
		{"old cluster", "v1.32.9-eks-1", Values{}, "runs Kubernetes v1.32.9-eks-1, Heddle needs 1.33.0 at least"},
		{"no version", "new", Values{}, `"new"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Render(c.v, c.kube, ""); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// Files, then --set: as Helm does it.
func TestValuesMerge(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for i, s := range []string{"image: {repository: a, tag: one}\n", "image: {tag: two}\nlogLevel: debug\n"} {
		f := filepath.Join(dir, string(rune('a'+i)))
		if err := os.WriteFile(f, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	got, err := Values{Files: files, Set: []string{"logLevel=warn"}, SetString: []string{"image.tag=3"}}.merge()
	want := map[string]any{"image": map[string]any{"repository": "a", "tag": "3"}, "logLevel": "warn"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// What is awkward in a value is neither broken YAML nor another meaning.
func TestRenderAwkwardValues(t *testing.T) {
	ms, err := Render(Values{SetString: []string{"image.tag=v1@sha256:0a" + strings.Repeat("1", 60) + "-", "image.pullSecrets={123,true}", "meshConfig.trustDomain=mesh.example"}}, "v1.36.3", "v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	label := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	for _, m := range ms {
		if v := m.Object.GetLabels()["app.kubernetes.io/version"]; m.Object.GetKind() != "CustomResourceDefinition" && !label.MatchString(v) {
			t.Errorf("%s: label %q", m.Source, v)
		}
		if kind := m.Object.GetKind(); kind != "Deployment" && kind != "DaemonSet" {
			continue
		}
		if !strings.Contains(m.Text, "- name: \"123\"\n") || !strings.Contains(m.Text, "- name: \"true\"\n") {
			t.Errorf("%s: pull secrets are not names: %s", m.Source, m.Text)
		}
		if m.Object.GetKind() == "DaemonSet" && !strings.Contains(m.Text, "--trust-domain=mesh.example\n") {
			t.Errorf("the node agent trusts another domain than MeshConfig names: %s", m.Text)
		}
	}
}
