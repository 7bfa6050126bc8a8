// Package spans is the door to OTLP: finished spans wait in a bounded queue and
// leave in batches to a collector, over gRPC (OTLP 1.x, opentelemetry-proto).
//
// It makes no spans and decides nothing about sampling: sidecar/trace does and
// calls Offer, which never waits. sidecar.Run runs the Exporter and tells it
// the collector, which may change at any time.
package spans

import (
	"time"
)

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

// Attr is one attribute: a text, or a number where Text is empty.
type Attr struct {
	Key    string
	Text   string
	Number int64
}
