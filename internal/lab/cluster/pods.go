package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-mesh/heddle/internal/lab/admit"
	"github.com/heddle-mesh/heddle/internal/lab/manifest"
	"github.com/heddle-mesh/heddle/internal/lab/replicas"
	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// A webhook that failed is asked again after retryMin, then twice as long,
	// at most retryMax: a lab's webhook comes up within seconds.
	retryMin = 500 * time.Millisecond
	retryMax = 10 * time.Second
)

// sorted gives the pods in order of creation.
func (c *Cluster) sorted() []*pod {
	return slices.SortedFunc(maps.Values(c.pods), func(a, b *pod) int { return cmp.Compare(a.seq, b.seq) })
}

// replicate makes and ends pods so that they follow from the documents.
func (c *Cluster) replicate() {
	owned := map[source.Ref][]*pod{}
	for _, p := range c.sorted() {
		if c.docs.byRef[p.owner] == nil {
			c.leave(p, -1)
			continue
		}
		owned[p.owner] = append(owned[p.owner], p)
	}
	c.docs.each(func(doc *manifest.Document) {
		switch o := doc.Object.(type) {
		case *corev1.Pod:
			c.barePod(doc, o, owned[doc.Ref])
		case *appsv1.Deployment:
			hash := replicas.Hash(&o.Spec.Template)
			plan := replicas.Deployment(o, hash, seen(owned[doc.Ref]))
			c.carryOut(doc, plan, &o.Spec.Template, hash)
		case *batchv1.Job:
			hash := doc.Hash[:10]
			var now []*pod
			for _, p := range owned[doc.Ref] {
				if p.hash != hash { // an edited Job starts again
					c.leave(p, -1)
					continue
				}
				now = append(now, p)
			}
			plan, _, failed := replicas.Job(o, seen(now))
			if failed {
				c.problem(doc, "spec.backoffLimit", "its pods failed too often", "look at their logs; edit the Job to try again")
			}
			c.carryOut(doc, plan, &o.Spec.Template, hash)
		}
	})
}

// barePod keeps the one pod of a Pod document. A changed document ends the pod
// and makes a new one of the same name: a running pod's spec cannot change.
func (c *Cluster) barePod(doc *manifest.Document, o *corev1.Pod, have []*pod) {
	for _, p := range have {
		if p.hash != doc.Hash {
			c.leave(p, -1)
		}
	}
	key := source.Key{Namespace: o.Namespace, Name: o.Name}
	for _, p := range c.pods {
		if p.key() == key {
			return
		}
	}
	c.create(doc, doc.Hash, corev1.Pod{ObjectMeta: *o.ObjectMeta.DeepCopy(), Spec: *o.Spec.DeepCopy()})
}

// seen gives the planner's view of pods.
func seen(pods []*pod) []replicas.Pod {
	var out []replicas.Pod
	for _, p := range pods {
		out = append(out, replicas.Pod{
			Name: p.obj.Name, Hash: p.hash, Created: p.seq,
			Ready:       ready(p.obj),
			Terminating: p.stage == leaving,
			Failed:      p.obj.Status.Phase == corev1.PodFailed,
			Succeeded:   p.obj.Status.Phase == corev1.PodSucceeded,
		})
	}
	return out
}

func (c *Cluster) carryOut(doc *manifest.Document, plan replicas.Plan, t *corev1.PodTemplateSpec, hash string) {
	for _, name := range plan.Delete {
		for _, p := range c.sorted() {
			if p.owner == doc.Ref && p.obj.Name == name {
				c.leave(p, -1)
			}
		}
	}
	base, owner := doc.Ref.Name, metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: doc.Ref.Name}
	if doc.Ref.Kind == "Deployment" {
		base += "-" + hash
		owner = metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: base}
	}
	owner.UID = StableUID(owner.Kind, doc.Ref.Namespace, owner.Name)
	owner.Controller = new(true)
	for range plan.Create {
		meta := *t.ObjectMeta.DeepCopy()
		meta.Namespace = doc.Ref.Namespace
		meta.Name = c.cfg.NewName(base, func(name string) bool { return c.named(meta.Namespace, name) })
		meta.OwnerReferences = []metav1.OwnerReference{owner}
		if meta.Labels == nil {
			meta.Labels = map[string]string{}
		}
		if doc.Ref.Kind == "Deployment" {
			meta.GenerateName = base + "-"
			meta.Labels[replicas.HashLabel] = hash
		} else {
			meta.Labels[batchv1.JobNameLabel] = doc.Ref.Name
		}
		c.create(doc, hash, corev1.Pod{ObjectMeta: meta, Spec: *t.Spec.DeepCopy()})
	}
}

