// Package source is where Heddle gets its world from: Kubernetes, or a folder
// of ordinary manifests. It lists and watches, trims objects to the fields we
// read, reviews tokens and writes status. It knows nothing of what its callers
// make of the objects. The control plane, the injector and a node agent
// without a control plane call it.
package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

// Source is one door to the world. Its methods may be called from any
// goroutine; Snapshot and Changed never block.
type Source interface {
	// Run watches until ctx ends. It returns an error only if it could not
	// start; what goes wrong later is a Problem, and watching goes on.
	Run(ctx context.Context) error
	// Snapshot is the newest complete state, nil until everything was listed
	// once. It is never changed after it was handed out.
	Snapshot() *Snapshot
	// Changed receives after each new snapshot. It has room for one signal:
	// a slow reader sees the newest snapshot, not each.
	Changed() <-chan struct{}
	// ReviewToken proves a service account token for one audience.
	ReviewToken(ctx context.Context, token, audience string) (TokenInfo, error)
	// WriteStatus replaces the conditions of one object's status.
	WriteStatus(ctx context.Context, ref Ref, conditions []Condition) error
	// Event tells people about an object; failing to is not an error of the caller.
	Event(ctx context.Context, ref Ref, reason, message string)
	// ReadSecret and WriteSecret keep what replicas share (the CA). A write
	// with a stale version fails with ErrConflict; the version of an absent
	// secret is "".
	ReadSecret(ctx context.Context, namespace, name string) (data map[string][]byte, version string, err error)
	WriteSecret(ctx context.Context, namespace, name, version string, data map[string][]byte) error
	// Publish puts what everybody may read into a ConfigMap and replaces what
	// stood there; Published reads one, ErrNotFound if there is none.
	Publish(ctx context.Context, namespace, name string, data map[string]string) error
	Published(ctx context.Context, namespace, name string) (map[string]string, error)
	// Lead runs lead while we are the one replica that holds the lease of that
	// name, again each time we come to hold it, until ctx ends; it returns
	// after lead has. lead's context ends when the lease is lost: lead must
	// return soon then, another replica may begin.
	Lead(ctx context.Context, name string, lead func(context.Context))
}

// ErrConflict says that somebody else wrote first.
var ErrConflict = errors.New("written by somebody else meanwhile")

// ErrNotFound says that the object named does not exist.
var ErrNotFound = errors.New("not found")

// ErrToken wraps every reason to refuse a token.
var ErrToken = errors.New("token refused")

// Snapshot is the whole world at one revision. Its maps and values are
// read-only. An unchanged object keeps its pointer from one snapshot to the
// next, so callers may compare pointers to find what changed.
type Snapshot struct {
	// Revision orders snapshots, is equal on all replicas that saw the same
	// and never goes back, also not over a restart.
	Revision        uint64
	Namespaces      map[string]*Namespace
	Nodes           map[string]*Node
	Pods            map[Key]*Pod
	Services        map[Key]*Service
	EndpointSlices  map[Key]*EndpointSlice
	ServiceAccounts map[Key]*ServiceAccount
	ServiceCIDRs    []netip.Prefix       // sorted
	Mesh            *v1alpha1.MeshConfig // the one named "default"; nil: defaults
	AccessPolicies  map[Key]*v1alpha1.AccessPolicy
	TrafficPolicies map[Key]*v1alpha1.TrafficPolicy
	// Routes are the Gateway API's, by kind: HTTPRoute, GRPCRoute, TCPRoute,
	// TLSRoute. Empty where their CRDs are not installed.
	Routes map[Ref]*Route
	// Problems are the documents that could not be read, sorted by where they
	// stand. A bad AccessPolicy is here and, as far as its selection could be
	// read, also in BrokenPolicies.
	Problems       []Problem
	BrokenPolicies []BrokenPolicy
}

// Tidy sorts what both doors gather in no order, so that equal worlds give
// equal snapshots, and gives a mesh whose settings were never understood the
// strict mode: somebody may have asked for it in the MeshConfig that cannot be
// read. Doors call it before they hand a snapshot out.
func (s *Snapshot) Tidy() {
	slices.SortFunc(s.ServiceCIDRs, func(a, b netip.Prefix) int { return a.Compare(b) })
	s.ServiceCIDRs = slices.Compact(s.ServiceCIDRs)
	slices.SortStableFunc(s.Problems, func(a, b Problem) int {
		if a.File == "" && b.File == "" {
			return cmp.Or(strings.Compare(a.Ref.String(), b.Ref.String()), strings.Compare(a.Field, b.Field))
		}
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line)
	})
	slices.SortStableFunc(s.BrokenPolicies, func(a, b BrokenPolicy) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	if s.Mesh == nil && slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Ref.Kind == "MeshConfig" }) {
		s.Mesh = &v1alpha1.MeshConfig{Spec: v1alpha1.MeshConfigSpec{MTLS: v1alpha1.MTLSStrict}}
	}
}

