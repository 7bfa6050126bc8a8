package kube

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/kube/apiserver"
)

// TestBad: what becomes of an object that passed the API server and is bad for
// us; as TestBad of the files door.
func TestBad(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, policy("p", "allow")+mesh("strict")+pod("a", "10.0.0.1"))
		d := start(t, s)
		good := d.Snapshot()
		key := source.Key{Namespace: "shop", Name: "p"}
		if p := good.AccessPolicies[key]; p == nil || p.Generation != 1 || p.ResourceVersion != "" {
			t.Fatalf("policy %+v", p)
		}

		s.Apply(t, policy("p", "alow"))
		got := d.until("the broken policy", func(s *source.Snapshot) bool { return len(s.BrokenPolicies) == 1 })
		if b := got.BrokenPolicies[0]; len(got.AccessPolicies) != 0 || b.Selector["app"] != "web" || b.Ref.String() != "AccessPolicy shop/p" {
			t.Errorf("broken %+v, policies %v", b, got.AccessPolicies)
		}
		if len(got.Problems) != 1 || got.Problems[0].Field != "spec.rules[0].action" || got.Problems[0].Fix == "" || got.Problems[0].Generation != 2 || got.Problems[0].Line != 0 {
			t.Errorf("problems %+v", got.Problems)
		}

		s.Apply(t, mesh("srict"))
		got = d.until("the bad MeshConfig", func(s *source.Snapshot) bool { return len(s.Problems) == 2 })
		if got.Mesh == nil || got.Mesh.Spec.MTLS != "strict" || got.Mesh != good.Mesh {
			t.Errorf("MeshConfig is %+v, not its last good version", got.Mesh)
		}

		// A pod of which a part cannot be read stays, without it.
		s.Apply(t, pod("b", "nonsense"))
		got = d.until("the bad pod", func(s *source.Snapshot) bool { return len(s.Problems) == 3 })
		if p := got.Pods[source.Key{Namespace: "shop", Name: "b"}]; p == nil || len(p.IPs) != 0 {
			t.Errorf("pod %+v", p)
		}
		// One that cannot be read at all is reported, and the others are there.
		s.Apply(t, strings.Replace(pod("c", "10.0.0.3"), "spec: {", "spec: {hostNetwork: maybe, ", 1))
		got = d.until("the unreadable pod", func(s *source.Snapshot) bool { return len(s.Problems) == 4 })
		if hasPod("c")(got) || !hasPod("a")(got) {
			t.Error(show(got))
		}

		// Another replica that begins now has no last good version: the policy
		// denies all the same, and the mesh is strict.
		fresh := start(t, s).Snapshot()
		if fresh.Mesh == nil || fresh.Mesh.Spec.MTLS != "strict" || len(fresh.BrokenPolicies) != 1 || len(fresh.AccessPolicies) != 0 {
			t.Errorf("a fresh replica has %s", show(fresh))
		}

		s.Delete("accesspolicies", "shop", "p")
		s.Delete("meshconfigs", "", "default")
		d.until("no bad ones", func(s *source.Snapshot) bool {
			return len(s.BrokenPolicies) == 0 && s.Mesh == nil && len(s.Problems) == 2
		})
	})
}

// Our own word in an object's status, and what servers and tools keep in its
// metadata, change nothing.
func TestNoise(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, policy("p", "allow"))
		d := start(t, s)
		before := d.Snapshot()
		err := d.WriteStatus(t.Context(), source.Ref{Kind: "AccessPolicy", Namespace: "shop", Name: "p"}, []source.Condition{{Type: "Accepted", Status: "True", Reason: "Accepted"}})
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(t, strings.Replace(policy("p", "allow"), "namespace: shop}", `namespace: shop, managedFields: [{manager: kubectl, fieldsV1: {"f:spec": {}}}], finalizers: [x], annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}}`, 1))
		d.rest()
		if got := d.Snapshot(); got != before {
			t.Errorf("%s after %s", show(got), show(before))
		}
	})
}

