package telemetry

// Reason says why Heddle refused or failed a connection or a request. The same
// word stands in the log (field reason), in metrics (label reason), in the
// x-heddle-reason header of answers made by a sidecar, and in docs/operate.md.
type Reason string

// The reasons. Each is one thing an operator can act on.
const (
	ReasonOK                 Reason = ""
	ReasonUnknownDestination Reason = "unknown_destination"    // in the cluster's ranges, but the control plane could not be asked
	ReasonNoEndpoints        Reason = "no_endpoints"           // the Service has no usable endpoint
	ReasonNoLocalEndpoints   Reason = "no_local_endpoints"     // only other nodes have one and the traffic policy is Local
	ReasonNoSuchPort         Reason = "no_such_port"           // the Service has no such port
	ReasonConnectFailed      Reason = "connect_failed"         // no endpoint tried took the connection
	ReasonIdentityMismatch   Reason = "identity_mismatch"      // the endpoint's certificate is not the one expected
	ReasonCertificateExpired Reason = "certificate_expired"    // the peer's certificate is out of date
	ReasonCertificateUnknown Reason = "certificate_unknown"    // the peer's certificate is of no trusted root, or malformed
	ReasonNoIdentity         Reason = "no_identity"            // we have no certificate of our own yet, or it expired
	ReasonPlaintextRefused   Reason = "plaintext_refused"      // strict mode and the client sent no mesh TLS
	ReasonAccessDenied       Reason = "access_denied"          // an AccessPolicy refuses the caller
	ReasonOwnPort            Reason = "own_port"               // a dial to the sidecar itself
	ReasonLoop               Reason = "loop"                   // the connection came back to where it started
	ReasonNotCaptured        Reason = "not_captured"           // a connection without an original destination
	ReasonBadRequest         Reason = "bad_request"            // not HTTP as RFC 9112 wants it
	ReasonHeaderTooLarge     Reason = "header_too_large"       // head over the limit
	ReasonRequestTimeout     Reason = "request_timeout"        // the client did not finish its request head in time
	ReasonUpstreamReset      Reason = "upstream_reset"         // the endpoint broke off
	ReasonBadResponse        Reason = "bad_response"           // the endpoint did not answer in HTTP
	ReasonTooManyConnections Reason = "too_many_connections"   // a bound of the sidecar is reached
	ReasonUpstreamTimeout    Reason = "upstream_timeout"       // the endpoint did not answer in the time that a policy gives
	ReasonCircuitOpen        Reason = "circuit_open"           // as much is under way there as a policy's circuit breaker lets
	ReasonRetryBudget        Reason = "retry_budget_exhausted" // not sent again: too much was of late
	ReasonRetryBody          Reason = "retry_body_too_large"   // not sent again: too long to be kept
	ReasonDraining           Reason = "draining"               // the sidecar is going away
)
