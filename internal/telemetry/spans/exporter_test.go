package spans_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/heddle-mesh/heddle/internal/meshtest/collector"
	"github.com/heddle-mesh/heddle/internal/meshtest/pipes"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/internal/telemetry/spans"
)

// rig is an exporter in a bubble, with collectors by name.
type rig struct {
	*testing.T
	e        *spans.Exporter
	registry *telemetry.Registry
	at       map[string]*pipes.Listener
	stop     context.CancelFunc
	ended    chan struct{}
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, registry: telemetry.NewRegistry("test"), at: map[string]*pipes.Listener{}, ended: make(chan struct{})}
	r.e = spans.New(spans.Config{
		Resource: spans.Resource{Service: "orders", ServiceVersion: "7", Namespace: "shop", Pod: "orders-1", PodUID: "u-1"},
		Version:  "v1",
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			if l := r.at[address]; l != nil {
				return l.Dial(ctx, address)
			}
			return nil, fmt.Errorf("nobody is at %s", address)
		},
	})
	r.registry.Register(r.e.Collectors()...)
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.e.Run(ctx); close(r.ended) }()
	t.Cleanup(r.end)
	return r
}

func (r *rig) end() {
	r.stop()
	<-r.ended
}

func (r *rig) collector(address string) *collector.Collector {
	r.at[address] = pipes.Listen()
	return collector.Serve(r, r.at[address])
}

func (r *rig) offer(n int) {
	for i := range n {
		r.e.Offer(span(i))
	}
}

func span(i int) *spans.Span {
	return &spans.Span{Trace: [16]byte{1}, ID: [8]byte{byte(i >> 8), byte(i), 1}, Name: "GET", Start: time.Now(), End: time.Now(),
		Attrs: []spans.Attr{{Key: "url.path", Text: "/a"}, {Key: "http.response.status_code", Number: 200}}}
}

// want compares the counters: exported, then dropped by reason.
func (r *rig) want(exported int, dropped string) {
	r.Helper()
	all, err := r.registry.Gather()
	if err != nil {
		r.Fatal(err)
	}
	var drops []string
	for _, why := range []string{"queue_full", "export_failed", "rejected", "no_collector"} {
		if n := all["heddle_spans_dropped_total,reason="+why]; n > 0 {
			drops = append(drops, fmt.Sprintf("%s=%v", why, n))
		}
	}
	if got := strings.Join(drops, " "); int(all["heddle_spans_exported_total"]) != exported || got != dropped {
		r.Errorf("exported %v, dropped %q; want %d, %q", all["heddle_spans_exported_total"], got, exported, dropped)
	}
}

// wait lets the bubble's time pass.
func (r *rig) wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func inBubble(t *testing.T, name string, f func(r *rig)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(newRig(t)) })
	})
}

func TestBatches(t *testing.T) {
	inBubble(t, "a batch leaves when it is full, the rest a second later", func(r *rig) {
		c := r.collector("a:4317")
		r.e.SetCollector("a:4317")
		synctest.Wait()
		r.offer(600)
		synctest.Wait()
		if n := len(c.Spans()); n != 512 {
			r.Errorf("%d spans at once, want a full batch", n)
		}
		r.wait(time.Second)
		if n := len(c.Spans()); n != 600 || c.Calls() != 2 {
			r.Errorf("%d spans in %d calls", n, c.Calls())
		}
		r.want(600, "")
		s := c.Spans()[599]
		if s.Name != "GET" || s.Attr("url.path") != "/a" || s.Attr("http.response.status_code") != "200" ||
			s.Resource["service.name"] != "orders" || s.ParentSpanId != nil {
			r.Errorf("got %v of %v", s.Span, s.Resource)
		}
	})
	inBubble(t, "what is left is sent at the end", func(r *rig) {
		c := r.collector("a:4317")
		r.e.SetCollector("a:4317")
		synctest.Wait()
		r.offer(700)
		r.end()
		if n := len(c.Spans()); n != 700 {
			r.Errorf("%d spans, want all", n)
		}
		r.want(700, "")
	})
}

