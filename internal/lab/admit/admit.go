// Package admit asks mutating admission webhooks about a pod, as an API server
// does: AdmissionReview v1 over HTTPS, the answer's JSON patch applied. It
// reads MutatingWebhookConfigurations as they are written for a real cluster.
// It neither retries nor decides what becomes of a refused pod: internal/lab
// does, which calls it.
package admit

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/heddle-mesh/heddle/internal/lab/jsonpatch"
)

const (
	// defaultTimeout of a webhook call and its bounds, as the API has them.
	defaultTimeout = 10 * time.Second
	maxTimeout     = 30 * time.Second
	// maxAnswer bounds the webhook's answer: a pod has at most 1.5 MiB.
	maxAnswer = 8 << 20
)

// ErrNotReady says that a webhook's Service has no ready endpoint: asking made
// no sense yet.
var ErrNotReady = errors.New("the webhook's Service has no ready endpoint")

// ErrRefused says that a webhook answered, and the answer was no.
var ErrRefused = errors.New("refused by the webhook")

// Config says how webhooks are reached.
type Config struct {
	// Dial connects to an IP address and port from where an API server would
	// stand.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Endpoint gives a ready endpoint of a Service's port.
	Endpoint func(namespace, name string, port int32) (netip.AddrPort, bool)
}

// Hook is one webhook of a MutatingWebhookConfiguration.
type Hook struct {
	Configuration string
	admissionregv1.MutatingWebhook
}

// Hooks gives the webhooks to call for a new pod, in order.
func Hooks(configs []*admissionregv1.MutatingWebhookConfiguration, ns *corev1.Namespace, pod *corev1.Pod) ([]Hook, error) {
	configs = slices.Clone(configs)
	slices.SortFunc(configs, func(a, b *admissionregv1.MutatingWebhookConfiguration) int {
		return bytes.Compare([]byte(a.Name), []byte(b.Name))
	})
	var out []Hook
	for _, c := range configs {
		for _, h := range c.Webhooks {
			ok, err := matches(&h, ns, pod)
			if err != nil {
				return nil, fmt.Errorf("webhook %s of %s: %w", h.Name, c.Name, err)
			}
			if ok {
				out = append(out, Hook{Configuration: c.Name, MutatingWebhook: h})
			}
		}
	}
	return out, nil
}

func matches(h *admissionregv1.MutatingWebhook, ns *corev1.Namespace, pod *corev1.Pod) (bool, error) {
	if !slices.ContainsFunc(h.Rules, func(r admissionregv1.RuleWithOperations) bool {
		return has(r.APIGroups, "") && has(r.APIVersions, "v1") && has(r.Resources, "pods") && has(r.Operations, admissionregv1.Create)
	}) {
		return false, nil
	}
	for _, s := range []struct {
		selector *metav1.LabelSelector
		labels   map[string]string
	}{{h.NamespaceSelector, ns.Labels}, {h.ObjectSelector, pod.Labels}} {
		if s.selector == nil {
			continue
		}
		sel, err := metav1.LabelSelectorAsSelector(s.selector)
		if err != nil {
			return false, err
		}
		if !sel.Matches(labels.Set(s.labels)) {
			return false, nil
		}
	}
	return true, nil
}

func has[T ~string](list []T, v T) bool {
	return slices.Contains(list, v) || slices.Contains(list, "*")
}

// Pod sends a pod through hooks and returns what they made of it and the
// warnings that came with it; the pod given is not changed. A hook of failurePolicy Ignore that cannot be asked is
// skipped; its answer "no" counts all the same.
func Pod(ctx context.Context, cfg Config, hooks []Hook, pod *corev1.Pod) (*corev1.Pod, []string, error) {
	var warnings []string
	for _, h := range hooks {
		next, warned, err := call(ctx, cfg, h, pod)
		warnings = append(warnings, warned...)
		switch {
		case err == nil:
			pod = next
		case h.FailurePolicy != nil && *h.FailurePolicy == admissionregv1.Ignore && !errors.Is(err, ErrRefused):
		default:
			return nil, nil, fmt.Errorf("webhook %s of %s: %w", h.Name, h.Configuration, err)
		}
	}
	return pod, warnings, nil
}

