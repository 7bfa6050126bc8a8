package sidecar_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/meshtest/collector"
	"github.com/heddle-mesh/heddle/internal/telemetry/spans"
	"github.com/heddle-mesh/heddle/sidecar/trace"
)

const (
	callerTrace = "0af7651916cd43dd8448eb211c80319c"
	callerSpan  = "b7ad6b7169203331"
)

// traced has every sidecar of the mesh, client "web" and server "orders", send
// its spans to a collector.
func traced(t *testing.T, m *mesh, ratio float64) *collector.Collector {
	l := listen(t)
	c := collector.Serve(t, l)
	m.tracer = func(service string) *trace.Tracer {
		e := spans.New(spans.Config{Resource: spans.Resource{Service: service}, Log: m.log})
		e.SetCollector(l.Addr().String())
		m.wg.Go(func() { e.Run(m.ctx) })
		tr := trace.New(e.Offer)
		tr.Set(true, ratio)
		return tr
	}
	return c
}

// tree draws what the collector got, children under parents, as
// SERVICE:KIND STATUS REASON (attempt N after WHY).
func tree(c *collector.Collector) string {
	all := c.Spans()
	slices.SortStableFunc(all, func(a, b collector.Span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
	known := map[string]bool{}
	for _, s := range all {
		known[string(s.SpanId)] = true
	}
	var b strings.Builder
	var draw func(parent, indent string)
	draw = func(parent, indent string) {
		for _, s := range all {
			p := string(s.ParentSpanId)
			if p != parent && (parent != "" || known[p]) {
				continue
			}
			fmt.Fprintf(&b, "%s%s:%s %s", indent, s.Resource["service.name"], strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_")), s.Attr("http.response.status_code"))
			for _, k := range []string{"heddle.reason", "heddle.retry"} {
				if v := s.Attr(k); v != "" {
					fmt.Fprintf(&b, " %s=%s", k[len("heddle."):], v)
				}
			}
			if p != "" && !known[p] {
				fmt.Fprintf(&b, " (child of %s)", hex.EncodeToString(s.ParentSpanId))
			}
			b.WriteByte('\n')
			draw(string(s.SpanId), indent+"  ")
		}
	}
	draw("", "")
	return b.String()
}

func wantTree(t *testing.T, c *collector.Collector, want string) {
	t.Helper()
	want = strings.TrimLeft(want, "\n")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		got := tree(c)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("collector got\n%swant\n%s", got, want)
		}
	}
}

// request asks with these fields and gives the status.
func request(t *testing.T, c *client, fields string) string {
	t.Helper()
	return ask(t, c.dial(), "GET /orders/1 HTTP/1.1\r\nHost: orders\r\nConnection: close\r\n"+fields+"\r\n")
}

// A caller's trace goes through both sidecars and the application's own calls
// as one tree.
func TestTraceTree(t *testing.T) {
	m := newMesh(t)
	c := traced(t, m, 0)
	stock := m.serve(serverConfig{pod: "10.0.0.9:80"}, serveHTTP(echo))
	toStock := m.client(nil, http1, stock.endpoint())
	seen := make(chan http.Header, 1)
	orders := m.serve(serverConfig{}, serveHTTP(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		// What any application must do: pass the context on.
		io.WriteString(w, request(t, toStock, "traceparent: "+r.Header.Get("Traceparent")+"\r\ntracestate: "+r.Header.Get("Tracestate")+"\r\n")[:12])
	}))
	web := m.client(nil, http1, orders.endpoint())
	request(t, web, "traceparent: 00-"+callerTrace+"-"+callerSpan+"-01\r\ntracestate: shop=1\r\nb3: 0\r\n")
	wantTree(t, c, `
web:client 200 (child of b7ad6b7169203331)
  orders:server 200
    web:client 200
      orders:server 200
`)
	for _, s := range c.Spans() {
		if hex.EncodeToString(s.TraceId) != callerTrace || s.TraceState != "shop=1" || s.Status.GetCode() != 0 {
			t.Errorf("got %v", s.Span)
		}
		if peer := s.Attr("heddle.peer"); peer != map[string]string{"SPAN_KIND_CLIENT": serverID, "SPAN_KIND_SERVER": clientID}[s.Kind.String()] {
			t.Errorf("%s span names %q as its peer", s.Kind, peer)
		}
	}
	h := <-seen
	if got := h["Traceparent"]; len(got) != 1 || !strings.HasPrefix(got[0], "00-"+callerTrace) || h.Get("Tracestate") != "shop=1" || h.Get("B3") != "0" {
		t.Errorf("the application saw %v", h)
	}
}

