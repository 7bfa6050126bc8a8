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
	"io"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
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
}

var errNotYet = errors.New("not built yet")

// MaybeShim must be called first thing in main, and in TestMain of tests that
// run pods: where this process was started to become a container it does that
// and never returns.
func MaybeShim() {}

// New prepares a kubelet; it does nothing yet.
func New(cfg Config) *Kubelet { return &Kubelet{cfg: cfg} }

// Run runs what Apply asks for until ctx ends; then it kills what still runs
// and returns when all is gone. Delete pods first where they shall end gracefully.
func (k *Kubelet) Run(ctx context.Context) error { return errNotYet }

// Apply says that a pod, admitted and scheduled to this node, shall run.
// status.podIPs (or podIP) must be set, unless the pod uses the node's network
// (then the kubelet reports the node's). Applying it again with other metadata updates that; the spec of a
// running pod does not change. A deletionTimestamp deletes it. May be called before Run and
// from any goroutine; never blocks.
func (k *Kubelet) Apply(pod *corev1.Pod) {}

// Delete ends a pod: not ready at once, then preStop, SIGTERM, and after the
// grace SIGKILL; sidecars after the others. A negative grace takes the pod's
// own terminationGracePeriodSeconds. Unknown pods are ignored. Never blocks.
func (k *Kubelet) Delete(uid types.UID, grace time.Duration) {}

// Clean kills whatever containers a dead process left recorded in stateDir
// and removes their files. Call it only while no Kubelet uses stateDir.
func Clean(stateDir string) error { return errNotYet }

// LogFile is where a container's output stands; the part before the last
// rotation has the suffix ".1".
func LogFile(stateDir string, pod *corev1.Pod, container string) string { return "" }

// ExecConfig names a running container and a program to run in it.
type ExecConfig struct {
	StateDir       string
	Namespace, Pod string
	Container      string // empty: the first that is not an init container
	Command        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Exec runs a program inside all namespaces of a running container, as its
// user, and gives the exit code. It needs only the state dir, so any process of
// this machine's root may call it.
func Exec(ctx context.Context, cfg ExecConfig) (int, error) { return 0, errNotYet }
