// Package spans is the door to OpenTelemetry's SDK: finished spans wait in a
// bounded queue and leave in batches through its exporter (otlptracegrpc, OTLP
// over gRPC), which takes them as the SDK's ReadOnlySpans, with its resource.
//
// It makes no spans and decides nothing about sampling: sidecar/trace does and
// calls Offer, which never waits. sidecar.Run runs the Exporter and tells it
// the collector, which may change at any time.
//
// The queue is ours and not the SDK's BatchSpanProcessor, which keeps to itself
// what it drops and what became of a batch, belongs to one exporter for life,
// so that a change of collector would wait for the old one or lose what is
// queued, and goes on sending after its Shutdown has run into the deadline.
package spans

import "time"

// Kind is a span's place in a call (OTel trace API, SpanKind).
type Kind uint8

// The kinds that proxies have.
const (
	Server Kind = iota // takes a request
	Client             // sends one
)

// Span is one finished span. It is not changed after it was offered.
type Span struct {
	Trace      [16]byte
	ID, Parent [8]byte // Parent zero: the first of its trace
	State      string  // W3C tracestate
	Kind       Kind
	Name       string
	Start, End time.Time
	Attrs      []Attr
	Failed     bool // status Error
	Detail     string
}

// Resource says whose the spans are (OTel semantic conventions, "Resource"): the
// application's, since its sidecar stands in for it. What is empty is left out.
type Resource struct {
	Service, ServiceVersion      string
	Namespace, Pod, PodUID, Node string // of Kubernetes
}

// Attr is one attribute: a text, or a number where Text is empty.
type Attr struct {
	Key    string
	Text   string
	Number int64
}