func call(ctx context.Context, cfg Config, h Hook, pod *corev1.Pod) (*corev1.Pod, []string, error) {
	timeout := defaultTimeout
	if h.TimeoutSeconds != nil {
		timeout = min(max(time.Duration(*h.TimeoutSeconds)*time.Second, time.Second), maxTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	object, err := json.Marshal(pod)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the pod: %w", err)
	}
	answer, err := post(ctx, cfg, h, review(pod, object))
	if err != nil {
		return nil, nil, err
	}
	if !answer.Allowed {
		msg := "no reason given"
		if answer.Result != nil && answer.Result.Message != "" {
			msg = answer.Result.Message
		}
		return nil, nil, fmt.Errorf("%w: %s", ErrRefused, msg)
	}
	if len(answer.Patch) == 0 {
		return pod, answer.Warnings, nil
	}
	if answer.PatchType == nil || *answer.PatchType != admissionv1.PatchTypeJSONPatch {
		return nil, nil, errors.New("its answer has a patch but not patchType JSONPatch")
	}
	out, err := patched(pod, object, answer.Patch)
	return out, answer.Warnings, err
}

// patched applies a patch and holds that the pod is still the same object.
func patched(pod *corev1.Pod, object, patch []byte) (*corev1.Pod, error) {
	changed, err := jsonpatch.Apply(object, patch)
	if err != nil {
		return nil, fmt.Errorf("apply its patch: %w", err)
	}
	var out corev1.Pod
	d := json.NewDecoder(bytes.NewReader(changed))
	d.DisallowUnknownFields()
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("its patch makes no pod: %w", err)
	}
	if out.Name != pod.Name || out.Namespace != pod.Namespace || out.UID != pod.UID {
		return nil, errors.New("its patch changes the pod's name, namespace or UID")
	}
	return &out, nil
}

// review is the question, as an API server puts it.
func review(pod *corev1.Pod, object []byte) *admissionv1.AdmissionReview {
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       pod.UID,
			Kind:      metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Name:      pod.Name,
			Namespace: pod.Namespace,
			Operation: admissionv1.Create,
			DryRun:    new(false),
			Object:    runtime.RawExtension{Raw: object},
		},
	}
}

// target is where a hook is and how its certificate must be named.
type target struct {
	url        string
	address    string // to dial; empty: what the URL says
	serverName string
}

func (cfg Config) target(h Hook) (target, error) {
	if u := h.ClientConfig.URL; u != nil {
		parsed, err := url.Parse(*u)
		if err != nil || parsed.Scheme != "https" {
			return target{}, fmt.Errorf("its URL %q is not https", *u)
		}
		return target{url: *u, serverName: parsed.Hostname()}, nil
	}
	s := h.ClientConfig.Service
	if s == nil {
		return target{}, errors.New("its clientConfig names neither a url nor a service")
	}
	port := int32(443)
	if s.Port != nil {
		port = *s.Port
	}
	at, ok := cfg.Endpoint(s.Namespace, s.Name, port)
	if !ok {
		return target{}, fmt.Errorf("%w: %s/%s port %d", ErrNotReady, s.Namespace, s.Name, port)
	}
	path := "/"
	if s.Path != nil {
		path = *s.Path
	}
	host := s.Name + "." + s.Namespace + ".svc"
	return target{url: "https://" + net.JoinHostPort(host, strconv.Itoa(int(port))) + path, address: at.String(), serverName: host}, nil
}

func post(ctx context.Context, cfg Config, h Hook, question *admissionv1.AdmissionReview) (*admissionv1.AdmissionResponse, error) {
	to, err := cfg.target(h)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(h.ClientConfig.CABundle) {
		return nil, errors.New("its caBundle holds no certificate")
	}
	body, err := json.Marshal(question)
	if err != nil {
		return nil, fmt.Errorf("encode the question: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{
		DisableKeepAlives: true, // pods are few, and each call shall see the newest endpoint
		TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: to.serverName, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if to.address != "" {
				address = to.address
			}
			return cfg.Dial(ctx, network, address)
		},
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", to.url, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read its answer: %w", err)
	case len(b) > maxAnswer:
		return nil, fmt.Errorf("its answer has more than %d bytes", maxAnswer)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it answered %s: %.200s", res.Status, b)
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(b, &answer); err != nil {
		return nil, fmt.Errorf("read its answer: %w", err)
	}
	if answer.Response == nil || answer.Response.UID != question.Request.UID {
		return nil, errors.New("its answer is not to our question (response.uid)")
	}
	return answer.Response, nil
}