func TestServiceCIDRs(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		cidr := func(name, list string) string {
			return "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: " + name + "}\nspec: {cidrs: [" + list + "]}\n"
		}
		s.Apply(t, cidr("kubernetes", `"fd00:10:96::/112", 10.96.0.0/16`)+cidr("more", "10.97.0.0/16, 10.96.0.0/16"))
		d := start(t, s)
		if got := d.Snapshot().ServiceCIDRs; len(got) != 3 || got[0] != netip.MustParsePrefix("10.96.0.0/16") {
			t.Errorf("ranges %v", got)
		}
		s.Delete("servicecidrs", "", "more")
		d.until("two ranges", func(s *source.Snapshot) bool { return len(s.ServiceCIDRs) == 2 })
	})
}

// What comes in a watch and is no event makes the door list again; the world
// stays.
func TestMalformedEvents(t *testing.T) {
	for _, bad := range []string{
		"}{\n", `{"type":"ADDED","object":"pod"}`, `{"type":"ADDED","object":{"metadata":{}}}`, `{"type":7}`,
		`{"type":"ERROR","object":[]}`, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":{}}}}`,
		`{"type":"ADDED","object":{"metadata":{"name":"` + strings.Repeat("x", maxObject+1<<20) + `"}}}`,
	} {
		t.Run(bad[:min(len(bad), 40)], func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubeapi.Server) {
				s.Apply(t, pod("a", "10.0.0.1"))
				d := start(t, s)
				before := d.Snapshot()
				s.Garble("pods", bad)
				s.Cut()
				time.Sleep(time.Second)
				if d.Snapshot() != before {
					t.Errorf("after garbage: %s", show(d.Snapshot()))
				}
				s.Apply(t, pod("b", "10.0.0.2"))
				d.within(2*retryMax, "b", hasPod("b"))
			})
		})
	}
}

func TestReadList(t *testing.T) {
	pods, _ := apiserver.Find("Pod")
	for _, tt := range []struct{ text, want string }{
		{`{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"x"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`, ""},
		{`{"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}],"extra":{"a":[1]},"metadata":{"resourceVersion":"7","continue":"x"}}`, ""},
		{`{"metadata":{"resourceVersion":"7"},"items":null}`, "0 items"},
		{`{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}`, "unexpected EOF"},
		{`{"metadata":{"resourceVersion":"7"},"items":{}}`, "no list"},
		{`{"items":[{"metadata":{}}]}`, "no name"},
		{`[]`, "where {"},
		{``, "unexpected EOF"},
		{`{"items":[{"metadata":{"name":"` + strings.Repeat("x", maxObject+1<<20) + `"}}]}`, "longer than"},
	} {
		got, err := readList(pods, strings.NewReader(tt.text))
		switch {
		case err != nil:
			if tt.want == "" || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%.60s: %v, want %q", tt.text, err, tt.want)
			}
		case tt.want == "0 items":
			if len(got.Items) != 0 {
				t.Errorf("%d items", len(got.Items))
			}
		case tt.want != "" || len(got.Items) != 2 || got.ResourceVersion != "7" || got.Continue != "x" || got.Items[1].Name != "b":
			t.Errorf("%.60s: %+v", tt.text, got)
		}
	}
}

// FuzzStream: whatever a server sends, the decoder ends, and what it lets
// through has a name.
func FuzzStream(f *testing.F) {
	for _, s := range []string{
		`{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"b","resourceVersion":"3"},"status":{"podIP":"10.0.0.1"}}}`,
		`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}`,
		`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`, `{"type":"ADDED"}`, `{`, `null`,
	} {
		f.Add("Pod", s)
		f.Add("AccessPolicy", s)
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		k, ok := apiserver.Find(name)
		if !ok {
			return
		}
		src := &Source{Client: nil, log: quiet(), shelves: map[string]*shelf{}, dirty: make(chan struct{}, 1)}
		l := &lister{source: src, shelf: src.expect(k), kind: k}
		b := &bounded{from: strings.NewReader(text)}
		st := &stream{lister: l, body: http.NoBody, bound: b, json: decoder(b), cancel: func() {}}
		for range 100 {
			kind, o, err := st.Decode()
			if err != nil {
				return
			}
			if x, is := o.(*object); is && kind != "BOOKMARK" {
				if x.Name == "" || x.text == nil {
					t.Fatalf("%s without a name: %q", kind, text)
				}
				_ = l.shelf.Update(x)
			}
		}
	})
}
