// Package collector is a trace collector for tests: it takes OTLP over gRPC and
// keeps the spans, or refuses them. Only tests call it.
package collector

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	pb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Span is one that came, with its resource's attributes.
type Span struct {
	*trace.Span
	Resource map[string]string
}

// Attr gives an attribute's value as text; "": it has none.
func (s Span) Attr(key string) string { return attrs(s.Attributes)[key] }

// Collector takes spans until its test ends.
type Collector struct {
	pb.UnimplementedTraceServiceServer
	mu     sync.Mutex
	spans  []Span
	calls  int
	answer func(call, spans int) (rejected int, code codes.Code)
}

// Serve takes spans from l.
func Serve(t testing.TB, l net.Listener) *Collector {
	c := &Collector{}
	s := grpc.NewServer()
	pb.RegisterTraceServiceServer(s, c)
	done := make(chan struct{})
	go func() { s.Serve(l); close(done) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return c
}

// Answer has f decide on each call, counted from 0, with so many spans.
func (c *Collector) Answer(f func(call, spans int) (rejected int, code codes.Code)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = f
}

// Spans gives what came so far, in order.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Calls tells how many calls there were.
func (c *Collector) Calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// Export is what the exporter calls.
func (c *Collector) Export(_ context.Context, req *pb.ExportTraceServiceRequest) (*pb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var got []Span
	for _, r := range req.GetResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				got = append(got, Span{span, attrs(r.GetResource().GetAttributes())})
			}
		}
	}
	res := &pb.ExportTraceServiceResponse{}
	if c.answer != nil {
		rejected, code := c.answer(c.calls, len(got))
		if rejected > 0 {
			res.PartialSuccess = &pb.ExportTracePartialSuccess{RejectedSpans: int64(rejected), ErrorMessage: "no"}
			got = got[rejected:]
		}
		if code != codes.OK {
			c.calls++
			return nil, status.Error(code, "not now")
		}
	}
	c.calls++
	c.spans = append(c.spans, got...)
	return res, nil
}

func attrs(kvs []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range kvs {
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			out[kv.GetKey()] = fmt.Sprint(v.IntValue)
		}
	}
	return out
}
