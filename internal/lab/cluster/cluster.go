// Package cluster is what an API server, its controllers and a scheduler would
// make of a set of manifests, as one state machine: events go in, Step gives
// the objects of the world, what the kubelets shall do and which pods to ask
// webhooks about. It does no I/O, starts nothing and is driven by one
// goroutine. internal/lab drives it.
package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-mesh/heddle/internal/lab/address"
	"github.com/heddle-mesh/heddle/internal/lab/admit"
	"github.com/heddle-mesh/heddle/internal/lab/dns"
	"github.com/heddle-mesh/heddle/internal/lab/manifest"
	"github.com/heddle-mesh/heddle/internal/lab/objects"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Node is a node of the cluster.
type Node struct {
	Name      string
	Zone      string
	Labels    map[string]string
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
}

// Config is what a cluster is made of.
type Config struct {
	Domain       string
	Nodes        []Node
	ServiceCIDRs []netip.Prefix // at most one per family, IPv4 first
	Hosts        map[string][]netip.Addr
	// NewUID and NewName make what is random: a pod's UID, and a pod's name
	// from a base so that taken says no.
	NewUID  func() types.UID
	NewName func(base string, taken func(string) bool) string
	Now     func() time.Time
}

// Output is what one Step asks for, to be done in this order: write Objects,
// then Apply, Delete and Admit.
type Output struct {
	Objects []objects.Object
	Zone    dns.Input
	Apply   []*corev1.Pod
	Delete  []Deletion
	Admit   []Admission
	Status  Status
	// Wake is when to Step again though nothing happened; zero: never.
	Wake time.Time
}

// Deletion is a pod for a kubelet to end.
type Deletion struct {
	Node  string
	UID   types.UID
	Grace time.Duration // negative: the pod's own
}

// Admission is a pod to ask webhooks about; the answer comes back by Admitted.
type Admission struct {
	Pod   *corev1.Pod
	Hooks []admit.Hook
	// Endpoint is for admit.Config.
	Endpoint func(namespace, name string, port int32) (netip.AddrPort, bool)
}

// Answer is what webhooks said of a pod.
type Answer struct {
	Pod      *corev1.Pod // as they left it
	Warnings []string    // for who wrote the pod
	Err      error       // why the pod may not be; nil: it may
}

// stage of a pod's life.
type stage int

const (
	created  stage = iota // to be admitted
	asking                // webhooks are being asked
	admitted              // to be scheduled
	placed                // its kubelet has it
	leaving               // its kubelet ends it
)

// pod is one pod that exists.
type pod struct {
	obj       *corev1.Pod
	owner     source.Ref // the document it comes from
	hash      string     // of that document, or of its template
	seq       int64      // order of creation
	stage     stage
	attempts  int
	notBefore time.Time
	waiting   string // why it does not run yet
	warnings  []string
}

func (p *pod) key() source.Key { return source.Key{Namespace: p.obj.Namespace, Name: p.obj.Name} }

// Cluster is the state. It is not safe for concurrent use.
type Cluster struct {
	cfg      Config
	set      *manifest.Set
	pods     map[types.UID]*pod
	seq      int64
	draining bool
	services map[int]*address.Pool // by address bits
	podIPs   map[string][]*address.Pool
	slices   map[source.Key][]*discoveryv1.EndpointSlice // as last built

	// Of one Step.
	docs     docs
	problems []source.Problem
	out      Output
}

// New gives a cluster without objects.
func New(cfg Config) *Cluster {
	c := &Cluster{cfg: cfg, set: &manifest.Set{}, pods: map[types.UID]*pod{}, services: map[int]*address.Pool{},
		podIPs: map[string][]*address.Pool{}, slices: map[source.Key][]*discoveryv1.EndpointSlice{}}
	for _, p := range cfg.ServiceCIDRs {
		c.services[p.Addr().BitLen()] = address.NewPool(p)
	}
	for _, n := range cfg.Nodes {
		for _, p := range n.PodCIDRs {
			gateway := p.Masked().Addr().Next()
			c.podIPs[n.Name] = append(c.podIPs[n.Name], address.NewPool(p, gateway))
		}
	}
	return c
}

// SetManifests replaces what is wanted.
func (c *Cluster) SetManifests(s *manifest.Set) { c.set = s }

// PodStatus takes a pod's status from its kubelet.
func (c *Cluster) PodStatus(p *corev1.Pod) {
	if have := c.pods[p.UID]; have != nil {
		have.obj = have.obj.DeepCopy() // the old one was handed out
		have.obj.Status = *p.Status.DeepCopy()
	}
}

// PodDeleted says that nothing is left of a pod.
func (c *Cluster) PodDeleted(uid types.UID) { c.forget(uid) }

func (c *Cluster) forget(uid types.UID) {
	if p := c.pods[uid]; p != nil {
		for _, pool := range c.podIPs[p.obj.Spec.NodeName] {
			pool.Free(string(uid))
		}
		delete(c.pods, uid)
	}
}

// Drain makes the cluster want nothing any more: pods of all namespaces but
// keep end with at most grace. Nothing new is made afterwards.
func (c *Cluster) Drain(keep string, grace time.Duration) {
	c.draining = true
	for _, p := range c.sorted() {
		if p.obj.Namespace != keep {
			c.leave(p, grace)
		}
	}
}

// Empty says whether no pod is left outside of the namespace keep.
func (c *Cluster) Empty(keep string) bool {
	for _, p := range c.pods {
		if p.obj.Namespace != keep {
			return false
		}
	}
	return true
}

// Step makes the world follow from all that came in since the last one.
func (c *Cluster) Step() Output {
	c.problems = append([]source.Problem(nil), c.set.Problems...)
	c.docs = c.index()
	if !c.draining {
		c.replicate()
	}
	services := c.assignClusterIPs()
	c.buildSlices(services)
	if !c.draining {
		c.admitAndPlace(services)
	}
	c.output(services)
	out := c.out
	c.out = Output{}
	return out
}

func (c *Cluster) problem(d *manifest.Document, field, err, fix string) {
	c.problems = append(c.problems, source.Problem{File: d.File, Line: d.Line, Ref: d.Ref, Field: field, Err: err, Fix: fix})
}

func (c *Cluster) wakeAt(t time.Time) {
	if c.out.Wake.IsZero() || t.Before(c.out.Wake) {
		c.out.Wake = t
	}
}

func (c *Cluster) zone(node string) string {
	for _, n := range c.cfg.Nodes {
		if n.Name == node {
			return n.Zone
		}
	}
	return ""
}

// StableUID is the UID of an object that the manifests alone define: it follows
// from its name, so that it is the same in the lab's next life.
func StableUID(kind, namespace, name string) types.UID {
	sum := sha256.Sum256([]byte(kind + "/" + namespace + "/" + name))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	h := hex.EncodeToString(sum[:16])
	return types.UID(fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:]))
}