// Each attempt is a span of its own, with the same parent; what the endpoint's
// sidecar did stands under the attempt that it was.
func TestTraceRetry(t *testing.T) {
	for range 20 { // until the one without an application is picked first
		m := newMesh(t)
		c := traced(t, m, 1)
		good := m.serve(serverConfig{pod: "10.0.0.2:80"}, serveHTTP(echo))
		noApp := m.serve(serverConfig{pod: "10.0.0.3:80"}, nil)
		request(t, m.client(nil, http1, good.endpoint(), noApp.endpoint()), "traceparent: 00-"+callerTrace+"-"+callerSpan+"-01\r\n")
		eventually(t, "both sidecars' spans", func() bool { return len(c.Spans()) >= 2 })
		if len(c.Spans()) == 2 && metric(t, noApp.metrics, "heddle_requests_total") == 0 {
			continue
		}
		wantTree(t, c, `
web:client 503 reason=connect_failed (child of b7ad6b7169203331)
  orders:server 503 reason=connect_failed
web:client 200 retry=connect_failed (child of b7ad6b7169203331)
  orders:server 200
`)
		return
	}
	t.Fatal("never picked")
}

// What a TrafficPolicy has tried again, and what it cuts off, reads the same.
func TestTracePolicy(t *testing.T) {
	with := func(t *testing.T, p *wire.TrafficPolicy, h http.HandlerFunc) *collector.Collector {
		m := newMesh(t)
		c := traced(t, m, 1)
		s := m.serve(serverConfig{}, serveHTTP(h))
		web := m.client(nil, http1)
		web.entry.policy = p
		web.entry.set(http1, s.endpoint())
		request(t, web, "traceparent: 00-"+callerTrace+"-"+callerSpan+"-01\r\n")
		return c
	}
	t.Run("retries", func(t *testing.T) {
		var n atomic.Int32
		c := with(t, &wire.TrafficPolicy{Retry: &wire.Retry{Attempts: 2, On: []string{"5xx"}, BudgetMinPerSecond: 10}}, func(w http.ResponseWriter, _ *http.Request) {
			if n.Add(1) < 3 {
				w.WriteHeader(500)
			}
		})
		wantTree(t, c, `
web:client 500 (child of b7ad6b7169203331)
  orders:server 500
web:client 500 retry=500 (child of b7ad6b7169203331)
  orders:server 500
web:client 200 retry=500 (child of b7ad6b7169203331)
  orders:server 200
`)
	})
	t.Run("timeout", func(t *testing.T) {
		c := with(t, &wire.TrafficPolicy{Timeouts: &wire.Timeouts{Request: &wire.Duration{Nanos: 50e6}}}, func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Second):
			}
		})
		eventually(t, "the attempt's span", func() bool {
			return strings.Contains(tree(c), "web:client  reason=upstream_timeout (child of b7ad6b7169203331)\n")
		})
	})
}

