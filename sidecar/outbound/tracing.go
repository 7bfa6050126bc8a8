package outbound

import (
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/trace"
)

// startSpan begins the span of an attempt at an endpoint, if the request is
// sampled.
func (s *session) startSpan(t *target) {
	if !s.trace.Sampled() {
		return
	}
	hop := trace.Hop{Addr: t.addr, Service: serviceName(s.dest)}
	if t.meshed() {
		hop.Peer = t.id.String()
	}
	s.trace.Start(hop)
}

// endSpan ends it as the attempt ended.
func (s *session) endSpan(o http1.Outcome) {
	if o.Unsent {
		s.trace.Cancel()
		return
	}
	s.trace.End(trace.Result{Status: o.Status, Reason: o.Reason})
}

// told makes a span for what no attempt tells: the request was refused, by
// policy, breaker or for want of an endpoint.
func (s *session) told(x *http1.Exchange) {
	if s.trace.Sampled() {
		s.trace.Refused(serviceName(s.dest), trace.Result{Status: x.Status, Reason: x.Reason}, x.Start)
	}
	s.trace.Done()
}
