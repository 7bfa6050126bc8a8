package spans

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// scopeName names what made the spans.
const scopeName = "github.com/heddle-mesh/heddle"

// origin is what all spans of an Exporter have in common.
type origin struct {
	resource *resource.Resource
	scope    instrumentation.Scope
}

func newOrigin(r Resource, version string) *origin {
	var attrs []attribute.KeyValue
	for _, a := range []attribute.KeyValue{
		semconv.ServiceName(r.Service), semconv.ServiceNamespace(r.Namespace), semconv.ServiceVersion(r.ServiceVersion),
		semconv.ServiceInstanceID(r.PodUID),
		semconv.K8SPodName(r.Pod), semconv.K8SPodUID(r.PodUID), semconv.K8SNamespaceName(r.Namespace), semconv.K8SNodeName(r.Node),
		// The SDK's exporter sends the spans, but Heddle makes and samples them:
		// the name "opentelemetry" is for the SDK's own (OTel resource conventions).
		semconv.TelemetrySDKName("heddle"), semconv.TelemetrySDKLanguageGo, semconv.TelemetrySDKVersion(version),
	} {
		if text := valid(a.Value.AsString()); text != "" {
			attrs = append(attrs, a.Key.String(text))
		}
	}
	return &origin{
		resource: resource.NewWithAttributes(semconv.SchemaURL, attrs...),
		scope:    instrumentation.Scope{Name: scopeName, Version: valid(version), SchemaURL: semconv.SchemaURL},
	}
}

// readable gives spans as the SDK's exporters take them.
func (o *origin) readable(batch []*Span) []sdk.ReadOnlySpan {
	all, out := make([]readOnly, len(batch)), make([]sdk.ReadOnlySpan, len(batch))
	for i, s := range batch {
		all[i] = readOnly{s: s, origin: o}
		out[i] = &all[i]
	}
	return out
}

// readOnly shows a Span to the SDK. It embeds the interface, which is nil, for
// its private method, as the SDK's own tracetest does; a test finds methods
// that a later SDK adds.
type readOnly struct {
	sdk.ReadOnlySpan
	s *Span
	*origin
}

func (r *readOnly) Name() string { return valid(r.s.Name) }

// SpanContext leaves out a state that the SDK refuses (keys that begin with a
// digit, which only level 2 of W3C Trace Context allows): requests still carry it.
func (r *readOnly) SpanContext() trace.SpanContext {
	state, err := trace.ParseTraceState(r.s.State)
	if err != nil {
		state = trace.TraceState{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: r.s.Trace, SpanID: r.s.ID, TraceFlags: trace.FlagsSampled, TraceState: state,
	})
}

// Parent is remote: it was read from a request.
func (r *readOnly) Parent() trace.SpanContext {
	if r.s.Parent == [8]byte{} {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: r.s.Trace, SpanID: r.s.Parent, TraceFlags: trace.FlagsSampled, Remote: true,
	})
}

func (r *readOnly) SpanKind() trace.SpanKind {
	if r.s.Kind == Client {
		return trace.SpanKindClient
	}
	return trace.SpanKindServer
}

func (r *readOnly) StartTime() time.Time { return r.s.Start }
func (r *readOnly) EndTime() time.Time   { return r.s.End }

func (r *readOnly) Attributes() []attribute.KeyValue {
	out := make([]attribute.KeyValue, len(r.s.Attrs))
	for i, a := range r.s.Attrs {
		if a.Text != "" {
			out[i] = attribute.String(a.Key, valid(a.Text))
		} else {
			out[i] = attribute.Int64(a.Key, a.Number)
		}
	}
	return out
}

func (r *readOnly) Status() sdk.Status {
	if !r.s.Failed {
		return sdk.Status{}
	}
	return sdk.Status{Code: codes.Error, Description: valid(r.s.Detail)}
}

func (r *readOnly) Resource() *resource.Resource                  { return r.resource }
func (r *readOnly) InstrumentationScope() instrumentation.Scope   { return r.scope }
func (r *readOnly) InstrumentationLibrary() instrumentation.Scope { return r.scope }
func (r *readOnly) Links() []sdk.Link                             { return nil }
func (r *readOnly) Events() []sdk.Event                           { return nil }
func (r *readOnly) DroppedAttributes() int                        { return 0 }
func (r *readOnly) DroppedLinks() int                             { return 0 }
func (r *readOnly) DroppedEvents() int                            { return 0 }
func (r *readOnly) ChildSpanCount() int                           { return 0 }

// valid makes a text fit for protobuf, which refuses a whole message for one
// byte that is no UTF-8; paths come from clients.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
