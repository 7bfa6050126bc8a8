// Package webhook answers the API server's admission reviews of new pods with
// the patch that puts a sidecar in, over HTTPS, and keeps the certificate for
// it. Whether and how a pod is changed is decided by injector/patch; what is
// known of namespaces comes from memory, never from a call while the API server
// waits. Package injector calls it.
package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/injector/patch"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// maxBody of a review. A pod may have 1.5 MiB in etcd; a review holds the
	// object and what surrounds it.
	maxBody = 3 << 20
	// namespaceWait is how long a review waits for a namespace that is not
	// known yet: people make a namespace and its first pod in one breath, and
	// the news of the first may come a moment after the second.
	namespaceWait = 3 * time.Second
	// namespacePoll is how often it looks: far below what a pod takes to start.
	namespacePoll = 20 * time.Millisecond
)

// SelectedPath is where the API server sends pods of namespaces that asked for
// the mesh: its namespaceSelector has seen the label, whether the news of it
// has reached us or not. On any other path our own picture decides.
const SelectedPath = "/inject/namespace"

// Config of the handler.
type Config struct {
	// Snapshot gives the newest world; nil while there is none.
	Snapshot func() *source.Snapshot
	// Mesh gives what is the same for all pods; false while the trust bundle
	// has not been read.
	Mesh func() (patch.Config, bool)
	Log  *slog.Logger // nil: discard
}

// Handler answers admission reviews.
type Handler struct {
	cfg     Config
	budget  budget
	reviews *prometheus.CounterVec
	seconds prometheus.Histogram
}

// New gives a handler.
func New(cfg Config) *Handler {
	cfg.Log = telemetry.Discard(cfg.Log)
	return &Handler{
		cfg:    cfg,
		budget: newBudget(),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_injector_reviews_total",
			Help: "Admission reviews answered, by result (injected, skipped, refused, denied, error) and reason.",
		}, []string{"result", "reason"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "heddle_injector_review_seconds",
			Help:    "Time from a review's arrival to its answer.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 3, 10},
		}),
	}
}

// Collectors are the handler's metrics.
func (h *Handler) Collectors() []prometheus.Collector {
	return []prometheus.Collector{h.reviews, h.seconds}
}

// ServeHTTP answers one review. What is not a review gets an HTTP error; every
// review gets a review, also if we fail: then the answer is no, because the
// namespace has asked for the mesh and a pod outside it would be open.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	done, err := h.budget.take(r.Context(), r.ContentLength)
	if err != nil {
		h.reviews.WithLabelValues("error", "busy").Inc()
		h.cfg.Log.Warn("review turned away", "remote", r.RemoteAddr, "err", err)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer done()
	// Where deadlines are not to be had (a test's recorder), the server's hold.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	req, code, err := readReview(w, r)
	if err != nil {
		h.reviews.WithLabelValues("error", "bad_request").Inc()
		h.cfg.Log.Warn("not a review", "remote", r.RemoteAddr, "err", err)
		http.Error(w, err.Error(), code)
		return
	}
	v := h.decide(r.Context(), req, r.URL.Path == SelectedPath)
	h.reviews.WithLabelValues(v.result, v.reason).Inc()
	h.seconds.Observe(time.Since(start).Seconds())
	h.log(req, v)
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: reviewType, Response: v.response(req.UID)})
	if err != nil {
		http.Error(w, "encode the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(body); err != nil {
		h.cfg.Log.Warn("answer not taken", "remote", r.RemoteAddr, "err", err)
	}
}

// readReview gives the request of a review, or what to answer instead.
func readReview(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, int, error) {
	if r.Method != http.MethodPost {
		return nil, http.StatusMethodNotAllowed, fmt.Errorf("method %s: want POST", r.Method)
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("content type %.60q: want application/json", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("body has more than %d bytes", maxBody)
	}
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("read body: %w", err)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("read review: %w", err)
	}
	switch {
	case review.APIVersion != reviewType.APIVersion || review.Kind != reviewType.Kind:
		return nil, http.StatusBadRequest, fmt.Errorf("%.60q %.60q: want %s %s", review.APIVersion, review.Kind, reviewType.APIVersion, reviewType.Kind)
	case review.Request == nil:
		return nil, http.StatusBadRequest, fmt.Errorf("review without a request")
	}
	return review.Request, http.StatusOK, nil
}

