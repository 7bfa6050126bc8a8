package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/injector/patch"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

var mesh = patch.Config{
	ControlPlane: "cp:15010", TrustDomain: "cluster.local", TrustBundle: "-----BEGIN CERTIFICATE-----\naGVkZGxl\n-----END CERTIFICATE-----\n",
	SidecarImage: "i", SidecarCommand: "/heddle-sidecar", Version: "v1",
}

func world() *source.Snapshot {
	return &source.Snapshot{
		Namespaces: map[string]*source.Namespace{
			"shop":  {Name: "shop", Labels: map[string]string{v1alpha1.InjectKey: "enabled"}},
			"plain": {Name: "plain"},
		},
		Nodes:        map[string]*source.Node{"n": {PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Mesh:         &v1alpha1.MeshConfig{Spec: v1alpha1.MeshConfigSpec{TrustDomain: "example.org", ExcludedPorts: []uint16{22}}},
	}
}

func handler() *Handler {
	w := world()
	return New(Config{Snapshot: func() *source.Snapshot { return w }, Mesh: func() (patch.Config, bool) { return mesh, true }})
}

func body(namespace, pod string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"version":"v1","kind":"Pod"},"operation":"CREATE","namespace":%q,"object":%s}}`, namespace, pod)
}

func post(h http.Handler, b string) *httptest.ResponseRecorder { return postTo(h, "/inject", b) }

func postTo(h http.Handler, path, b string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(b))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func answer(t *testing.T, w *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	t.Helper()
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); w.Code != http.StatusOK || err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if review.Response == nil || review.Response.UID != "u-1" || review.APIVersion != "admission.k8s.io/v1" || review.Kind != "AdmissionReview" {
		t.Fatalf("not an answer to the question: %s", w.Body)
	}
	return review.Response
}

func TestReviews(t *testing.T) {
	const spec = `"spec":{"containers":[{"name":"app"}]}`
	cases := []struct {
		name, body         string
		allowed, patched   bool
		audit, says, warns string
	}{
		{"injected", body("shop", `{"metadata":{"generateName":"web-"},`+spec+`}`), true, true, "injected", "", ""},
		{"injected, with a doubt", body("shop", `{"metadata":{"name":"w","annotations":{"heddle.dev/skip-outbound-cidrs":"10.96.0.0/12"}},`+spec+`}`), true, true, "injected", "", "covers addresses of the cluster"},
		{"not asked for", body("plain", `{"metadata":{"name":"w"},`+spec+`}`), true, false, "skipped: not_enabled", "", ""},
		{"asked for by the pod", body("plain", `{"metadata":{"name":"w","labels":{"heddle.dev/inject":"enabled"}},`+spec+`}`), true, true, "injected", "", ""},
		{"host network", body("shop", `{"metadata":{"name":"w"},"spec":{"hostNetwork":true}}`), true, false, "refused: host_network", "", "not in the mesh: Pod shop/w: spec.hostNetwork"},
		{"case counts", body("shop", `{"metadata":{"name":"w"},"spec":{"hostnetwork":true}}`), true, true, "injected", "", ""},
		{"bad value", body("shop", `{"metadata":{"name":"w","annotations":{"heddle.dev/log-level":"loud"}},`+spec+`}`), true, false, "refused: bad_value", "", `"loud" is not a choice`},
		{"sidecar's user", body("shop", `{"metadata":{"name":"w"},"spec":{"containers":[{"name":"app","securityContext":{"runAsUser":16000}}]}}`), false, false, "denied: sidecar_uid", "run as user 16000", ""},
		{"not a pod", strings.Replace(body("shop", `{}`), `"kind":"Pod"`, `"kind":"Service"`, 1), true, false, "skipped: not_a_new_pod", "", ""},
		{"not new", strings.Replace(body("shop", `{}`), "CREATE", "UPDATE", 1), true, false, "skipped: not_a_new_pod", "", ""},
		{"no spec", body("shop", `{"metadata":{}}`), false, false, "error: bad_pod", "no metadata or no spec", ""},
		{"not as a pod must be", body("shop", `{"metadata":{},"spec":{"containers":1}}`), false, false, "error: bad_pod", "read pod", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := answer(t, post(handler(), c.body))
			if got.Allowed != c.allowed || (len(got.Patch) > 0) != c.patched || (got.PatchType != nil) != c.patched {
				t.Errorf("allowed %v, patch %q", got.Allowed, got.Patch)
			}
			if got.AuditAnnotations["injection"] != c.audit {
				t.Errorf("audit %q", got.AuditAnnotations)
			}
			if warns := strings.Join(got.Warnings, "\n"); (warns == "") != (c.warns == "") || !strings.Contains(warns, c.warns) {
				t.Errorf("warnings %q", warns)
			}
			if c.says != "" && !strings.Contains(got.Result.Message, c.says) {
				t.Errorf("message %q", got.Result.Message)
			}
		})
	}
}

// The API server has seen a namespace's label before the news of it reached
// us: its selector's word counts, and a pod's own still goes before it.
func TestSelectedBeforeWeKnow(t *testing.T) {
	const spec = `"spec":{"containers":[{"name":"app"}]}`
	for _, c := range []struct {
		name, path, namespace, pod string
		patched                    bool
		audit                      string
	}{
		{"selected", SelectedPath, "plain", `{"metadata":{"name":"w"},` + spec + `}`, true, "injected"},
		{"known as well", SelectedPath, "shop", `{"metadata":{"name":"w"},` + spec + `}`, true, "injected"},
		{"nobody says so", "/inject", "plain", `{"metadata":{"name":"w"},` + spec + `}`, false, "skipped: not_enabled"},
		{"the pod does not want to", SelectedPath, "plain", `{"metadata":{"name":"w","annotations":{"heddle.dev/inject":"disabled"}},` + spec + `}`, false, "skipped: disabled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := answer(t, postTo(handler(), c.path, body(c.namespace, c.pod)))
			if !got.Allowed || (len(got.Patch) > 0) != c.patched || got.AuditAnnotations["injection"] != c.audit {
				t.Errorf("allowed %v, patch %q, audit %q", got.Allowed, got.Patch, got.AuditAnnotations)
			}
		})
	}
}

func TestMeshConfigGoesBeforeFlags(t *testing.T) {
	got := string(answer(t, post(handler(), body("shop", `{"metadata":{"name":"w"},"spec":{"containers":[{"name":"app"}]}}`))).Patch)
	for _, want := range []string{"--trust-domain=example.org", "--skip-outbound-ports=22", "--skip-inbound-ports=22"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

func TestNotReviews(t *testing.T) {
	big := body("shop", `{"metadata":{"name":"`+strings.Repeat("x", maxBody)+`"}}`)
	for name, c := range map[string]struct {
		method, contentType, body string
		want                      int
	}{
		"method":       {"GET", "application/json", "", http.StatusMethodNotAllowed},
		"content type": {"POST", "text/plain", body("shop", "{}"), http.StatusUnsupportedMediaType},
		"no type":      {"POST", "", body("shop", "{}"), http.StatusUnsupportedMediaType},
		"too large":    {"POST", "application/json", big, http.StatusRequestEntityTooLarge},
		"not JSON":     {"POST", "application/json", "apiVersion: v1", http.StatusBadRequest},
		"no request":   {"POST", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest},
		"v1beta1":      {"POST", "application/json", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}`, http.StatusBadRequest},
		"empty":        {"POST", "application/json", ``, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, "/inject", strings.NewReader(c.body))
			r.Header.Set("Content-Type", c.contentType)
			w := httptest.NewRecorder()
			handler().ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

