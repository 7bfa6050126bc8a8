package access

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/source"
)

func named(name string, spec v1alpha1.AccessPolicySpec) *v1alpha1.AccessPolicy {
	return &v1alpha1.AccessPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec}
}

func says(mode v1alpha1.MTLSMode, ports ...uint16) *v1alpha1.MTLSRule {
	return &v1alpha1.MTLSRule{Mode: mode, Ports: ports}
}

func set(list ...*v1alpha1.AccessPolicy) *source.Snapshot {
	s := &source.Snapshot{AccessPolicies: map[source.Key]*v1alpha1.AccessPolicy{}}
	for _, p := range list {
		s.AccessPolicies[source.Key{Namespace: p.Namespace, Name: p.Name}] = p
	}
	return s
}

// The most specific word on the mode counts, of equal ones strict; ModeBy
// names whose it is, and says the same as what the pod is told.
func TestMode(t *testing.T) {
	const strict, permissive = v1alpha1.MTLSStrict, v1alpha1.MTLSPermissive
	web := map[string]string{"app": "web"}
	for _, tt := range []struct {
		name string
		mesh *v1alpha1.MeshConfig
		list []*v1alpha1.AccessPolicy
		want string // of ports 80 and 90
	}{
		{"nothing", nil, nil, "permissive permissive"},
		{"mesh", &v1alpha1.MeshConfig{Spec: v1alpha1.MeshConfigSpec{MTLS: strict}}, nil, "strict strict"},
		{"a word we do not know", &v1alpha1.MeshConfig{Spec: v1alpha1.MeshConfigSpec{MTLS: "strickt"}}, nil, "strict strict"},
		{"namespace over mesh", &v1alpha1.MeshConfig{Spec: v1alpha1.MeshConfigSpec{MTLS: strict}}, []*v1alpha1.AccessPolicy{named("a", v1alpha1.AccessPolicySpec{MTLS: says(permissive)})}, "permissive/a permissive/a"},
		{"pods over namespace", nil, []*v1alpha1.AccessPolicy{named("a", v1alpha1.AccessPolicySpec{MTLS: says(strict)}), named("b", v1alpha1.AccessPolicySpec{Selector: web, MTLS: says(permissive)})}, "permissive/b permissive/b"},
		{"other pods", nil, []*v1alpha1.AccessPolicy{named("a", v1alpha1.AccessPolicySpec{Selector: map[string]string{"app": "other"}, MTLS: says(strict)})}, "permissive permissive"},
		{"a port over pods", nil, []*v1alpha1.AccessPolicy{named("a", v1alpha1.AccessPolicySpec{MTLS: says(strict, 80)}), named("b", v1alpha1.AccessPolicySpec{Selector: web, MTLS: says(permissive)})}, "strict/a permissive/b"},
		{"a pod's port over a namespace's", nil, []*v1alpha1.AccessPolicy{named("a", v1alpha1.AccessPolicySpec{MTLS: says(strict, 80)}), named("b", v1alpha1.AccessPolicySpec{Selector: web, MTLS: says(permissive, 80)})}, "permissive/b permissive"},
		{"strict of equals, before", nil, []*v1alpha1.AccessPolicy{named("a", v1alpha1.AccessPolicySpec{MTLS: says(strict)}), named("b", v1alpha1.AccessPolicySpec{MTLS: says(permissive)}), named("c", v1alpha1.AccessPolicySpec{MTLS: says(strict)})}, "strict/a strict/a"},
		{"strict of equals, after", nil, []*v1alpha1.AccessPolicy{named("a", v1alpha1.AccessPolicySpec{MTLS: says(permissive)}), named("b", v1alpha1.AccessPolicySpec{MTLS: says(strict)})}, "strict/b strict/b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &source.Pod{Namespace: "shop", Name: "web", Labels: web}
			s := New(set(tt.list...))
			out := &wire.InboundPolicy{}
			s.Apply(out, pod, tt.mesh)
			var got []string
			for _, port := range []uint16{80, 90} {
				mode := out.Mode
				for _, p := range out.Ports {
					if p.Port == uint32(port) {
						mode = p.Mode
					}
				}
				text := strings.ToLower(strings.TrimPrefix(mode.String(), "MTLS_MODE_"))
				if by := s.ModeBy(pod, port); by != nil {
					if string(by.Spec.MTLS.Mode) != text {
						t.Errorf("port %d is %s, by %s, which says %s", port, text, by.Name, by.Spec.MTLS.Mode)
					}
					text += "/" + by.Name
				}
				got = append(got, text)
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("got %q, want %q", s, tt.want)
			}
		})
	}
}

func TestSelections(t *testing.T) {
	snap := set(named("all", v1alpha1.AccessPolicySpec{MTLS: says(v1alpha1.MTLSStrict)}),
		named("web", v1alpha1.AccessPolicySpec{Selector: map[string]string{"app": "web"}, MTLS: says(v1alpha1.MTLSStrict)}),
		named("none", v1alpha1.AccessPolicySpec{Selector: map[string]string{"app": "no"}, MTLS: says(v1alpha1.MTLSStrict)}),
		named("bad", v1alpha1.AccessPolicySpec{Selector: map[string]string{"app": "web"}}))
	ref := source.Ref{Kind: "AccessPolicy", Namespace: "shop", Name: "twice"}
	snap.BrokenPolicies = []source.BrokenPolicy{{Ref: ref}, {Ref: ref, Selector: map[string]string{"app": "web"}}}
	pods := map[source.Key]*source.Pod{}
	for i, p := range []source.Pod{
		{Namespace: "shop", Labels: map[string]string{"app": "web"}, Meshed: true},
		{Namespace: "shop", Labels: map[string]string{"app": "web"}},
		{Namespace: "shop", Meshed: true},
		{Namespace: "shop", Labels: map[string]string{"app": "web"}, Phase: "Succeeded"},
		{Namespace: "else", Labels: map[string]string{"app": "web"}, Meshed: true},
	} {
		p.Name = fmt.Sprint(i)
		pods[source.Key{Namespace: p.Namespace, Name: p.Name}] = &p
	}
	got := New(snap).Selections(pods)
	for name, want := range map[string]Selection{"all": {3, 1}, "web": {2, 1}, "none": {}, "bad": {2, 1}, "twice": {3, 1}} {
		if n := got[source.Key{Namespace: "shop", Name: name}]; n != want {
			t.Errorf("%s selects %+v, want %+v", name, n, want)
		}
	}
}