// Key names a namespaced object.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Ref names any object.
type Ref struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"` // empty: cluster-scoped
	Name      string `json:"name"`
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Problem is one document or field that is not as it must be.
type Problem struct {
	File  string `json:"file,omitempty"` // files door only
	Line  int    `json:"line,omitempty"` // of the document or, where known, the field; 0: unknown
	Ref   Ref    `json:"object"`
	Field string `json:"field,omitempty"` // JSON path, such as spec.ports[0].port
	Err   string `json:"error"`           // what is wrong
	Fix   string `json:"fix,omitempty"`   // what to do about it
	// Generation of the object that has the problem, if it is of our kinds: the
	// API server's, or the files door's, which is a checksum of the document.
	Generation int64 `json:"generation,omitempty"`
}

func (p Problem) String() string {
	s := p.Ref.String()
	if p.File != "" {
		s = fmt.Sprintf("%s:%d: %s", p.File, p.Line, s)
	}
	if p.Field != "" {
		s += ": " + p.Field
	}
	s += ": " + p.Err
	if p.Fix != "" {
		s += " (" + p.Fix + ")"
	}
	return s
}

// BrokenPolicy is an AccessPolicy that cannot be understood. Whatever it may
// select is denied (docs/policy.md): Selector nil means its whole namespace.
type BrokenPolicy struct {
	Ref      Ref
	Selector map[string]string
	Err      string
}

// Condition is one line of an object's status, as in metav1.Condition.
type Condition struct {
	Type, Status, Reason, Message string
	ObservedGeneration            int64
}

// TokenInfo is whom a token proves.
type TokenInfo struct {
	Namespace      string
	ServiceAccount string
	PodName        string
	PodUID         string // "" if the token is not bound to a pod
	Expiry         time.Time
}

// Namespace is a Kubernetes namespace.
type Namespace struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
}

// Node is a machine that runs pods.
type Node struct {
	Name      string
	Labels    map[string]string
	Zone      string // topology.kubernetes.io/zone
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
}

// Pod is one running instance.
type Pod struct {
	Namespace, Name, UID string
	Labels               map[string]string
	Annotations          map[string]string
	Node                 string
	ServiceAccount       string
	IPs                  []netip.Addr
	HostNetwork          bool
	Created              time.Time // zero: not said
	Phase                string    // Pending, Running, Succeeded, Failed, Unknown
	Ready                bool
	Terminating          bool // deletionTimestamp is set
	Meshed               bool // carries our sidecar (annotation heddle.dev/status)
	// SkipInbound are the ports that the redirect leaves alone on the way in:
	// nobody speaks mTLS there. As the injector put them into the status, which
	// knows of MeshConfig and namespace too; where it did not (a pod made by
	// hand), as the pod's annotation says.
	SkipInbound []redirect.PortRange
	Owner       Ref // controller, zero if none
	Ports       []ContainerPort
	Probes      []Probe // of its own containers, not of our sidecar
}

// ContainerPort is one declared port of a pod.
type ContainerPort struct {
	Name     string
	Port     uint16
	Protocol string // TCP, UDP, SCTP
}

// Probe is one HTTP or TCP probe that the node sends to a pod.
type Probe struct {
	Port uint16
	Path string // empty: a bare TCP connect
}

// Service is a Kubernetes Service.
type Service struct {
	Namespace, Name        string
	Created                time.Time // zero: not said
	Labels                 map[string]string
	Annotations            map[string]string
	Type                   string // ClusterIP, NodePort, LoadBalancer, ExternalName
	Headless               bool   // clusterIP: None
	ClusterIPs             []netip.Addr
	ExternalIPs            []netip.Addr
	LoadBalancerIPs        []netip.Addr // with ipMode VIP or none
	ExternalName           string
	Selector               map[string]string
	Ports                  []ServicePort
	InternalLocal          bool // internalTrafficPolicy: Local
	ExternalLocal          bool // externalTrafficPolicy: Local
	TrafficDistribution    string
	ClientIPAffinity       time.Duration // 0: none
	PublishNotReady        bool
	HealthCheckNodePort    uint16
	LoadBalancerRanges     []netip.Prefix
	NoLoadBalancerNodePort bool
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name        string
	Port        uint16
	Protocol    string
	AppProtocol string
	NodePort    uint16
}

// EndpointSlice is a part of a Service's endpoints, of one address family.
type EndpointSlice struct {
	Namespace, Name string
	Service         string // label kubernetes.io/service-name; "" belongs to none
	Headless        bool   // label service.kubernetes.io/headless
	IPv6            bool
	Ports           []SlicePort
	Endpoints       []SliceEndpoint
}

// SlicePort is a port that all endpoints of a slice serve.
type SlicePort struct {
	Name        string
	Port        uint16 // 0: skipped
	Protocol    string
	AppProtocol string
}

// SliceEndpoint is one endpoint; nil conditions are already resolved (KEP-1672).
type SliceEndpoint struct {
	Address                     netip.Addr
	Ready, Serving, Terminating bool
	Node, Zone                  string
	HintZones, HintNodes        []string
	Target                      Ref // the pod, zero if none
	Hostname                    string
}

// ServiceAccount is an identity of workloads.
type ServiceAccount struct {
	Namespace, Name, UID string
}

// Route is one route of the Gateway API (gateway.networking.k8s.io), as it
// was written: what it means is not for a source.
type Route struct {
	Ref        Ref
	Generation int64
	Created    time.Time // zero: not said
	Spec       []byte    // JSON, keys sorted
}