// The namespace and its first pod come in one breath.
func TestNamespaceComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Pointer[source.Snapshot]
		h := New(Config{Snapshot: now.Load, Mesh: func() (patch.Config, bool) { return mesh, true }})
		time.AfterFunc(time.Second, func() { now.Store(&source.Snapshot{}) })
		time.AfterFunc(2*time.Second, func() { now.Store(world()) })
		pod := `{"metadata":{"name":"w"},"spec":{"containers":[{"name":"app"}]}}`
		if got := answer(t, post(h, body("shop", pod))); !got.Allowed || len(got.Patch) == 0 {
			t.Errorf("%+v", got)
		}
		start := time.Now()
		got := answer(t, post(h, body("nowhere", pod)))
		if got.Allowed || got.Result.Code != http.StatusServiceUnavailable || !strings.Contains(got.Result.Message, "namespace nowhere") {
			t.Errorf("%+v", got)
		}
		if waited := time.Since(start); waited != namespaceWait {
			t.Errorf("waited %s", waited)
		}
	})
}

// Whatever fails inside, the API server gets a review that says no: the
// namespace asked for the mesh.
func TestFailures(t *testing.T) {
	pod := `{"metadata":{"name":"w"},"spec":{"containers":[{"name":"app"}]}}`
	notReady := New(Config{Snapshot: world, Mesh: func() (patch.Config, bool) { return patch.Config{}, false }})
	if got := answer(t, post(notReady, body("shop", pod))); got.Allowed || got.Result.Code != http.StatusServiceUnavailable {
		t.Errorf("%+v", got)
	}
	registry := telemetry.NewRegistry("v1")
	panics := New(Config{Snapshot: func() *source.Snapshot { panic("broken") }, Mesh: func() (patch.Config, bool) { return mesh, true }})
	registry.Register(panics.Collectors()...)
	got := answer(t, post(panics, body("shop", pod)))
	if got.Allowed || got.Result.Code != http.StatusInternalServerError {
		t.Errorf("%+v", got)
	}
	metrics, err := registry.Gather()
	if err != nil || metrics["heddle_injector_reviews_total,reason=panic,result=error"] != 1 {
		t.Error(metrics, err)
	}
}

func FuzzServeHTTP(f *testing.F) {
	f.Add([]byte(body("shop", `{"metadata":{"name":"w"},"spec":{"containers":[{"name":"app"}]}}`)))
	f.Add([]byte(body("shop", `{"metadata":null,"spec":{}}`)))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"kind":{"kind":"Pod"},"operation":"CREATE","namespace":"shop"}}`))
	known := world()
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.Contains(b, []byte("namespace")) && !bytes.Contains(b, []byte(`"shop"`)) {
			return // would wait for the namespace
		}
		known.Namespaces[""] = known.Namespaces["plain"]
		h := New(Config{Snapshot: func() *source.Snapshot { return known }, Mesh: func() (patch.Config, bool) { return mesh, true }})
		w := post(h, string(b))
		if w.Code != http.StatusOK {
			return
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || review.Response == nil {
			t.Fatal(err)
		}
		if strings.Contains(w.Body.String(), "stumbled") {
			t.Fatal("panic inside")
		}
		if len(review.Response.Patch) == 0 {
			return
		}
		var ops []patch.Operation
		var question struct{ Request struct{ Object any } }
		if json.Unmarshal(review.Response.Patch, &ops) != nil || json.Unmarshal(b, &question) != nil {
			t.Fatal("unreadable patch")
		}
		out, err := patch.Apply(question.Request.Object, ops)
		if err != nil {
			t.Fatalf("patch does not apply: %v", err)
		}
		text, _ := json.Marshal(out)
		var pod corev1.Pod
		if err := json.Unmarshal(text, &pod); err != nil {
			t.Fatal(err)
		}
	})
}
