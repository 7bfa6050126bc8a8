package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MeshConfig holds the settings of the whole mesh; the one named "default"
// counts.
type MeshConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              MeshConfigSpec `json:"spec"`
	Status            PolicyStatus   `json:"status,omitzero"`
}

// MeshConfigSpec is what a MeshConfig says.
type MeshConfigSpec struct {
	// TrustDomain of all identities (SPIFFE ID §2.1); default "cluster.local".
	TrustDomain string `json:"trustDomain,omitempty"`
	// MTLS is the mode where no AccessPolicy says another; default permissive.
	MTLS MTLSMode `json:"mtls,omitempty"`
	// ExcludedPorts are left alone by the redirects of newly injected pods.
	ExcludedPorts []uint16 `json:"excludedPorts,omitempty"`
	// AccessLog turns the access logs of all sidecars on.
	AccessLog bool `json:"accessLog,omitempty"`
	// TraceSampling is the share of new traces that are sampled, 0 to 1; 0: none is
	// started, those of others are joined.
	TraceSampling float64 `json:"traceSampling,omitempty"`
	// TraceCollector is the OTLP/gRPC endpoint, host:port; empty: nothing is traced.
	TraceCollector string `json:"traceCollector,omitempty"`
}

// MTLSMode says whether plaintext is taken.
type MTLSMode string

// The modes. Anything else is a mistake and read as strict.
const (
	MTLSPermissive MTLSMode = "permissive"
	MTLSStrict     MTLSMode = "strict"
)

// AccessPolicy says who may call the pods it selects. Policies add: any deny
// wins; once a pod is selected by one with rules, what no allow covers is
// refused.
type AccessPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              AccessPolicySpec `json:"spec"`
	Status            PolicyStatus     `json:"status,omitzero"`
}

// AccessPolicySpec is what an AccessPolicy says.
type AccessPolicySpec struct {
	// Selector picks pods of the policy's namespace; empty picks all.
	Selector map[string]string `json:"selector,omitempty"`
	// MTLS sets the mode; Ports, if given, limits it to those ports.
	MTLS *MTLSRule `json:"mtls,omitempty"`
	// Rules allow, deny or audit callers.
	Rules []AccessRule `json:"rules,omitempty"`
}

// MTLSRule sets the mTLS mode of pods or of some of their ports.
type MTLSRule struct {
	Mode  MTLSMode `json:"mode"`
	Ports []uint16 `json:"ports,omitempty"`
}

// AccessRule is one rule; all fields that are set must match.
type AccessRule struct {
	Action AccessAction `json:"action"`
	From   []AccessFrom `json:"from,omitempty"` // empty: anybody
	Ports  []uint16     `json:"ports,omitempty"`
}

// AccessAction is what a rule does to what it matches.
type AccessAction string

// The actions.
const (
	Allow AccessAction = "allow"
	Deny  AccessAction = "deny"
	Audit AccessAction = "audit"
)

// AccessFrom names callers; the fields that are set must all match.
type AccessFrom struct {
	// Identities are SPIFFE IDs, exact or with a last segment of "*".
	Identities []string `json:"identities,omitempty"`
	// Namespaces match the caller's identity.
	Namespaces []string `json:"namespaces,omitempty"`
	// CIDRs match the caller's address; weaker than identity.
	CIDRs []string `json:"cidrs,omitempty"`
}
