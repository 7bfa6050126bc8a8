// Package kube is the door to a Kubernetes API server: it lists and watches
// the kinds we use, keeps the newest snapshot, reviews tokens, writes status,
// events, secrets and config maps, and holds leases. Objects are trimmed as
// they come in; what they say is read by internal/source/manifest, as for a
// folder. It decides nothing about what the objects mean. The control plane
// and the injector call it.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/kube/apiserver"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Config of the door.
type Config struct {
	// Kubeconfig is a file, or several as $KUBECONFIG lists them; empty: the
	// pod's own service account.
	Kubeconfig string
	// Context of the kubeconfig; empty: its current one.
	Context string
	// Only these kinds are watched (Namespace, Pod, MeshConfig, ...); nil: all.
	Only []string
	// Namespace of leases; empty: that of POD_NAMESPACE, or heddle-system.
	Namespace string
	Log       *slog.Logger // nil: discard
}

// Source is a source.Source over an API server.
type Source struct {
	*apiserver.Client
	log      *slog.Logger
	kinds    []apiserver.Kind // that Config.Only leaves
	changed  chan struct{}
	snapshot atomic.Pointer[source.Snapshot]
	dirty    chan struct{} // one signal: shelves changed

	mu      sync.Mutex
	shelves map[string]*shelf // by kind
	asked   bool              // which optional kinds there are is known
	lacking []apiserver.Kind  // of our own those that are not served
	seen    uint64            // newest resourceVersion of all
	heard   bool              // a bookmark raised seen since the last snapshot
}

var _ source.Source = (*Source)(nil)

// New reads the kubeconfig, or the pod's service account, and talks to nobody
// before Run.
func New(cfg Config) (*Source, error) {
	at, err := locate(cfg)
	if err != nil {
		return nil, err
	}
	return newSource(cfg, at)
}

func locate(cfg Config) (*rest.Config, error) {
	if cfg.Kubeconfig == "" {
		at, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the API server: %w (give --kubeconfig outside a pod)", err)
		}
		return at, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.Kubeconfig}
	if list := filepath.SplitList(cfg.Kubeconfig); len(list) > 1 {
		rules = &clientcmd.ClientConfigLoadingRules{Precedence: list, WarnIfAllMissing: true}
	}
	at, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: cfg.Context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	return at, nil
}

func newSource(cfg Config, at *rest.Config) (*Source, error) {
	at = rest.CopyConfig(at)
	at.UserAgent = "heddle/" + run.Version
	namespace := cfg.Namespace
	if namespace == "" {
		namespace = os.Getenv("POD_NAMESPACE")
	}
	if namespace == "" {
		namespace = "heddle-system"
	}
	s := &Source{log: telemetry.Discard(cfg.Log), changed: make(chan struct{}, 1), dirty: make(chan struct{}, 1),
		shelves: map[string]*shelf{}}
	var err error
	if s.kinds, err = only(cfg.Only); err != nil {
		return nil, err
	}
	s.Client, err = apiserver.New(apiserver.Config{Server: at, Namespace: namespace, Log: s.log})
	return s, err
}

// Snapshot is the newest state, nil before everything was listed once.
func (s *Source) Snapshot() *source.Snapshot { return s.snapshot.Load() }

// Changed signals a new snapshot.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Run watches until ctx ends. What the API server refuses or cannot do is
// logged, tried again and, for longer than awayAfter, a Problem of the
// snapshot; it never ends Run.
func (s *Source) Run(ctx context.Context) error {
	defer s.Close()
	w := watches{cancels: map[string]func(){}}
	for _, k := range s.kinds {
		if !k.Optional {
			w.start(ctx, s, k)
		}
	}
	w.all.Go(func() { s.publishing(ctx) })
	w.all.Go(func() { s.WriteEvents(ctx) })
	s.discovering(ctx, &w) // until ctx ends
	w.all.Wait()
	return nil
}

// WriteStatus replaces the conditions of an object's status, in the version
// of its kind that the API server serves, if they differ.
func (s *Source) WriteStatus(ctx context.Context, ref source.Ref, conditions []source.Condition) error {
	k, ok := apiserver.Find(ref.Kind)
	if !ok {
		return fmt.Errorf("write status of %s: it is no kind that we know", ref)
	}
	s.mu.Lock()
	if sh := s.shelves[ref.Kind]; sh != nil {
		k = sh.kind
	}
	s.mu.Unlock()
	return s.Client.WriteStatus(ctx, k, ref, conditions)
}

// empty is a snapshot of nothing.
func empty() *source.Snapshot {
	return &source.Snapshot{
		Namespaces: map[string]*source.Namespace{}, Nodes: map[string]*source.Node{},
		Pods: map[source.Key]*source.Pod{}, Services: map[source.Key]*source.Service{},
		EndpointSlices: map[source.Key]*source.EndpointSlice{}, ServiceAccounts: map[source.Key]*source.ServiceAccount{},
		AccessPolicies: map[source.Key]*v1alpha1.AccessPolicy{}, TrafficPolicies: map[source.Key]*v1alpha1.TrafficPolicy{},
		Routes: map[source.Ref]*source.Route{},
	}
}

// pause waits, or until ctx ends; false: it ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