// decide never panics: a pod that we stumble over is denied, and the log says
// where.
// selected: the namespace asks for the mesh.
func (h *Handler) decide(ctx context.Context, req *admissionv1.AdmissionRequest, selected bool) (v verdict) {
	defer func() {
		if p := recover(); p != nil {
			h.cfg.Log.Error("panic over a review", "pod", req.Namespace+"/"+req.Name, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			v = failed("panic", http.StatusInternalServerError, "the injector stumbled over this pod; its log says where")
		}
	}()
	if req.Kind.Kind != "Pod" || req.Kind.Group != "" || req.Operation != admissionv1.Create || req.SubResource != "" {
		return verdict{result: "skipped", reason: "not_a_new_pod", allowed: true}
	}
	pod, err := readPod(req.Object.Raw)
	if err != nil {
		return failed("bad_pod", http.StatusBadRequest, "read pod: "+err.Error())
	}
	mesh, ok := h.cfg.Mesh()
	if !ok {
		return failed("not_ready", http.StatusServiceUnavailable, "the injector has not read the trust bundle yet; try again")
	}
	snap, ns := h.namespace(ctx, req.Namespace)
	if ns == nil {
		return failed("unknown_namespace", http.StatusServiceUnavailable, fmt.Sprintf("the injector does not know namespace %s yet; try again", req.Namespace))
	}
	labels := ns.Labels
	if selected {
		labels = map[string]string{v1alpha1.InjectKey: "enabled"}
	}
	v = judge(patch.Patch(pod, patch.Namespace{Name: ns.Name, Labels: labels, Annotations: ns.Annotations}, withSnapshot(mesh, snap)))
	v.pod = cmp.Or(pod.Name, pod.GenerateName+"*")
	return v
}

// namespace waits until the namespace is known, for namespaceWait at most.
func (h *Handler) namespace(ctx context.Context, name string) (*source.Snapshot, *source.Namespace) {
	ctx, cancel := context.WithTimeout(ctx, namespaceWait)
	defer cancel()
	tick := time.NewTicker(namespacePoll)
	defer tick.Stop()
	for {
		if snap := h.cfg.Snapshot(); snap != nil {
			if ns := snap.Namespaces[name]; ns != nil {
				return snap, ns
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-tick.C:
		}
	}
}

// withSnapshot fills in what the cluster says: MeshConfig goes before flags. A
// trust domain that is none stays out; the source reports it as a problem.
func withSnapshot(mesh patch.Config, snap *source.Snapshot) patch.Config {
	if snap.Mesh != nil {
		mesh.ExcludedPorts = snap.Mesh.Spec.ExcludedPorts
		if td, err := spiffeid.TrustDomainFromString(snap.Mesh.Spec.TrustDomain); err == nil {
			mesh.TrustDomain = td.Name()
		}
	}
	mesh.ClusterPrefixes = append([]netip.Prefix(nil), snap.ServiceCIDRs...)
	for _, n := range snap.Nodes {
		mesh.ClusterPrefixes = append(mesh.ClusterPrefixes, n.PodCIDRs...)
	}
	return mesh
}

func (h *Handler) log(req *admissionv1.AdmissionRequest, v verdict) {
	level := slog.LevelInfo
	switch v.result {
	case "skipped":
		level = slog.LevelDebug
	case "refused", "denied", "error":
		level = slog.LevelWarn
	}
	h.cfg.Log.Log(context.Background(), level, "review", "pod", req.Namespace+"/"+cmp.Or(req.Name, v.pod), "result", v.result, "reason", v.reason, "message", v.message)
}
