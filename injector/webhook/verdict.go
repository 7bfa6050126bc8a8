package webhook

import (
	"encoding/json"
	"errors"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/heddle-mesh/heddle/injector/patch"
)

var reviewType = metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}

// auditKey is the audit annotation that says what became of a pod; the API
// server puts the webhook's name in front of it.
const auditKey = "injection"

// verdict is an answer before it is an AdmissionResponse.
type verdict struct {
	result   string // label of the metric: injected, skipped, refused, denied, error
	reason   string // label of the metric: one word
	allowed  bool
	code     int32 // HTTP-like, if not allowed
	message  string
	warnings []string
	patch    []byte
	pod      string // name, for the log where the request has none yet
}

func failed(reason string, code int32, message string) verdict {
	return verdict{result: "error", reason: reason, code: code, message: message}
}

// judge turns what patch says into an answer. Who asked for the mesh and
// cannot have it runs outside of it, with a warning, as users know it from
// other meshes; only a pod that would pass its own sidecar by is denied.
func judge(r patch.Result) verdict {
	reason := string(r.Reason)
	switch {
	case r.Deny():
		return verdict{result: "denied", reason: reason, code: http.StatusForbidden, message: r.Err.Error()}
	case r.Err != nil:
		return verdict{result: "refused", reason: reason, allowed: true, message: r.Err.Error(),
			warnings: []string{"not in the mesh: " + r.Err.Error()}}
	case r.Reason != patch.Injected:
		return verdict{result: "skipped", reason: reason, allowed: true}
	}
	ops, err := json.Marshal(r.Patch)
	if err != nil {
		return failed("encode", http.StatusInternalServerError, "encode patch: "+err.Error())
	}
	return verdict{result: "injected", allowed: true, patch: ops, warnings: r.Warnings}
}

// response is the verdict as the API server reads it.
func (v verdict) response(uid types.UID) *admissionv1.AdmissionResponse {
	audit := v.result
	if v.reason != "" {
		audit += ": " + v.reason
	}
	out := &admissionv1.AdmissionResponse{
		UID: uid, Allowed: v.allowed, Warnings: v.warnings,
		AuditAnnotations: map[string]string{auditKey: audit},
	}
	if len(v.patch) > 0 {
		out.Patch, out.PatchType = v.patch, new(admissionv1.PatchTypeJSONPatch)
	}
	if !v.allowed {
		out.Result = &metav1.Status{Status: metav1.StatusFailure, Code: v.code, Message: "heddle: " + v.message}
	}
	return out
}

// readPod decodes a pod as the API server does, where case counts.
func readPod(raw []byte) (*corev1.Pod, error) {
	var parts struct {
		Metadata map[string]any `json:"metadata"`
		Spec     map[string]any `json:"spec"`
	}
	if err := kjson.Unmarshal(raw, &parts); err != nil {
		return nil, err
	}
	if parts.Metadata == nil || parts.Spec == nil {
		return nil, errors.New("no metadata or no spec") // a patch would have nowhere to go
	}
	var pod corev1.Pod
	if err := kjson.Unmarshal(raw, &pod); err != nil {
		return nil, err
	}
	return &pod, nil
}