// named says whether a pod has, or a document wants, that name.
func (c *Cluster) named(namespace, name string) bool {
	for _, p := range c.pods {
		if p.obj.Namespace == namespace && p.obj.Name == name {
			return true
		}
	}
	return c.docs.byRef[source.Ref{Kind: "Pod", Namespace: namespace, Name: name}] != nil
}

func (c *Cluster) create(doc *manifest.Document, hash string, obj corev1.Pod) {
	obj.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	obj.UID = c.cfg.NewUID()
	obj.CreationTimestamp = metav1.NewTime(c.cfg.Now())
	obj.Status = corev1.PodStatus{Phase: corev1.PodPending}
	manifest.DefaultPod(&obj)
	c.seq++
	c.pods[obj.UID] = &pod{obj: &obj, owner: doc.Ref, hash: hash, seq: c.seq}
}

// leave ends a pod: one that no kubelet has is gone at once, another shows that
// it is terminating until its kubelet is done. A negative grace is its own.
func (c *Cluster) leave(p *pod, grace time.Duration) {
	if p.stage < placed {
		c.forget(p.obj.UID)
		return
	}
	own := time.Duration(*p.obj.Spec.TerminationGracePeriodSeconds) * time.Second
	if grace < 0 || own < grace {
		grace = own
	}
	if p.stage == leaving && int64(grace.Seconds()) >= *p.obj.DeletionGracePeriodSeconds {
		return
	}
	at := metav1.NewTime(c.cfg.Now().Add(grace))
	p.obj = p.obj.DeepCopy()
	p.obj.DeletionTimestamp = &at
	p.obj.DeletionGracePeriodSeconds = new(int64(grace.Seconds()))
	p.stage = leaving
	c.out.Delete = append(c.out.Delete, Deletion{Node: p.obj.Spec.NodeName, UID: p.obj.UID, Grace: grace})
}

// admitAndPlace moves pods on towards their kubelets.
func (c *Cluster) admitAndPlace(services map[source.Key]*corev1.Service) {
	lookup := c.endpointLookup(services)
	for _, p := range c.sorted() {
		if p.stage == created {
			c.admit(p, lookup)
		}
		if p.stage == admitted {
			c.place(p)
		}
	}
}

// admit asks webhooks about a pod, or moves it on if none wants it.
func (c *Cluster) admit(p *pod, lookup endpointLookup) {
	account := source.Key{Namespace: p.obj.Namespace, Name: p.obj.Spec.ServiceAccountName}
	if c.docs.accounts[account] == nil {
		p.waiting = fmt.Sprintf("there is no service account %s: add a document of kind ServiceAccount", account)
		return
	}
	if now := c.cfg.Now(); now.Before(p.notBefore) {
		c.wakeAt(p.notBefore)
		return
	}
	hooks, err := admit.Hooks(c.docs.webhooks, c.docs.namespaces[p.obj.Namespace], p.obj)
	if err != nil {
		p.waiting = err.Error()
		return
	}
	for _, h := range hooks {
		if why := notReady(h, lookup); why != "" {
			p.waiting = why // no use to ask; the endpoint's change wakes us
			return
		}
	}
	if len(hooks) == 0 {
		p.stage, p.waiting = admitted, ""
		return
	}
	p.stage = asking
	p.waiting = "waiting for the webhook's answer"
	c.out.Admit = append(c.out.Admit, Admission{Pod: p.obj.DeepCopy(), Hooks: hooks, Endpoint: lookup})
}

