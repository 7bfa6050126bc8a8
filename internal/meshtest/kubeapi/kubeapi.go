// Package kubeapi is a small Kubernetes API server for tests: objects with
// resourceVersions in memory, lists by pages or as a stream, watches with
// bookmarks, 410 Gone, conflicts, the patches that Heddle sends, status
// subresources, discovery and token reviews. It validates nothing and
// authorises nobody. It works inside a testing/synctest bubble. Only tests
// call it.
package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/internal/meshtest/pipes"
)

// Resource is a kind that the server knows.
type Resource struct {
	Group, Version, Plural, Kind string
	Cluster                      bool // cluster-scoped
}

func (r Resource) prefix() string {
	if r.Group == "" {
		return "/api/" + r.Version
	}
	return "/apis/" + r.Group + "/" + r.Version
}

func (r Resource) apiVersion() string {
	return strings.TrimPrefix(strings.TrimPrefix(r.prefix(), "/apis/"), "/api/")
}

// object is one as JSON gives it.
type object = map[string]any

// table is what is kept of one resource.
type table struct {
	Resource
	objects map[string]object // by namespace/name; never changed in place
	events  []event           // since floor
	floor   int64             // watches from before it are Gone
}

type event struct {
	kind    string // ADDED, MODIFIED, DELETED
	version int64
	object  object
}

// Server is one API server. Its settings may change while it serves.
type Server struct {
	// Review answers token reviews: the status of the TokenReview.
	Review func(token string, audiences []string) map[string]any

	listener *pipes.Listener
	mu       sync.Mutex
	wake     chan struct{} // closed at the next change
	version  int64
	tables   map[string]*table // by prefix/plural
	hidden   map[string]bool   // plurals that are not served
	refuse   map[string]int    // plural: HTTP status
	noStream bool
	down     bool
	delay    func(*http.Request)
	garbage  map[string]string
	counts   map[string]int // "list pods", "watch pods"
}

// New starts a server with Kubernetes' own kinds that Heddle reads; it ends
// with the test.
func New(t testing.TB, more ...Resource) *Server {
	s := &Server{listener: pipes.Listen(), wake: make(chan struct{}), version: 100, tables: map[string]*table{},
		hidden: map[string]bool{}, refuse: map[string]int{}, counts: map[string]int{}, garbage: map[string]string{}}
	for _, r := range append(builtIn(), more...) {
		s.tables[r.prefix()+"/"+r.Plural] = &table{Resource: r, objects: map[string]object{}, floor: s.version}
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	h := &http.Server{Handler: http.HandlerFunc(s.serve), BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		defer close(done)
		_ = h.Serve(s.listener)
	}()
	t.Cleanup(func() {
		cancel()
		s.listener.Close()
		s.listener.Cut()
		h.Close()
		<-done
	})
	return s
}

func builtIn() []Resource {
	return []Resource{
		{"", "v1", "namespaces", "Namespace", true}, {"", "v1", "nodes", "Node", true},
		{"", "v1", "pods", "Pod", false}, {"", "v1", "services", "Service", false},
		{"", "v1", "serviceaccounts", "ServiceAccount", false}, {"", "v1", "secrets", "Secret", false},
		{"", "v1", "configmaps", "ConfigMap", false}, {"", "v1", "events", "Event", false},
		{"discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", false},
		{"networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", true},
		{"coordination.k8s.io", "v1", "leases", "Lease", false},
		{"admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", true},
	}
}

// Heddle are our own kinds, as after their CRDs were installed.
func Heddle() []Resource {
	return []Resource{
		{"heddle.dev", "v1alpha1", "meshconfigs", "MeshConfig", true},
		{"heddle.dev", "v1alpha1", "accesspolicies", "AccessPolicy", false},
		{"heddle.dev", "v1alpha1", "trafficpolicies", "TrafficPolicy", false},
	}
}

// Dial connects to the server, whatever the address; refused while it is down.
func (s *Server) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return s.listener.Dial(ctx, address)
}

// Kubeconfig makes the server reachable on loopback and gives a kubeconfig
// that says where.
func (s *Server) Kubeconfig(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Serve(l) }()
	t.Cleanup(func() { h.Close(); <-done })
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://%s'}}]\nusers: [{name: u}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n", l.Addr())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Cut breaks all connections that Dial made.
func (s *Server) Cut() { s.listener.Cut() }

// Down refuses connections and breaks those that are; Up ends that.
func (s *Server) Down() { s.set(func() { s.down = true }); s.listener.Cut() }

// Up serves again.
func (s *Server) Up() { s.set(func() { s.down = false }) }

func (s *Server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.wake)
	s.wake = make(chan struct{})
}

// Delay is called with each request before it is answered; nil: nothing is.
func (s *Server) Delay(f func(*http.Request)) { s.set(func() { s.delay = f }) }

