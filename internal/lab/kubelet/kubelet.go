// Package kubelet runs pods of one lab node as processes of this machine, as a
// kubelet would run them, but without images: a container's command is a
// program of the machine and its root file system is the machine's. It keeps
// the order of init containers and native sidecars, probes, restarts,
// termination, users, capabilities, volumes and status. It does not schedule,
// admit, assign addresses or talk to an API server: internal/lab does.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet/container"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet/life"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Config is one node's kubelet.
type Config struct {
	Fabric *fabric.Fabric
	Node   string // name of a node of Fabric
	// StateDir holds pods' volumes, logs and process records. The kubelets of
	// one lab may share it.
	StateDir      string
	Nameservers   []netip.Addr // for resolv.conf
	ClusterDomain string       // such as cluster.local
	// Token makes a service account token; nil: pods that want one wait.
	Token func(ctx context.Context, r TokenRequest) (token string, expiry time.Time, err error)
	// Data gives the content of a "ConfigMap" or "Secret"; nil: there are none.
	Data func(kind, namespace, name string) (map[string][]byte, error)
	// OnStatus gets each new status of a pod: a copy of the pod as applied,
	// with Status filled. Calls for one pod come one after the other, and
	// must not call back into the Kubelet.
	OnStatus func(*corev1.Pod)
	// OnDeleted is called once after Delete, when nothing of the pod is left;
	// no OnStatus for the pod follows.
	OnDeleted func(*corev1.Pod)
	// BackOff is the first wait before a crashed container is started again;
	// it doubles up to five minutes. 0: 1 s (a real kubelet: 10 s).
	BackOff time.Duration
	Log     *slog.Logger
}

// TokenRequest asks for a token bound to a pod.
type TokenRequest struct {
	Namespace, ServiceAccount string
	PodName                   string
	PodUID                    types.UID
	Node                      string
	Audience                  string // empty: the cluster's own default
	Expiry                    time.Duration
}

// Kubelet runs the pods of one node.
type Kubelet struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	workers map[types.UID]*life.Worker
	running bool
	start   func(types.UID, *life.Worker) // set while running
}

// defaultBackOff is a tenth of a real kubelet's: a lab is watched by someone
// who waits.
const defaultBackOff = time.Second

// MaybeShim must be called first thing in main, and in TestMain of tests that
// run pods: where this process was started to become a container it does that
// and never returns.
func MaybeShim() { container.MaybeShim() }

// New prepares a kubelet; it does nothing yet.
func New(cfg Config) *Kubelet {
	if cfg.BackOff <= 0 {
		cfg.BackOff = defaultBackOff
	}
	return &Kubelet{cfg: cfg, log: telemetry.Discard(cfg.Log).With("node", cfg.Node), workers: map[types.UID]*life.Worker{}}
}

// Run runs what Apply asks for until ctx ends; then it kills what still runs
// and returns when all is gone. Delete pods first where they shall end
// gracefully.
func (k *Kubelet) Run(ctx context.Context) error {
	if err := os.MkdirAll(podsDir(k.cfg.StateDir), 0o755); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	var wg sync.WaitGroup
	k.mu.Lock()
	if k.running {
		k.mu.Unlock()
		return errors.New("this kubelet runs already")
	}
	k.running = true
	k.start = func(uid types.UID, w *life.Worker) {
		wg.Go(func() {
			w.Run(ctx)
			k.forget(uid)
		})
	}
	for uid, w := range k.workers { // applied before
		k.start(uid, w)
	}
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	k.start = nil // nothing is started from here on
	k.mu.Unlock()
	wg.Wait()
	return nil
}

func (k *Kubelet) forget(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.workers, uid)
}

// Apply says that a pod, admitted and scheduled to this node, shall run.
// status.podIPs (or podIP) must be set, unless the pod uses the node's network
// (then the kubelet reports the node's). Applying it again with other metadata
// updates that; the spec of a running pod does not change. A deletionTimestamp
// deletes it. May be called before Run and from any goroutine; never blocks.
func (k *Kubelet) Apply(pod *corev1.Pod) {
	pod = pod.DeepCopy()
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.workers[pod.UID]
	if w == nil {
		if pod.DeletionTimestamp != nil {
			// It never ran here, or is gone: say so, where nobody waits for our lock.
			if k.cfg.OnDeleted != nil {
				go k.cfg.OnDeleted(pod)
			}
			return
		}
		w = life.New(life.Config{
			Pod: pod, BackOff: k.cfg.BackOff, OnStatus: k.cfg.OnStatus, OnDeleted: k.cfg.OnDeleted, Log: k.log,
			Driver: newHost(k.cfg, k.log.With("pod", pod.Namespace+"/"+pod.Name)),
		})
		k.workers[pod.UID] = w
		if k.start != nil {
			k.start(pod.UID, w)
		}
		return
	}
	w.Update(pod)
	if pod.DeletionTimestamp == nil {
		return
	}
	grace := time.Duration(-1)
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	w.Remove(grace)
}

// Delete ends a pod: preStop, SIGTERM, and after the grace SIGKILL; sidecars
// after the others. As with a real kubelet its Ready condition stays what its
// probes say while it ends (an EndpointSlice's "serving"); whoever watches
// takes the deletionTimestamp for not ready. A negative grace takes the pod's
// own terminationGracePeriodSeconds. Unknown pods are ignored. Never blocks.
func (k *Kubelet) Delete(uid types.UID, grace time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[uid]; w != nil {
		w.Remove(grace)
	}
}
