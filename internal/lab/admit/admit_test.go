package admit

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var podRule = []admissionregv1.RuleWithOperations{{
	Operations: []admissionregv1.OperationType{admissionregv1.Create},
	Rule:       admissionregv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
}}

func testPod() *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u-1", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Command: []string{"/web"}}}},
	}
}

func TestHooks(t *testing.T) {
	sel := func(k, v string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{k: v}}
	}
	config := func(name string, hooks ...admissionregv1.MutatingWebhook) *admissionregv1.MutatingWebhookConfiguration {
		return &admissionregv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks}
	}
	updates := []admissionregv1.RuleWithOperations{{Operations: []admissionregv1.OperationType{admissionregv1.Update}, Rule: podRule[0].Rule}}
	got, err := Hooks([]*admissionregv1.MutatingWebhookConfiguration{
		config("z", admissionregv1.MutatingWebhook{Name: "last", Rules: podRule}),
		config("a",
			admissionregv1.MutatingWebhook{Name: "both", Rules: podRule, NamespaceSelector: sel("inject", "yes"), ObjectSelector: sel("app", "web")},
			admissionregv1.MutatingWebhook{Name: "other namespace", Rules: podRule, NamespaceSelector: sel("inject", "no")},
			admissionregv1.MutatingWebhook{Name: "other pods", Rules: podRule, ObjectSelector: sel("app", "db")},
			admissionregv1.MutatingWebhook{Name: "updates", Rules: updates}),
	}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"inject": "yes"}}}, testPod())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range got {
		names = append(names, h.Configuration+" "+h.Name)
	}
	if s := strings.Join(names, ", "); s != "a both, z last" {
		t.Errorf("got %s", s)
	}
}

func TestPod(t *testing.T) {
	patchType := admissionv1.PatchTypeJSONPatch
	allow := func(patch string) func(r *admissionv1.AdmissionReview) {
		return func(r *admissionv1.AdmissionReview) {
			r.Response = &admissionv1.AdmissionResponse{UID: r.Request.UID, Allowed: true}
			if patch != "" {
				r.Response.Patch, r.Response.PatchType = []byte(patch), &patchType
			}
		}
	}
	warn := func(a func(r *admissionv1.AdmissionReview)) func(r *admissionv1.AdmissionReview) {
		return func(r *admissionv1.AdmissionReview) {
			a(r)
			r.Response.Warnings = []string{"not in the mesh"}
		}
	}
	for _, c := range []struct {
		name   string
		warns  string
		answer func(r *admissionv1.AdmissionReview)
		ignore bool
		want   string // of the label "new"
		err    string
		is     error
	}{
		{name: "unchanged", answer: allow("")},
		{name: "patched", answer: allow(`[{"op":"add","path":"/metadata/labels/new","value":"x"}]`), want: "x"},
		{name: "unchanged, with a warning", answer: warn(allow("")), warns: "not in the mesh"},
		{name: "patched, with a warning", answer: warn(allow(`[{"op":"add","path":"/metadata/labels/new","value":"x"}]`)), want: "x", warns: "not in the mesh"},
		{name: "a patch that does not fit", answer: allow(`[{"op":"replace","path":"/metadata/none","value":"x"}]`), err: "apply its patch"},
		{name: "a patch that makes no pod", answer: allow(`[{"op":"add","path":"/spec/containerz","value":[]}]`), err: "makes no pod"},
		{name: "a patch that renames", answer: allow(`[{"op":"replace","path":"/metadata/name","value":"x"}]`), err: "changes the pod's name"},
		{name: "refused", answer: func(r *admissionv1.AdmissionReview) {
			r.Response = &admissionv1.AdmissionResponse{UID: r.Request.UID, Result: &metav1.Status{Message: "hostNetwork"}}
		}, ignore: true, err: "hostNetwork", is: ErrRefused},
		{name: "an answer to another question", answer: func(r *admissionv1.AdmissionReview) {
			r.Response = &admissionv1.AdmissionResponse{UID: "else", Allowed: true}
		}, err: "not to our question"},
		{name: "no answer", answer: func(*admissionv1.AdmissionReview) {}, err: "not to our question"},
		{name: "no answer, ignored", answer: func(*admissionv1.AdmissionReview) {}, ignore: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, hook := server(t, func(w http.ResponseWriter, r *http.Request) {
				var review admissionv1.AdmissionReview
				if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.URL.Path != "/inject" || review.Request.Namespace != "shop" {
					t.Errorf("asked %s: %v %+v", r.URL, err, review)
				}
				c.answer(&review)
				review.Request = nil
				if err := json.NewEncoder(w).Encode(review); err != nil {
					t.Error(err)
				}
			})
			if c.ignore {
				hook.FailurePolicy = new(admissionregv1.Ignore)
			}
			got, warnings, err := Pod(t.Context(), cfg, []Hook{hook}, testPod())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || c.is != nil && !errors.Is(err, c.is) {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Labels["new"] != c.want {
				t.Errorf("label %q, want %q", got.Labels["new"], c.want)
			}
			if w := strings.Join(warnings, ", "); w != c.warns {
				t.Errorf("warnings %q, want %q", w, c.warns)
			}
		})
	}
}

// server is a webhook behind a Service whose name its certificate carries.
func server(t *testing.T, handler http.HandlerFunc) (Config, Hook) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	cfg := Config{
		Dial: (&net.Dialer{}).DialContext,
		Endpoint: func(namespace, name string, port int32) (netip.AddrPort, bool) {
			return at, namespace == "heddle-system" && name == "hook" && port == 443
		},
	}
	hook := Hook{Configuration: "test", MutatingWebhook: admissionregv1.MutatingWebhook{Name: "hook", ClientConfig: admissionregv1.WebhookClientConfig{
		URL:      new("https://" + strings.Replace(at.String(), "127.0.0.1", "example.com", 1) + "/inject"), // httptest's certificate is for example.com
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	}}}
	dial := cfg.Dial
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dial(ctx, network, at.String())
	}
	return cfg, hook
}

func TestWhoCannotBeAsked(t *testing.T) {
	ok := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "{}") }
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		change  func(*Hook)
		err     string
		is      error
	}{
		{"status", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", 500) }, nil, "500", nil},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, nil, "read its answer", nil},
		{"plain HTTP", ok, func(h *Hook) { h.ClientConfig.URL = new("http://127.0.0.1/") }, "not https", nil},
		{"no roots", ok, func(h *Hook) { h.ClientConfig.CABundle = nil }, "caBundle", nil},
		{"no target", ok, func(h *Hook) { h.ClientConfig.URL = nil }, "neither", nil},
		{"a certificate of another name", ok, func(h *Hook) {
			h.ClientConfig.URL = nil
			h.ClientConfig.Service = &admissionregv1.ServiceReference{Namespace: "heddle-system", Name: "hook"}
		}, "hook.heddle-system.svc", nil},
		{"no endpoint", ok, func(h *Hook) {
			h.ClientConfig.URL = nil
			h.ClientConfig.Service = &admissionregv1.ServiceReference{Namespace: "x", Name: "y"}
		}, "x/y", ErrNotReady},
		{"slow", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the client is gone
			<-r.Context().Done()
			panic(http.ErrAbortHandler) // no answer at all
		}, func(h *Hook) { h.TimeoutSeconds = new(int32(1)) }, "deadline", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, hook := server(t, c.handler)
			if c.change != nil {
				c.change(&hook)
			}
			_, _, err := Pod(t.Context(), cfg, []Hook{hook}, testPod())
			if err == nil || !strings.Contains(err.Error(), c.err) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}