func TestTraceRoots(t *testing.T) {
	plain := &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_PERMISSIVE}
	t.Run("by the caller's sidecar", func(t *testing.T) {
		m := newMesh(t)
		c := traced(t, m, 1)
		s := m.serve(serverConfig{}, serveHTTP(echo))
		request(t, m.client(nil, http1, s.endpoint()), "")
		wantTree(t, c, "web:client 200\n  orders:server 200\n")
	})
	t.Run("by the server's, for callers outside the mesh", func(t *testing.T) {
		m := newMesh(t)
		c := traced(t, m, 1)
		s := m.serve(serverConfig{policy: plain}, serveHTTP(echo))
		conn, err := net.Dial("tcp", s.front)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ask(t, conn.(*net.TCPConn), "GET / HTTP/1.1\r\nHost: orders\r\nConnection: close\r\n\r\n")
		wantTree(t, c, "orders:server 200\n")
	})
	t.Run("not for the node's probes", func(t *testing.T) {
		m := newMesh(t)
		c := traced(t, m, 1)
		probed := &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_PERMISSIVE, NodeAddresses: [][]byte{{127, 0, 0, 1}}}
		s := m.serve(serverConfig{policy: probed}, serveHTTP(echo))
		probed.Probes = []*wire.Probe{{Port: uint32(s.app.Addr().(*net.TCPAddr).Port), Path: "/healthz"}}
		s.in.SetPolicy(compile(probed))
		for _, path := range []string{"/healthz", "/healthz", "/other"} {
			conn, err := net.Dial("tcp", s.front)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ask(t, conn.(*net.TCPConn), "GET "+path+" HTTP/1.1\r\nHost: orders\r\nConnection: close\r\n\r\n")
		}
		wantTree(t, c, "orders:server 200\n")
		if path := c.Spans()[0].Attr("url.path"); path != "/other" {
			t.Errorf("a span of %s", path)
		}
	})
	t.Run("refused before any attempt", func(t *testing.T) {
		m := newMesh(t)
		c := traced(t, m, 1)
		request(t, m.client(nil, http1), "")
		wantTree(t, c, "web:client 503 reason=no_endpoints\n")
	})
	t.Run("refused by the endpoint's policy", func(t *testing.T) {
		m := newMesh(t)
		c := traced(t, m, 1)
		s := m.serve(serverConfig{policy: &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT, Rules: []*wire.AccessRule{{Action: wire.AccessRule_ACTION_DENY}}}}, serveHTTP(echo))
		request(t, m.client(nil, http1, s.endpoint()), "")
		wantTree(t, c, "web:client  reason=access_denied\n")
	})
}

// A trace that is not sampled leaves no span, and says so to the application.
func TestTraceUnsampled(t *testing.T) {
	for _, tt := range []struct {
		name, fields, want string
		ratio              float64
	}{
		{"a caller's", "traceparent: 00-" + callerTrace + "-" + callerSpan + "-00\r\n", "00-" + callerTrace + "-" + callerSpan + "-00", 1},
		{"a new one", "", "-00", 1e-18},
		{"none is started", "", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMesh(t)
			c := traced(t, m, tt.ratio)
			seen := make(chan string, 1)
			s := m.serve(serverConfig{}, serveHTTP(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Get("Traceparent") }))
			request(t, m.client(nil, http1, s.endpoint()), tt.fields)
			if got := <-seen; !strings.HasSuffix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("the application saw %q, want %q", got, tt.want)
			}
			// One more that is sampled: when it is there, the other would be.
			go func() { <-seen }()
			request(t, m.client(nil, http1, s.endpoint()), "traceparent: 00-"+callerTrace+"-"+callerSpan+"-01\r\n")
			wantTree(t, c, "web:client 200 (child of b7ad6b7169203331)\n  orders:server 200\n")
		})
	}
}

// The ratio is of traces, and both sides agree: never half a trace.
func TestTraceRatio(t *testing.T) {
	m := newMesh(t)
	c := traced(t, m, 0.5)
	s := m.serve(serverConfig{}, serveHTTP(echo))
	web := m.client(nil, http1, s.endpoint())
	const n = 200
	for range n {
		request(t, web, "")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	sides := map[string]int{}
	for whole := false; !whole && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		sides, whole = map[string]int{}, true
		for _, span := range c.Spans() {
			sides[string(span.TraceId)]++
		}
		for _, k := range sides {
			whole = whole && k == 2
		}
		whole = whole && len(sides) > 0
	}
	for id, k := range sides {
		if k != 2 {
			t.Errorf("trace %x has %d spans", id, k)
		}
	}
	if len(sides) < 50 || len(sides) > 150 { // seven standard deviations
		t.Errorf("%d of %d traces", len(sides), n)
	}
}

// What a sidecar dials for itself, as it does its collector, goes over mutual
// TLS where that stands in the mesh.
func TestDialForItself(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{}, func(c net.Conn) { io.Copy(c, c) })
	out := m.client(nil, opaque, s.endpoint()).out
	c, err := out.Dial(t.Context(), vip)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "hello")
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
	eventually(t, "the other side counts a connection of ours", func() bool {
		return metric(t, s.metrics, "heddle_tcp_connections_total", "peer="+clientID, "tls=true") == 1
	})
	if _, err := out.Dial(t.Context(), netip.AddrPortFrom(vip.Addr(), 81)); err == nil {
		t.Error("a port that the Service has not: dialled")
	}
}