func notReady(h admit.Hook, lookup endpointLookup) string {
	s := h.ClientConfig.Service
	if s == nil || h.FailurePolicy != nil && *h.FailurePolicy == admissionregv1.Ignore {
		return ""
	}
	port := int32(443)
	if s.Port != nil {
		port = *s.Port
	}
	if _, ok := lookup(s.Namespace, s.Name, port); ok {
		return ""
	}
	return fmt.Sprintf("waiting for webhook %s: Service %s/%s has no ready endpoint", h.Name, s.Namespace, s.Name)
}

// Admitted takes what webhooks said of a pod.
func (c *Cluster) Admitted(uid types.UID, a Answer) {
	obj, err := a.Pod, a.Err
	p := c.pods[uid]
	if p == nil || p.stage != asking {
		return // it was deleted meanwhile
	}
	if err == nil {
		manifest.DefaultPod(obj)
		err = manifest.PodFaults(obj)
	}
	if err != nil {
		p.stage = created
		p.waiting = err.Error()
		if !errors.Is(err, admit.ErrNotReady) {
			p.attempts++
		}
		p.notBefore = c.cfg.Now().Add(min(retryMin<<min(max(p.attempts-1, 0), 10), retryMax))
		return
	}
	obj.Status = corev1.PodStatus{Phase: corev1.PodPending}
	p.obj, p.stage, p.waiting, p.warnings = obj, admitted, "", a.Warnings
}

// place gives a pod a node and addresses and hands it to the kubelet.
func (c *Cluster) place(p *pod) {
	node, why := c.schedule(p)
	if why != "" {
		p.waiting = why
		return
	}
	obj := p.obj.DeepCopy()
	obj.Spec.NodeName = node.Name
	if !obj.Spec.HostNetwork {
		for _, pool := range c.podIPs[node.Name] {
			a, err := pool.Next(string(obj.UID))
			if err != nil {
				p.waiting = err.Error()
				return
			}
			obj.Status.PodIPs = append(obj.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
	} else {
		for _, a := range node.Addresses {
			obj.Status.PodIPs = append(obj.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
	}
	for _, a := range node.Addresses {
		obj.Status.HostIPs = append(obj.Status.HostIPs, corev1.HostIP{IP: a.String()})
	}
	if len(obj.Status.PodIPs) > 0 {
		obj.Status.PodIP = obj.Status.PodIPs[0].IP
	}
	if len(obj.Status.HostIPs) > 0 {
		obj.Status.HostIP = obj.Status.HostIPs[0].IP
	}
	p.obj, p.stage, p.waiting = obj, placed, ""
	c.out.Apply = append(c.out.Apply, obj.DeepCopy())
}

// schedule picks, among the nodes that fit, the one with the fewest pods of the
// same owner, then the fewest pods, then the first.
func (c *Cluster) schedule(p *pod) (*Node, string) {
	same, all := map[string]int{}, map[string]int{}
	for _, q := range c.pods {
		if q.stage == placed { // a leaving pod makes room
			all[q.obj.Spec.NodeName]++
			if q.owner == p.owner {
				same[q.obj.Spec.NodeName]++
			}
		}
	}
	var best *Node
	for i := range c.cfg.Nodes {
		n := &c.cfg.Nodes[i]
		if !fits(p.obj, n) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(same[n.Name], same[best.Name]), cmp.Compare(all[n.Name], all[best.Name])) < 0 {
			best = n
		}
	}
	if best == nil {
		return nil, fmt.Sprintf("no node fits: nodeName %q, nodeSelector %s", p.obj.Spec.NodeName, pairs(p.obj.Spec.NodeSelector))
	}
	return best, ""
}

func fits(p *corev1.Pod, n *Node) bool {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName == n.Name // whoever names the node is not asked about labels
	}
	labels := nodeLabels(n)
	for k, v := range p.Spec.NodeSelector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func pairs(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return "{" + strings.Join(out, ",") + "}"
}

func ready(p *corev1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}