func TestSpanArrivesWhole(t *testing.T) {
	// The mesh's settings decide, not the environment.
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://elsewhere:1")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "false")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,x=y")
	start := time.Unix(1, 2)
	for name, c := range map[string]struct {
		span spans.Span
		want string
	}{
		"client": {spans.Span{Parent: [8]byte{9}, State: "a=1,b=2", Kind: spans.Client, Failed: true, Detail: "no_endpoint"},
			"parent 0900000000000000 state a=1,b=2 SPAN_KIND_CLIENT STATUS_CODE_ERROR no_endpoint flags 301"},
		"server":                       {spans.Span{Kind: spans.Server}, "parent  state  SPAN_KIND_SERVER STATUS_CODE_UNSET  flags 101"},
		"a state that the SDK refuses": {spans.Span{State: "1a=1"}, "parent  state  SPAN_KIND_SERVER STATUS_CODE_UNSET  flags 101"},
	} {
		inBubble(t, name, func(r *rig) {
			got := r.collector("a:4317")
			r.e.SetCollector("a:4317")
			synctest.Wait()
			c.span.Trace, c.span.ID, c.span.Name, c.span.Start, c.span.End = [16]byte{1}, [8]byte{2}, "GET", start, start.Add(5)
			r.e.Offer(&c.span)
			r.end()
			if len(got.Spans()) != 1 {
				r.Fatalf("%d spans", len(got.Spans()))
			}
			s := got.Spans()[0]
			text := fmt.Sprintf("parent %x state %s %v %v %s flags %x", s.ParentSpanId, s.TraceState, s.Kind, s.Status.GetCode(), s.Status.GetMessage(), s.Flags)
			if text != c.want || s.Name != "GET" || s.StartTimeUnixNano != 1e9+2 || s.EndTimeUnixNano != 1e9+7 {
				r.Errorf("got %s of %v", text, s)
			}
			want := map[string]string{"service.name": "orders", "service.namespace": "shop", "service.version": "7",
				"service.instance.id": "u-1", "k8s.namespace.name": "shop", "k8s.pod.name": "orders-1", "k8s.pod.uid": "u-1",
				"telemetry.sdk.name": "heddle", "telemetry.sdk.language": "go", "telemetry.sdk.version": "v1"}
			if !maps.Equal(s.Resource, want) {
				r.Errorf("resource %v, want %v", s.Resource, want)
			}
		})
	}
}

func TestCollectorChanges(t *testing.T) {
	inBubble(t, "at run time", func(r *rig) {
		a, b := r.collector("a:4317"), r.collector("b:4317")
		r.offer(1) // there is none yet
		for i, to := range []string{"a:4317", "b:4317", "a:4317", ""} {
			r.e.SetCollector(to)
			synctest.Wait()
			r.offer(i + 1)
			r.wait(time.Second)
		}
		if len(a.Spans()) != 1+3 || len(b.Spans()) != 2 {
			r.Errorf("a got %d and b %d spans", len(a.Spans()), len(b.Spans()))
		}
		r.want(6, "no_collector=5")
	})
	inBubble(t, "what waits when tracing is turned off is dropped", func(r *rig) {
		c := r.collector("a:4317")
		r.e.SetCollector("a:4317")
		synctest.Wait()
		r.offer(3)
		synctest.Wait()
		r.e.SetCollector("")
		r.wait(2 * time.Second)
		if len(c.Spans()) != 0 {
			r.Errorf("%d spans sent", len(c.Spans()))
		}
		r.want(0, "no_collector=3")
	})
}

