package patch

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files anew")

// testBundle is any certificate: patch looks at its shape only.
const testBundle = `-----BEGIN CERTIFICATE-----
aGVkZGxl
-----END CERTIFICATE-----
`

func testConfig() Config {
	return Config{
		ControlPlane: "heddle-controlplane.heddle-system.svc:15010", TrustDomain: "cluster.local", TrustBundle: testBundle,
		SidecarImage: "heddle/sidecar:1", SidecarCommand: "/heddle-sidecar", Version: "v1",
		ExcludedPorts: []uint16{22}, ClusterPrefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
}

var enabled = Namespace{Name: "shop", Labels: map[string]string{"heddle.dev/inject": "enabled"}}

// Each testdata/NAME.yaml becomes NAME.golden: what was decided, then the
// object after it. What was injected can be taken out again without a trace.
func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(inputs) < 10 {
		t.Fatal(inputs, err)
	}
	for _, in := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(in), ".yaml"), func(t *testing.T) {
			before := readDoc(t, in)
			doc := readDoc(t, in)
			edited, err := Workload(doc, enabled, testConfig())
			if err != nil {
				t.Fatal(err)
			}
			got := render(edited) + text(t, doc)
			golden(t, strings.TrimSuffix(in, ".yaml")+".golden", got)

			again, err := Workload(doc, enabled, testConfig())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range again {
				if len(e.Patch) > 0 {
					t.Errorf("%s: injected twice: %v", e.Object, e.Patch)
				}
			}
			if _, err := UninjectWorkload(doc); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(text(t, before), text(t, doc)); diff != "" {
				t.Errorf("after uninject (-want +got):\n%s", diff)
			}
		})
	}
}

func render(edited []Edited) string {
	var b strings.Builder
	for _, e := range edited {
		fmt.Fprintf(&b, "# %s: ", e.Object)
		switch {
		case e.Reason == Injected:
			fmt.Fprintf(&b, "injected, %d operations\n", len(e.Patch))
		case e.Deny():
			fmt.Fprintf(&b, "%s (the pod must not run)\n", e.Reason)
		default:
			fmt.Fprintf(&b, "%s\n", e.Reason)
		}
		if e.Err != nil {
			for part := range strings.SplitSeq(e.Err.Error(), "; ") {
				fmt.Fprintf(&b, "#   error: %s\n", part)
			}
		}
		for _, w := range e.Warnings {
			fmt.Fprintf(&b, "#   warning: %s\n", w)
		}
	}
	return b.String()
}

func TestWorkloadShape(t *testing.T) {
	for in, want := range map[string]string{
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`:                                                           "Pod a: : not as its kind must be",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":{}}`:                                     "Deployment a: spec.template: not as its kind must be",
		`{"apiVersion":"v1","kind":"List","items":[7]}`:                                                                      "List: items[0]: not as its kind must be",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"a-","namespace":"n"},"spec":{"containers":"none"}}`:     "Pod n/a-*: ",
		`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"batch/v1","kind":"CronJob","spec":{"jobTemplate":null}}]}`: "items[0]: CronJob (unnamed): spec.jobTemplate: not as its kind must be",
	} {
		doc, err := decode([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Workload(doc.(map[string]any), Namespace{Labels: enabled.Labels}, testConfig())
		if !errors.Is(err, ErrShape) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func readDoc(t *testing.T, file string) map[string]any {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		t.Fatal(err)
	}
	v, err := decode(j)
	if err != nil {
		t.Fatal(err)
	}
	return v.(map[string]any)
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func golden(t *testing.T, file, got string) {
	t.Helper()
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
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
