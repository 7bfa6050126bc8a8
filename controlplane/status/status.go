// Package status says, for each object of Heddle's own kinds, whether it is in
// force (condition Accepted), since which generation, and what it selects, and
// writes that to the object. It judges nothing itself: problems are found by
// the source and controlplane/state. package controlplane runs one Writer on
// the replica that leads.
package status

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/controlplane/access"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Accepted is the type of the one condition; its reasons are Accepted and
// Invalid.
const Accepted = "Accepted"

// Verdict is what is said of one object. UID tells an object from one of the
// same name that was deleted; "" where the source knows none.
type Verdict struct {
	source.Condition
	UID string
}

// Of gives the verdict on every object of our kinds that stands in the
// snapshot or has a problem. The status of others' kinds is others' to write.
func Of(snap *source.Snapshot, problems []source.Problem) map[source.Ref]Verdict {
	o := &judged{snap: snap, policies: access.New(snap), bad: map[source.Ref][]source.Problem{}, out: map[source.Ref]Verdict{}}
	o.selections = o.policies.Selections(snap.Pods)
	for _, p := range problems {
		if own[p.Ref.Kind] && p.Ref.Name != "" {
			o.bad[p.Ref] = append(o.bad[p.Ref], p)
		}
	}
	o.good()
	for ref, list := range o.bad {
		o.out[ref] = o.invalid(ref, list)
	}
	return o.out
}

// own are our kinds.
var own = map[string]bool{"MeshConfig": true, "AccessPolicy": true, "TrafficPolicy": true}

// judged is one Of.
type judged struct {
	snap       *source.Snapshot
	policies   *access.Set
	selections map[source.Key]access.Selection
	bad        map[source.Ref][]source.Problem
	out        map[source.Ref]Verdict
}

func (o *judged) good() {
	accept := func(kind string, m metav1.Object, message string) {
		ref := source.Ref{Kind: kind, Namespace: m.GetNamespace(), Name: m.GetName()}
		o.out[ref] = Verdict{UID: string(m.GetUID()), Condition: source.Condition{
			Type: Accepted, Status: "True", Reason: "Accepted", Message: message, ObservedGeneration: m.GetGeneration()}}
	}
	if m := o.snap.Mesh; m != nil && m.Name != "" {
		accept("MeshConfig", m, "in force")
	}
	for key, p := range o.snap.AccessPolicies {
		accept("AccessPolicy", p, "in force; "+pods(o.selections[key]))
	}
	for _, p := range o.snap.TrafficPolicies {
		var missing []string
		found := map[string]bool{}
		for _, t := range p.Spec.TargetRefs {
			name := p.Namespace + "/" + t.Name
			svc := o.snap.Services[source.Key{Namespace: p.Namespace, Name: t.Name}]
			switch {
			case svc == nil:
				missing = append(missing, "there is no Service "+name)
			case t.Port != nil && !slices.ContainsFunc(svc.Ports, func(sp source.ServicePort) bool { return sp.Port == *t.Port }):
				missing = append(missing, fmt.Sprintf("Service %s has no port %d", name, *t.Port))
			default:
				found[name] = true
			}
		}
		accept("TrafficPolicy", p, "in force; "+services(len(found), missing))
	}
}

// pods says what an AccessPolicy selects. A pod without a sidecar has nobody
// who would enforce it.
func pods(n access.Selection) string {
	if n.Pods == 0 {
		return "selects no pod yet"
	}
	s := "selects " + count(n.Pods, "pod")
	switch {
	case n.Bare == n.Pods:
		s += ", none of which has a sidecar that would enforce it"
	case n.Bare > 0:
		s += fmt.Sprintf(", %d of them without a sidecar that would enforce it", n.Bare)
	}
	return s
}

// listed bounds what a message lists.
const listed = 3

func services(found int, missing []string) string {
	s := "is for " + count(found, "Service")
	if found == 0 {
		s = "is for no Service yet"
	}
	if n := len(missing) - listed; n > 0 {
		missing = append(missing[:listed:listed], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(append([]string{s}, missing...), "; ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// invalid tells what is wrong, what to do, and what holds until then.
func (o *judged) invalid(ref source.Ref, list []source.Problem) Verdict {
	c, stands := o.out[ref]
	c.Type, c.Status, c.Reason = Accepted, "False", "Invalid"
	var texts []string
	for _, p := range list {
		if p.Generation != 0 {
			c.ObservedGeneration = p.Generation
		}
		text := p.Err
		if p.Field != "" {
			text = p.Field + ": " + text
		}
		if p.Fix != "" {
			text += " (" + p.Fix + ")"
		}
		texts = append(texts, text)
	}
	c.Message = strings.Join(texts, "; ")
	switch {
	case ref.Kind == "AccessPolicy":
		n := o.selections[source.Key{Namespace: ref.Namespace, Name: ref.Name}]
		if n.Pods > 0 {
			c.Message += fmt.Sprintf("; until then nobody may call the %s that it may mean", count(n.Pods, "pod"))
		}
	case stands:
		c.Message += "; until then its last good version is in force"
	default:
		c.Message += "; until then it is not in force"
	}
	return c
}
