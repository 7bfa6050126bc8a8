package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const testBundle = "-----BEGIN CERTIFICATE-----\naGVkZGxl\n-----END CERTIFICATE-----\n"

// heddle runs a command line as main does.
func heddle(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err = root.Execute()
	return out.String(), errs.String(), err
}

func bundleFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(file, []byte(testBundle), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const shop = `# the shop
apiVersion: v1
kind: Namespace   # kept as it is
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: shop/web:1}]}
--- # a kind of somebody else's
apiVersion: example.com/v1
kind: Gadget
spec: {b: 1, a: 2}
---
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: shop}
spec: {hostNetwork: true, containers: [{name: app, image: shop/agent:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: dns, namespace: kube-system}
spec: {containers: [{name: app, image: dns:1}]}
`

func TestInjectStream(t *testing.T) {
	out, notes, err := heddle(t, shop, "inject", "-f", "-", "--trust-bundle", bundleFile(t))
	if err != nil {
		t.Fatal(err)
	}
	want := `-: document 2 (line 6): Deployment shop/web: injected
-: document 4 (line 19): not injected: Pod shop/agent: spec.hostNetwork: the redirect would hit every program of the node (remove hostNetwork, or set the label heddle.dev/inject: disabled)
-: document 5 (line 24): Pod kube-system/dns: not injected: protected_namespace
1 injected, 4 left as they were, 0 bad
`
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Error(diff)
	}
	for i, kept := range splitDocuments(shop) {
		if i != 1 && !strings.Contains(out, kept.text) {
			t.Errorf("document %d is not as it was", i+1)
		}
	}
	if !strings.Contains(out, "name: heddle-sidecar") || strings.Count(out, "heddle-init") != 2 {
		t.Error(out)
	}

	again, _, err := heddle(t, out, "inject", "-f", "-", "--trust-bundle", bundleFile(t))
	if err != nil || again != out {
		t.Errorf("injected twice: %v\n%s", err, cmp.Diff(out, again))
	}
	back, notes, err := heddle(t, out, "uninject", "-f", "-")
	if err != nil || strings.Contains(back, "heddle-") {
		t.Errorf("%v\n%s", err, back)
	}
	if !strings.HasSuffix(notes, "1 uninjected, 4 left as they were, 0 bad\n") {
		t.Error(notes)
	}
}

func TestInjectBadDocuments(t *testing.T) {
	in := `apiVersion: v1
kind: Pod
metadata: {name: a, annotations: {heddle.dev/skip-uids: me}}
spec: {containers: [{name: app}]}
---
kind: Pod
  apiVersion: v1
---

# comment
apiVersion: apps/v1
kind: Deployment
metadata: {name: b}
spec: {}
---
- 1
---
apiVersion: v1
kind: Pod
metadata: {name: c}
metadata: {name: c}
---
apiVersion: v1
kind: Pod
metadata: {name: good}
spec: {containers: [{name: app}]}`
	out, notes, err := heddle(t, in, "inject", "-f", "-", "-n", "shop", "--trust-bundle", bundleFile(t))
	if err == nil {
		t.Error("no error")
	}
	want := `-: document 1 (line 1): Pod shop/a: metadata.annotations["heddle.dev/skip-uids"]: "me" is not a user ID (write numbers from 0 to 4294967294, comma-separated)
-: document 2 (line 6): yaml: line 7: mapping values are not allowed in this context
-: document 3 (line 11): Deployment shop/b: spec.template: not as its kind must be (write a pod template there)
-: document 4 (line 16): not an object (write apiVersion, kind, metadata)
-: document 5 (line 18): yaml: unmarshal errors: line 21: key "metadata" already set in map
`
	if !strings.HasPrefix(notes, want) {
		t.Error(cmp.Diff(want, notes))
	}
	if !strings.HasSuffix(notes, "-: document 6 (line 23): Pod shop/good: injected\n1 injected, 0 left as they were, 5 bad\n") {
		t.Error(notes)
	}
	if !strings.HasPrefix(out, in[:strings.LastIndex(in, "---")]) || !strings.Contains(out, "heddle-sidecar") {
		t.Error(out)
	}
}

func TestInjectFiles(t *testing.T) {
	dir := t.TempDir()
	pod := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}" // no newline at its end
	for _, name := range []string{"a.yaml", "b.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(pod), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _, err := heddle(t, "", "uninject", "-f", filepath.Join(dir, "a.yaml"), "-f", filepath.Join(dir, "b.yaml"))
	if err != nil || out != pod+"\n---\n"+pod+"\n" {
		t.Errorf("%v: %q", err, out)
	}
	if _, _, err := heddle(t, "", "inject", "-f", filepath.Join(dir, "none.yaml"), "--trust-bundle", bundleFile(t)); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestSplitDocuments(t *testing.T) {
	for in, want := range map[string][]string{
		"":                        nil,
		"a: 1":                    {"a: 1"},
		"a: 1\n---\nb: 2\n":       {"a: 1\n", "---\nb: 2\n"},
		"---\na: |\n  ---\n  x\n": {"---\na: |\n  ---\n  x\n"},
		"--- {a: 1}\n---\t{b: 2}": {"--- {a: 1}\n", "---\t{b: 2}"},
		"a: 1\n...\n# x\n---\nb:": {"a: 1\n...\n", "# x\n", "---\nb:"},
		"a: 1\r\n---\r\nb: 2\r\n": {"a: 1\r\n", "---\r\nb: 2\r\n"},
		"----\na: ---\n":          {"----\na: ---\n"},
	} {
		var got []string
		for _, d := range splitDocuments(in) {
			got = append(got, d.text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", in, diff)
		}
	}
}

func FuzzInject(f *testing.F) {
	f.Add(shop)
	f.Add("---\n...\n---\n")
	f.Add("kind: List\napiVersion: v1\nitems: [{kind: Pod, apiVersion: v1, spec: {}}, 3]")
	f.Fuzz(func(t *testing.T, in string) {
		var joined strings.Builder
		for _, d := range splitDocuments(in) {
			joined.WriteString(d.text)
		}
		if joined.String() != in {
			t.Fatal("the documents joined are not the stream")
		}
		out, _, err := heddle(t, in, "uninject", "-f", "-")
		if err == nil && !strings.Contains(in, "heddle-sidecar") && strings.TrimSuffix(out, "\n") != strings.TrimSuffix(in, "\n") {
			t.Fatalf("%q became %q", in, out)
		}
	})
}
