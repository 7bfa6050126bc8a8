package policy

import (
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/controlplane/state"
	decide "github.com/heddle-mesh/heddle/internal/policy"
	"github.com/heddle-mesh/heddle/internal/source"
)

// check gives the mistakes that the control plane and the sidecars would find:
// the objects are built and compiled by their very code, with a pod of our own
// making for each AccessPolicy to select.
func check(r *request) []source.Problem {
	snap := empty()
	pods := map[source.Ref]*source.Pod{}
	for i, g := range r.objects {
		key := source.Key{Namespace: g.ref.Namespace, Name: g.ref.Name}
		switch v := g.object.Value.(type) {
		case *v1alpha1.MeshConfig:
			snap.Mesh = v
		case *v1alpha1.TrafficPolicy:
			snap.TrafficPolicies[key] = v
		case *v1alpha1.AccessPolicy:
			snap.AccessPolicies[key] = v
			// Names with a slash are no pod's, so it meets none.
			p := &source.Pod{Namespace: key.Namespace, Name: fmt.Sprintf("check/%d", i), UID: fmt.Sprintf("check/%d", i), ServiceAccount: "default",
				Labels: v.Spec.Selector, Phase: "Running", Meshed: true}
			snap.Pods[source.Key{Namespace: p.Namespace, Name: p.Name}], pods[g.ref] = p, p
		}
	}
	w := state.Build(nil, snap, state.Options{})
	out := w.Problems()
	bad := map[source.Ref]bool{}
	for i := range out {
		bad[out[i].Ref] = true
	}
	own := spiffeid.RequireTrustDomainFromString("cluster.local") // any does: only its form counts
	for _, g := range r.objects {
		pod := pods[g.ref]
		if pod == nil || bad[g.ref] {
			continue
		}
		res := w.Resource("inbound", state.Peer{Namespace: pod.Namespace, ServiceAccount: pod.ServiceAccount, PodUID: pod.UID})
		for _, text := range decide.Compile(res.Update.GetInbound(), own).Broken() {
			out = append(out, source.Problem{Ref: g.ref, Err: text, Fix: "sidecars would refuse everybody that the policy selects"})
		}
	}
	where := map[source.Ref]*given{}
	for _, g := range r.objects {
		where[g.ref] = g
	}
	for i := range out {
		if g := where[out[i].Ref]; g != nil && out[i].File == "" {
			out[i].File, out[i].Line = g.file, g.object.Line
		}
	}
	return out
}

func empty() *source.Snapshot {
	return &source.Snapshot{
		Revision: 1, Pods: map[source.Key]*source.Pod{},
		AccessPolicies: map[source.Key]*v1alpha1.AccessPolicy{}, TrafficPolicies: map[source.Key]*v1alpha1.TrafficPolicy{},
	}
}
