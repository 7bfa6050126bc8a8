// Package trace is what the request path knows of tracing: it reads where a
// request stands (W3C Trace Context, B3), decides whether a new trace is
// sampled, writes the context that goes on, and makes a span of each attempt
// (client side) and of each request served (server side).
//
// An unsampled request costs no allocation. Finished spans are handed to
// internal/telemetry/spans, which sends them. sidecar/outbound and sidecar/
// inbound hold a Request for each connection.
package trace

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/heddle-mesh/heddle/internal/telemetry/spans"
	"github.com/heddle-mesh/heddle/sidecar/http1"
)

// Tracer holds the mesh's settings. A nil Tracer leaves requests alone.
type Tracer struct {
	offer    func(*spans.Span)
	settings atomic.Pointer[settings]
}

type settings struct {
	on bool
	// below is what the 63 low bits of a trace ID must be under for a new trace
	// to be sampled: the ratio that OpenTelemetry's TraceIdRatioBased means, so
	// that whoever decides decides the same.
	below uint64
}

// New gives a Tracer that is off. offer takes finished spans; it must not block.
func New(offer func(*spans.Span)) *Tracer {
	t := &Tracer{offer: offer}
	t.settings.Store(&settings{})
	return t
}

// Set turns tracing on or off: off, requests pass as they came, since nobody
// would get the spans. ratio is the share of new traces that are sampled, 0 to
// 1; with 0 none is started, and those of others are joined.
func (t *Tracer) Set(on bool, ratio float64) {
	s := &settings{on: on}
	switch {
	case ratio >= 1:
		s.below = 1 << 63
	case ratio > 0:
		s.below = uint64(ratio * (1 << 63))
	}
	t.settings.Store(s)
}

func (s *settings) sample(trace [16]byte) bool {
	return binary.BigEndian.Uint64(trace[8:])>>1 < s.below
}

// Request is the trace of the request in hand on one connection; one after the
// other use it. The zero value leaves requests alone.
type Request struct {
	tracer *Tracer
	kind   spans.Kind
	begun  bool
	c      context
	fields []byte
	about  *about      // nil: not sampled
	span   *spans.Span // under way
}

// Client gives the Request of a connection whose requests are sent on to
// others: each attempt is a span.
func (t *Tracer) Client() Request { return Request{tracer: t, kind: spans.Client} }

// Server gives the Request of a connection whose requests are served here: each
// request is a span.
func (t *Tracer) Server() Request { return Request{tracer: t, kind: spans.Server} }

// Sampled tells whether Start makes a span.
func (r *Request) Sampled() bool { return r.about != nil }

// Fields are the field lines, with CRLF, that are to replace those of the same
// name in the request; nil: it goes on as it is. They are valid until Start,
// Begin or Done.
func (r *Request) Fields() []byte {
	if len(r.fields) == 0 {
		return nil
	}
	return r.fields
}

// Begin reads where a request stands. Until Done, further calls do nothing: a
// request may be tried more than once.
func (r *Request) Begin(h *http1.Head) {
	if r.begun || r.tracer == nil {
		return
	}
	r.begun, r.fields = true, r.fields[:0]
	set := r.tracer.settings.Load()
	if !set.on {
		return
	}
	c, decided, w3c := read(h)
	isNew := c.trace == [16]byte{}
	switch {
	case w3c && !c.sampled():
		return // goes on as it came
	case isNew && !decided && set.below == 0:
		return // nobody traces it and we start none
	case isNew:
		c.trace = newTrace()
	}
	if !decided && set.sample(c.trace) {
		c.flags |= flagSampled
	}
	r.c = c
	if c.sampled() {
		r.about = aboutOf(h, w3c)
		return
	}
	// Later hops are to decide the same, so the request says that it is not
	// sampled; a trace of ours that nobody sees has no span to name as parent.
	id := c.parent
	if isNew {
		id = newSpan()
	}
	r.fields = c.appendParent(r.fields, id)
	if _, next := h.Find(fieldState, 0); next >= 0 {
		r.fields = append(r.fields, noState...) // without a good traceparent it means nothing
	}
}

// Done ends the request: what is under way is given up by the client or us.
func (r *Request) Done() {
	if r.span != nil {
		r.End(Result{})
	}
	r.begun, r.about, r.fields = false, nil, r.fields[:0]
}
