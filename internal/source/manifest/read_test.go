package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/internal/source"
)

func show(x *Text) string {
	var b strings.Builder
	for _, o := range x.Objects {
		fmt.Fprintf(&b, "%d %s\n", o.Line, o.Ref)
	}
	for _, p := range x.Problems {
		fmt.Fprintf(&b, "! %s\n", p)
	}
	for _, p := range x.Broken {
		fmt.Fprintf(&b, "broken %s %v\n", p.Ref, p.Selector)
	}
	for _, r := range x.Bad {
		fmt.Fprintf(&b, "bad %s\n", r)
	}
	if x.Nameless {
		b.WriteString("nameless\n")
	}
	return b.String()
}

func TestRead(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", ""},
		{"comments", "# nothing\n---\n# here\n---\n", ""},
		{"two documents", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", "1 Namespace a\n5 Pod default/p\n"},
		{"marks with words, CRLF", "--- # one\r\napiVersion: v1\r\nkind: Namespace\r\nmetadata:\r\n  name: a\r\n", "1 Namespace a\n"},
		{"json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"n"}}`, "1 Service n/s\n"},
		{"other people's kinds", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {nonsense: 1}\n", ""},
		{"not a manifest", "replicas: 3\nimage: x\n", ""},
		{"list", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: a}\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: p}\n- apiVersion: apps/v1\n  kind: Deployment\n  metadata: {name: d}\n", "4 Namespace a\n7 Pod default/p\n"},
		{"typed list", "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: p}\n", "4 Pod default/p\n"},
		{"unknown kind of ours", "apiVersion: heddle.dev/v1alpha1\nkind: AcessPolicy\nmetadata: {name: a}\n", "! f:2: AcessPolicy a: kind: heddle.dev/v1alpha1 AcessPolicy is none of Heddle's (kinds are MeshConfig, AccessPolicy and TrafficPolicy of heddle.dev/v1alpha1)\nbad AcessPolicy a\n"},
		{"unknown version of ours denies", "apiVersion: heddle.dev/v9\nkind: AccessPolicy\nmetadata: {name: a, namespace: ns}\nspec: {selector: {app: x}}\n", "! f:2: AccessPolicy ns/a: kind: heddle.dev/v9 AccessPolicy is none of Heddle's (kinds are MeshConfig, AccessPolicy and TrafficPolicy of heddle.dev/v1alpha1)\nbroken AccessPolicy ns/a map[]\nbad AccessPolicy ns/a\n"},
		{"no kind", "apiVersion: v1\nmetadata: {name: a}\n", "! f:1:  a: apiVersion and kind must both be there (add the one that is missing)\nnameless\n"},
		{"no name", "apiVersion: v1\nkind: Pod\nmetadata:\n  generateName: x-\n", "! f:3: Pod default/: metadata.name: is missing (name the object; generateName needs an API server)\nnameless\n"},
		{"good policy", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: a}\nspec:\n  rules:\n  - action: allow\n", "1 AccessPolicy default/a\n"},
		{"unknown field deep in", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata:\n  name: a\nspec:\n  selector:\n    app: x\n  rules:\n  - action: allow\n  - action: deny\n    form:\n    - namespaces: [n]\n", "! f:11: AccessPolicy default/a: spec.rules[1].form: no such field (correct its name, or take it out)\nbroken AccessPolicy default/a map[app:x]\nbad AccessPolicy default/a\n"},
		{"misspelt selector denies the namespace", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: a}\nspec:\n  selectr: {app: x}\n  mtls: {mode: strict}\n", "! f:5: AccessPolicy default/a: spec.selectr: no such field (correct its name, or take it out)\nbroken AccessPolicy default/a map[]\nbad AccessPolicy default/a\n"},
		{"bad value", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata:\n  name: a\nspec:\n  selector:\n    app: x\n  rules:\n    - action: allow\n      from:\n        - namespaces:\n            - ns\n        - cidrs:\n            - 10.0.0.0/8\n            - 10.0.0.0/99\n", "! f:15: AccessPolicy default/a: spec.rules[0].from[1].cidrs[1]: \"10.0.0.0/99\" is no prefix (such as 10.0.0.0/8 or fd00::/8)\nbroken AccessPolicy default/a map[app:x]\nbad AccessPolicy default/a\n"},
		{"bad type", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: a}\nspec:\n  rules: all\n", "! f:5: AccessPolicy default/a: spec.rules: a string does not belong here (it wants a list)\nbroken AccessPolicy default/a map[]\nbad AccessPolicy default/a\n"},
		{"port too big", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: a}\nspec:\n  selector: {app: x}\n  mtls:\n    mode: strict\n    ports: [70000]\n", "! f:8: AccessPolicy default/a: spec.mtls.ports: a number 70000 does not belong here (it wants a number up to 65535)\nbroken AccessPolicy default/a map[app:x]\nbad AccessPolicy default/a\n"},
		{"said twice", "apiVersion: heddle.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: default}\nspec:\n  mtls: strict\n  mtls: permissive\n", "! f:1: MeshConfig default: unmarshal errors:\n  line 6: key \"mtls\" already set in map (say each field once)\nbad MeshConfig default\n"},
		{"no yaml", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata:\n  name: a\n  namespace: n\nspec: {\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: b}\n", ""},
		{"bad pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  hostNetwork: maybe\n", "! f:5: Pod default/p: spec.hostNetwork: a string does not belong here (it wants true or false)\nbad Pod default/p\n"},
		{"bad address stays a pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus:\n  podIPs:\n  - ip: 10.0.0.1\n  - ip: nonsense\n", "1 Pod default/p\n! f:7: Pod default/p: status.podIPs[1].ip: \"nonsense\" is no IP address (an IP address; left out)\n"},
		{"scalar", "hello\n", "! f:1:  default/: a string is no object (correct the document)\nnameless\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := show(Read("f", []byte(tt.text)))
			if tt.name == "no yaml" {
				for _, part := range []string{"8 Namespace b\n", "AccessPolicy n/a", "broken AccessPolicy n/a map[]\n", "nameless"} {
					if !strings.Contains(got, part) {
						t.Errorf("no %q in\n%s", part, got)
					}
				}
				return
			}
			if got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
}

// FuzzRead: any bytes are read without a panic, problems carry lines of the
// text, and what looks like an AccessPolicy never just disappears.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n---\n{}",
		"apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: a}\nspec: {rules: [{action: allow}]}\n",
		"apiVersion: v1\nkind: List\nitems:\n- 3\n- kind: List\n  items: [null]\n",
		"kind: AccessPolicy\nspec: {", "---\n---\n--- x\n", "a: &a [*a]", "\xff\xfe", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":1}}`,
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\naddressType: IPv4\nendpoints: [{addresses: [01.2.3.4]}]\nports: [{port: -1, name: x}]\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {clusterIPs: [None], ports: [{port: 99999}]}\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x := Read("f", b)
		lines := strings.Count(string(b), "\n") + 1
		for _, p := range x.Problems {
			if p.Line < 1 || p.Line > lines || p.Err == "" {
				t.Fatalf("problem %+v of %d lines", p, lines)
			}
		}
		if len(x.Bad) > 0 && len(x.Problems) == 0 || x.Nameless && len(x.Problems) == 0 {
			t.Fatalf("bad without a problem: %+v", x)
		}
		for _, o := range x.Objects {
			if o.Ref.Name == "" || o.Value == nil {
				t.Fatalf("object %+v", o)
			}
			if _, ok := o.Value.(*source.Pod); ok != (o.Ref.Kind == "Pod") {
				t.Fatalf("object %+v", o)
			}
		}
	})
}
