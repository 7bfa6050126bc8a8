// Package replicas decides which pods a Deployment or a Job wants created and
// deleted, and what they are called. It is pure: the same pods give the same
// plan. It does not create anything. internal/lab calls it.
package replicas

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// maxGenerated is the longest name that Kubernetes generates (63), so that
	// it fits a DNS label and a host name.
	maxGenerated = 63
	// randomLength is how many random letters end a generated name.
	randomLength = 5
	// maxBurst bounds the pods that one plan creates; the next plan goes on.
	maxBurst = 50
	// alphabet has no vowels and no digits that look like letters, as
	// Kubernetes' (apimachinery rand).
	alphabet = "bcdfghjklmnpqrstvwxz2456789"
)

// HashLabel tells pods of one template from those of another.
const HashLabel = "pod-template-hash"

// Pod is what a plan needs to know of one pod of the workload.
type Pod struct {
	Name        string
	Hash        string // of the template it was made from
	Ready       bool
	Terminating bool
	Failed      bool // its phase is Failed
	Succeeded   bool
	Created     int64 // any growing number
}

// Plan is what to do now; a later plan does the rest.
type Plan struct {
	Create int
	Delete []string
}

// Hash is the fingerprint of a template.
func Hash(t *corev1.PodTemplateSpec) string {
	b, err := json.Marshal(t)
	if err != nil {
		panic(fmt.Sprintf("a pod template cannot be encoded: %v", err)) // it was decoded from JSON
	}
	h := fnv.New64a()
	h.Write(b)
	n := h.Sum64()
	out := make([]byte, 10)
	for i := range out {
		out[i] = alphabet[n%uint64(len(alphabet))]
		n /= uint64(len(alphabet))
	}
	return string(out)
}

// Name generates the name of a pod: base, cut so that all of it fits, and five
// random letters that no other pod of taken has.
func Name(base string, taken func(string) bool) string {
	base = strings.TrimRight(base, "-.") + "-"
	if len(base) > maxGenerated-randomLength {
		base = base[:maxGenerated-randomLength]
	}
	for {
		suffix := make([]byte, randomLength)
		for i := range suffix {
			suffix[i] = alphabet[rand.IntN(len(alphabet))]
		}
		if name := base + string(suffix); !taken(name) {
			return name
		}
	}
}

// Deployment plans the next step towards d: replicas pods of its present
// template. Failed pods are replaced. A changed template replaces pod by pod,
// at most maxSurge above and maxUnavailable below (the lab's defaults: 1 and
// 0, Kubernetes' 25 % of few replicas); strategy Recreate empties first.
func Deployment(d *appsv1.Deployment, hash string, pods []Pod) Plan {
	want := int(*d.Spec.Replicas)
	var plan Plan
	var fresh, old []Pod
	leaving := 0
	for _, p := range pods {
		switch {
		case p.Terminating:
			leaving++
		case p.Failed || p.Succeeded:
			plan.Delete = append(plan.Delete, p.Name)
		case p.Hash == hash:
			fresh = append(fresh, p)
		default:
			old = append(old, p)
		}
	}
	sortForDeletion(fresh)
	sortForDeletion(old)
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		if len(old) > 0 {
			plan.Delete = append(plan.Delete, names(old)...)
			return plan
		}
		if leaving > 0 && len(fresh) == 0 {
			return plan
		}
	}
	surge, unavailable := bounds(d, want)
	ready := count(fresh, isReady) + count(old, isReady)
	room := want
	if len(old) > 0 {
		room += surge
	}
	plan.Create = min(max(0, want-len(fresh)), max(0, room-len(fresh)-len(old)), maxBurst)
	if extra := len(fresh) - want; extra > 0 {
		plan.Delete = append(plan.Delete, names(fresh[:extra])...)
		ready -= count(fresh[:extra], isReady)
	}
	for _, p := range old { // first those that serve nobody anyway
		if !p.Ready {
			plan.Delete = append(plan.Delete, p.Name)
		} else if ready > want-unavailable {
			plan.Delete = append(plan.Delete, p.Name)
			ready--
		}
	}
	return plan
}

// bounds resolves maxSurge and maxUnavailable; both 0 would never end.
func bounds(d *appsv1.Deployment, want int) (surge, unavailable int) {
	surge, unavailable = 1, 0
	r := d.Spec.Strategy.RollingUpdate
	if r == nil {
		return
	}
	if r.MaxSurge != nil {
		surge, _ = intstr.GetScaledValueFromIntOrPercent(r.MaxSurge, want, true)
	}
	if r.MaxUnavailable != nil {
		unavailable, _ = intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, want, false)
	}
	if surge <= 0 && unavailable <= 0 {
		surge = 1
	}
	return max(0, surge), max(0, unavailable)
}

// Job plans the next step towards j's completions. done says that nothing is
// left to do; failed that its backoffLimit is used up.
func Job(j *batchv1.Job, pods []Pod) (plan Plan, done, failed bool) {
	succeeded, failures, active := 0, 0, 0
	for _, p := range pods {
		switch {
		case p.Succeeded:
			succeeded++
		case p.Failed:
			failures++
		case !p.Terminating:
			active++
		}
	}
	left := int(*j.Spec.Completions) - succeeded
	switch {
	case left <= 0:
		return Plan{}, true, false
	case failures > int(*j.Spec.BackoffLimit):
		return Plan{}, true, true
	}
	return Plan{Create: min(max(0, min(left, int(*j.Spec.Parallelism))-active), maxBurst)}, false, false
}

// sortForDeletion puts those first that are missed least: not ready, then young.
func sortForDeletion(pods []Pod) {
	slices.SortStableFunc(pods, func(a, b Pod) int {
		if a.Ready != b.Ready {
			if b.Ready {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.Created, a.Created), cmp.Compare(a.Name, b.Name))
	})
}

func isReady(p Pod) bool { return p.Ready }

func count(pods []Pod, f func(Pod) bool) int {
	n := 0
	for _, p := range pods {
		if f(p) {
			n++
		}
	}
	return n
}

func names(pods []Pod) []string {
	out := make([]string, len(pods))
	for i, p := range pods {
		out[i] = p.Name
	}
	return out
}