// Serve says whether a resource is there, as if its CRD came or went.
func (s *Server) Serve(plural string, is bool) { s.set(func() { s.hidden[plural] = !is }) }

// Refuse answers requests for a resource with an HTTP status; 0: no more.
func (s *Server) Refuse(plural string, status int) { s.set(func() { s.refuse[plural] = status }) }

// Garble sends a text in place of events to the next watch of a resource that
// goes on from where it was.
func (s *Server) Garble(plural, text string) { s.set(func() { s.garbage[plural] = text }) }

// NoStream makes lists as streams unknown, as older servers do.
func (s *Server) NoStream() { s.set(func() { s.noStream = true }) }

// Forget compacts: watches that begin before now are told 410 Gone.
func (s *Server) Forget() {
	s.set(func() {
		s.version++
		for _, t := range s.tables {
			t.floor, t.events = s.version, nil
		}
	})
}

// Tick moves the resourceVersion on, as other people's objects do.
func (s *Server) Tick() int64 {
	var at int64
	s.set(func() { s.version++; at = s.version })
	return at
}

// Count is how often something was asked: "list pods", "watch pods", and
// "stream pods" for a watch that begins with all there is.
func (s *Server) Count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[what]
}

// Apply makes or replaces the objects of manifests, status and all; documents
// of kinds that the server does not know are an error.
func (s *Server) Apply(t testing.TB, manifests string) {
	t.Helper()
	for _, doc := range strings.Split("\n"+manifests, "\n---") {
		var o object
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("apply: %v in %s", err, doc)
		}
		if o == nil {
			continue
		}
		if err := s.put(o); err != nil {
			t.Fatalf("apply: %v", err)
		}
	}
}

func (s *Server) put(o object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		if t.apiVersion() == o["apiVersion"] && t.Kind == o["kind"] {
			if _, named := metadata(o)["namespace"]; !named && !t.Cluster {
				metadata(o)["namespace"] = "default"
			}
			s.store(t, o)
			return nil
		}
	}
	return fmt.Errorf("no resource %v %v", o["apiVersion"], o["kind"])
}

// Delete takes an object away, if it is there.
func (s *Server) Delete(plural, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		if t.Plural == plural {
			s.remove(t, namespace+"/"+name)
		}
	}
}

// Get gives an object; nil: it is not there.
func (s *Server) Get(plural, namespace, name string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		if t.Plural == plural {
			return t.objects[namespace+"/"+name]
		}
	}
	return nil
}

// All gives the objects of a resource, sorted by name.
func (s *Server) All(plural string) (out []map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		if t.Plural == plural {
			for _, k := range slices.Sorted(maps.Keys(t.objects)) {
				out = append(out, t.objects[k])
			}
		}
	}
	return out
}

func metadata(o object) object {
	m, _ := o["metadata"].(object)
	if m == nil {
		m = object{}
		o["metadata"] = m
	}
	return m
}

func text(o object, field string) string { v, _ := o[field].(string); return v }

func keyOf(o object) string { return text(metadata(o), "namespace") + "/" + text(metadata(o), "name") }

// store keeps an object under the next version; s.mu is held.
func (s *Server) store(t *table, o object) object {
	s.version++
	o = clone(o)
	o["apiVersion"], o["kind"] = t.apiVersion(), t.Kind
	m, kind := metadata(o), "ADDED"
	m["resourceVersion"] = fmt.Sprint(s.version)
	if old := t.objects[keyOf(o)]; old != nil {
		kind = "MODIFIED"
		for _, k := range []string{"uid", "creationTimestamp"} {
			if metadata(old)[k] != nil {
				m[k] = metadata(old)[k]
			}
		}
		m["generation"] = metadata(old)["generation"]
		if !equal(old["spec"], o["spec"]) {
			n, _ := m["generation"].(float64)
			m["generation"] = n + 1
		}
	} else if m["generation"] = float64(1); m["uid"] == nil {
		m["uid"] = fmt.Sprintf("uid-%d", s.version)
	}
	t.objects[keyOf(o)] = o
	s.happened(t, event{kind, s.version, o})
	return o
}

func (s *Server) remove(t *table, key string) {
	o := t.objects[key]
	if o == nil {
		return
	}
	delete(t.objects, key)
	s.version++
	o = clone(o)
	metadata(o)["resourceVersion"] = fmt.Sprint(s.version)
	s.happened(t, event{"DELETED", s.version, o})
}

func (s *Server) happened(t *table, e event) {
	t.events = append(t.events, e)
	close(s.wake)
	s.wake = make(chan struct{})
}

func clone(o object) object {
	var out object
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(err) // it came from JSON
	}
	return out
}

func equal(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}
