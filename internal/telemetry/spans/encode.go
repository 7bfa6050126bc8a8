package spans

import (
	"strings"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	pb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// scope names what made the spans.
const scope = "github.com/heddle-mesh/heddle"

// encode puts a batch into OTLP's words.
func (e *Exporter) encode(batch []*Span) *collector.ExportTraceServiceRequest {
	out := make([]*pb.Span, len(batch))
	for i, s := range batch {
		out[i] = s.encode()
	}
	return &collector.ExportTraceServiceRequest{ResourceSpans: []*pb.ResourceSpans{{
		Resource:   &resource.Resource{Attributes: encodeAttrs(e.c.Resource)},
		ScopeSpans: []*pb.ScopeSpans{{Scope: &common.InstrumentationScope{Name: scope, Version: e.c.Version}, Spans: out}},
	}}}
}

func (s *Span) encode() *pb.Span {
	out := &pb.Span{
		TraceId: s.Trace[:], SpanId: s.ID[:], TraceState: valid(s.State), Name: valid(s.Name),
		Kind:              pb.Span_SPAN_KIND_SERVER,
		StartTimeUnixNano: nanos(s.Start), EndTimeUnixNano: nanos(s.End),
		Attributes: encodeAttrs(s.Attrs),
	}
	if s.Kind == Client {
		out.Kind = pb.Span_SPAN_KIND_CLIENT
	}
	if s.Parent != [8]byte{} {
		out.ParentSpanId = s.Parent[:]
	}
	if s.Failed {
		out.Status = &pb.Status{Code: pb.Status_STATUS_CODE_ERROR, Message: valid(s.Detail)}
	}
	return out
}

func nanos(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }

func encodeAttrs(attrs []Attr) []*common.KeyValue {
	out := make([]*common.KeyValue, len(attrs))
	for i, a := range attrs {
		v := &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: a.Number}}
		if a.Text != "" {
			v.Value = &common.AnyValue_StringValue{StringValue: valid(a.Text)}
		}
		out[i] = &common.KeyValue{Key: a.Key, Value: v}
	}
	return out
}

// valid makes a text fit for protobuf, which refuses a whole message for one
// byte that is no UTF-8; paths come from clients.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
