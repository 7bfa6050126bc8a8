package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TrafficPolicy says how callers in the mesh treat a Service. Several may name
// one Service: each group of settings (retry, timeouts, circuitBreaker,
// outlierEjection) is taken whole from one of them, from one that names the
// port before those that name the Service only, then from the oldest.
type TrafficPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              TrafficPolicySpec `json:"spec"`
	Status            PolicyStatus      `json:"status,omitzero"`
}

// Duration is written as Go does: 250ms, 1.5s, 2m.
type Duration = metav1.Duration

// PolicyStatus is what the control plane says of an object of ours.
type PolicyStatus struct {
	// ObservedGeneration is the version of the object that the conditions judge.
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// TrafficPolicySpec is what a TrafficPolicy says. All counts are those of one
// calling sidecar: callers do not know of each other.
type TrafficPolicySpec struct {
	TargetRefs      []TargetRef      `json:"targetRefs"`
	Retry           *Retry           `json:"retry,omitempty"`
	Timeouts        *Timeouts        `json:"timeouts,omitempty"`
	CircuitBreaker  *CircuitBreaker  `json:"circuitBreaker,omitempty"`
	OutlierEjection *OutlierEjection `json:"outlierEjection,omitempty"`
}

// TargetRef names a Service of the policy's own namespace, or one of its ports.
type TargetRef struct {
	Name string  `json:"name"`
	Port *uint16 `json:"port,omitempty"`
}

// RetryCause is a kind of failure after which a request may be sent again.
type RetryCause string

// The causes.
const (
	// RetryConnect: no endpoint took the request; its application never saw it.
	RetryConnect RetryCause = "connect"
	// RetryReset: the connection ended before an answer.
	RetryReset RetryCause = "reset"
	// Retry5xx: any status of 500 to 599, or no answer within perTryTimeout.
	Retry5xx RetryCause = "5xx"
	// RetryGateway: 502, 503 or 504, or no answer within perTryTimeout.
	RetryGateway RetryCause = "gateway"
)

// Retry says when HTTP requests are sent again.
type Retry struct {
	// Attempts is how many times besides the first; 0 to 10.
	Attempts uint32 `json:"attempts"`
	// When lists causes; default connect, reset, gateway if StatusCodes is left
	// out too, else none. (Not "on", which YAML 1.1 reads as true.)
	When []RetryCause `json:"when,omitempty"`
	// StatusCodes are further statuses, 400 to 599.
	StatusCodes []uint32 `json:"statusCodes,omitempty"`
	// Methods whose requests may be sent again although an endpoint may have
	// served them; default GET, HEAD, OPTIONS, TRACE, PUT, DELETE (idempotent,
	// RFC 9110, 9.2.2). Others are sent again only if no application saw them, or
	// if they carry an Idempotency-Key.
	Methods []string `json:"methods,omitempty"`
	// PerTryTimeout bounds each attempt until the head of its answer, connecting
	// included; default none.
	PerTryTimeout *Duration    `json:"perTryTimeout,omitempty"`
	Backoff       *Backoff     `json:"backoff,omitempty"`
	Budget        *RetryBudget `json:"budget,omitempty"`
	// MaxBodyBytes of a request's body are kept to be sent again; default 65536,
	// at most 1 MiB. A longer one is not sent again once it was begun.
	MaxBodyBytes *uint32 `json:"maxBodyBytes,omitempty"`
}

// Backoff is the wait before a retry: a random part of Base, doubled at each
// further one up to Max; defaults 25ms, 250ms.
type Backoff struct {
	Base *Duration `json:"base,omitempty"`
	Max  *Duration `json:"max,omitempty"`
}

// RetryBudget bounds the requests sent again over ten seconds, to Ratio of all
// requests and MinPerSecond besides; defaults 0.2, 10. It always applies.
type RetryBudget struct {
	Ratio        *float64 `json:"ratio,omitempty"`
	MinPerSecond *uint32  `json:"minPerSecond,omitempty"`
}

// Timeouts of requests and connections.
type Timeouts struct {
	// Request is for an HTTP request whole, retries and the answer's last byte
	// included; default none.
	Request *Duration `json:"request,omitempty"`
	// Connect is for one endpoint, TLS included; default 5s.
	Connect *Duration `json:"connect,omitempty"`
	// Idle ends a TCP connection on which nothing passed; default never.
	Idle *Duration `json:"idle,omitempty"`
}

// CircuitBreaker bounds what one caller has under way at a port of a Service.
// What is over is refused at once.
type CircuitBreaker struct {
	// MaxConnections open, idle ones included; default no bound.
	MaxConnections *uint32 `json:"maxConnections,omitempty"`
	// MaxPending requests may wait for one of MaxConnections; default 1024.
	MaxPending *uint32 `json:"maxPending,omitempty"`
	// MaxRequests under way; default no bound.
	MaxRequests *uint32 `json:"maxRequests,omitempty"`
}

// OutlierEjection keeps requests away from endpoints that fail.
type OutlierEjection struct {
	// ConsecutiveFailures (502, 503, 504, reset, timeout, no connection) eject
	// an endpoint; default 5.
	ConsecutiveFailures *uint32 `json:"consecutiveFailures,omitempty"`
	// BaseEjection is how long, times how often it was ejected lately, up to
	// MaxEjection; defaults 30s, 300s.
	BaseEjection *Duration `json:"baseEjection,omitempty"`
	MaxEjection  *Duration `json:"maxEjection,omitempty"`
	// MaxEjectedPercent of the endpoints, rounded down, are ejected at most, and
	// never all; default 50.
	MaxEjectedPercent *uint32 `json:"maxEjectedPercent,omitempty"`
}

// What a TrafficPolicy leaves out.
const (
	DefaultBackoffBase  = 25 * time.Millisecond
	DefaultBackoffMax   = 250 * time.Millisecond
	DefaultBudgetRatio  = 0.2
	DefaultBudgetMin    = 10 // per second
	DefaultMaxBody      = 64 << 10
	DefaultMaxPending   = 1024
	DefaultFailures     = 5
	DefaultBaseEjection = 30 * time.Second
	DefaultMaxEjection  = 300 * time.Second
	DefaultMaxEjected   = 50 // percent
)
