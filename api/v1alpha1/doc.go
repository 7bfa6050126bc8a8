// Package v1alpha1 holds Heddle's own Kubernetes kinds (group heddle.dev) and
// the labels and annotations users set. Pure data: no client, no defaults that
// depend on a cluster.
package v1alpha1

// Group and Version of our kinds.
const (
	Group   = "heddle.dev"
	Version = "v1alpha1"
)

// Labels and annotations that users set.
const (
	// InjectKey, as a namespace's label, turns injection on ("enabled"); as a
	// pod's label or annotation it overrides the namespace ("enabled",
	// "disabled").
	InjectKey = "heddle.dev/inject"
	// SkipOutboundPorts and SkipInboundPorts hold port numbers and ranges,
	// comma-separated, that the redirect leaves alone.
	SkipOutboundPorts = "heddle.dev/skip-outbound-ports"
	SkipInboundPorts  = "heddle.dev/skip-inbound-ports"
	// SkipOutboundCIDRs holds prefixes, comma-separated.
	SkipOutboundCIDRs = "heddle.dev/skip-outbound-cidrs"
	// SkipUIDs holds user IDs, comma-separated, whose traffic is left alone.
	SkipUIDs = "heddle.dev/skip-uids"
	// NativeSidecar chooses the form: "true" (default) a native sidecar,
	// "false" an ordinary container.
	NativeSidecar = "heddle.dev/native-sidecar"
	// LogLevel of the sidecar: debug, info, warn, error.
	LogLevel = "heddle.dev/log-level"
	// CPURequest, CPULimit, MemoryRequest, MemoryLimit are quantities for the
	// sidecar.
	CPURequest    = "heddle.dev/cpu-request"
	CPULimit      = "heddle.dev/cpu-limit"
	MemoryRequest = "heddle.dev/memory-request"
	MemoryLimit   = "heddle.dev/memory-limit"
	// RedirectBackend forces nftables, iptables-nft or iptables-legacy.
	RedirectBackend = "heddle.dev/redirect-backend"
)

// StatusKey is the annotation that the injector leaves on a pod it changed;
// its value is JSON (injector/patch). A pod that has it is in the mesh. Its
// field skipInbound lists, as SkipInboundPorts does, the ports that the pod's
// redirect leaves alone on the way in.
const StatusKey = "heddle.dev/status"