func TestTrouble(t *testing.T) {
	inBubble(t, "nobody answers: offering never waits, the queue is bounded, batches are given up", func(r *rig) {
		r.e.SetCollector("nowhere:4317")
		synctest.Wait()
		began := time.Now()
		r.offer(5000)
		if d := time.Since(began); d != 0 {
			r.Errorf("offering took %v", d)
		}
		r.wait(2 * time.Minute)
		all, _ := r.registry.Gather()
		full, failed := all["heddle_spans_dropped_total,reason=queue_full"], all["heddle_spans_dropped_total,reason=export_failed"]
		if full+failed != 5000 || full < 5000-2048-512-1 {
			r.Errorf("dropped %v for a full queue and %v that could not be sent", full, failed)
		}
	})
	inBubble(t, "and at the end it is not waited for longer than three seconds", func(r *rig) {
		r.e.SetCollector("nowhere:4317")
		synctest.Wait()
		r.offer(2000)
		began := time.Now()
		r.end()
		if d := time.Since(began); d > 3*time.Second {
			r.Errorf("took %v", d)
		}
		r.want(0, "export_failed=2000")
	})
	inBubble(t, "a collector that is busy is asked again", func(r *rig) {
		c := r.collector("a:4317")
		c.Answer(func(call, _ int) (int, codes.Code) {
			return 0, []codes.Code{codes.Unavailable, codes.Unavailable, codes.OK}[min(call, 2)]
		})
		r.e.SetCollector("a:4317")
		r.wait(0)
		r.offer(10)
		r.wait(5 * time.Second)
		if c.Calls() != 3 {
			r.Errorf("%d calls", c.Calls())
		}
		r.want(10, "")
	})
	inBubble(t, "one that says never is not", func(r *rig) {
		c := r.collector("a:4317")
		c.Answer(func(call, _ int) (int, codes.Code) { return 0, codes.InvalidArgument })
		r.e.SetCollector("a:4317")
		r.wait(0)
		r.offer(10)
		r.wait(5 * time.Second)
		if c.Calls() != 1 {
			r.Errorf("%d calls", c.Calls())
		}
		r.want(0, "export_failed=10")
	})
	for what, listen := range map[string]func(r *rig){
		"one that cannot be connected to": func(r *rig) { r.at["a:4317"] = pipes.Listen() },
		"one that never answers": func(r *rig) {
			stuck := make(chan struct{})
			r.Cleanup(func() { close(stuck) })
			r.collector("a:4317").Answer(func(int, int) (int, codes.Code) { <-stuck; return 0, codes.OK })
		},
	} {
		inBubble(t, what+" holds a batch for 15 seconds", func(r *rig) {
			listen(r)
			r.e.SetCollector("a:4317")
			r.wait(0)
			r.offer(10)
			r.wait(15 * time.Second)
			r.want(0, "")
			r.wait(2 * time.Second)
			r.want(0, "export_failed=10")
		})
	}
	inBubble(t, "what it rejects is counted", func(r *rig) {
		c := r.collector("a:4317")
		c.Answer(func(int, int) (int, codes.Code) { return 4, codes.OK })
		r.e.SetCollector("a:4317")
		r.wait(0)
		r.offer(10)
		r.wait(5 * time.Second)
		r.want(6, "rejected=4")
	})
	inBubble(t, "a collector that comes back is found", func(r *rig) {
		r.e.SetCollector("a:4317")
		r.wait(0)
		r.offer(1)
		r.wait(20 * time.Second)
		c := r.collector("a:4317")
		r.wait(20 * time.Second) // gRPC's own wait before it connects again
		r.offer(2)
		r.wait(2 * time.Second)
		if len(c.Spans()) != 2 {
			r.Errorf("%d spans", len(c.Spans()))
		}
		r.want(2, "export_failed=1")
	})
	inBubble(t, "a text that is no UTF-8 spoils nothing", func(r *rig) {
		c := r.collector("a:4317")
		r.e.SetCollector("a:4317")
		r.wait(0)
		s := span(1)
		s.Attrs[0].Text, s.State, s.Name = "/\xff", "a=\xff", "\xff"
		r.e.Offer(s)
		r.wait(2 * time.Second)
		if got := c.Spans(); len(got) != 1 || got[0].Attr("url.path") != "/\uFFFD" {
			r.Errorf("got %v", got)
		}
	})
}
