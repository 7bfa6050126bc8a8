package trace

import (
	"encoding/hex"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry/spans"
	"github.com/heddle-mesh/heddle/sidecar/http1"
)

const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	parentID = "b7ad6b7169203331"
	good     = "00-" + traceID + "-" + parentID + "-"
)

func head(t testing.TB, fields ...string) *http1.Head {
	t.Helper()
	text := "GET /a/b?secret=1 HTTP/1.1\r\nHost: orders.shop:8080\r\n"
	for _, f := range fields {
		text += f + "\r\n"
	}
	h := &http1.Head{}
	h.Reset()
	if done, err := h.ParseRequest([]byte(text + "\r\n")); !done || err != nil {
		t.Fatal(done, err)
	}
	return h
}

// tracer gives a Tracer that is on and what it hands over.
func tracer(ratio float64) (*Tracer, *[]*spans.Span) {
	out := &[]*spans.Span{}
	t := New(func(s *spans.Span) { *out = append(*out, s) })
	t.Set(true, ratio)
	return t, out
}

// went runs a request with these fields through a client side and says what
// goes on: "same" (as it came), or TRACE-PARENT-FLAGS, each "same", "new" or as
// it is, and tracestate if it is replaced.
func went(t *testing.T, ratio float64, fields ...string) string {
	t.Helper()
	tr, out := tracer(ratio)
	r := tr.Client()
	r.Begin(head(t, fields...))
	r.Start(Hop{})
	text := string(r.Fields())
	r.End(Result{Status: 200})
	r.Done()
	if text == "" {
		if len(*out) > 0 {
			t.Error("a span of a request that goes on as it came")
		}
		return "same"
	}
	line, rest, _ := strings.Cut(text, "\r\n")
	name, value, _ := strings.Cut(line, ": ")
	c, ok := parseParent([]byte(value))
	if name != fieldParent || !ok || value != strings.ToLower(value) {
		t.Fatalf("wrote %q", text)
	}
	if c.sampled() != (len(*out) == 1) {
		t.Errorf("%d spans, and the request says %q", len(*out), value)
	}
	if c.sampled() {
		s := (*out)[0]
		if s.Trace != c.trace || s.ID != c.parent {
			t.Errorf("span %x of %x is not what %q names", s.ID, s.Trace, value)
		}
		c.parent = s.Parent // what is told is whose child the span is
	}
	id, parent := hex.EncodeToString(c.trace[:]), hex.EncodeToString(c.parent[:])
	given := strings.Join(fields, " ")
	switch {
	case !strings.Contains(given, strings.TrimLeft(id, "0")):
		id = "new"
	case id == traceID:
		id = "same"
	}
	switch {
	case parent == parentID:
		parent = "same"
	case parent == "0000000000000000":
		parent = "none"
	default:
		parent = "new"
	}
	return strings.TrimSpace(fmt.Sprintf("%s-%s-%02x %s", id, parent, c.flags, strings.TrimSpace(strings.ReplaceAll(rest, "\r\n", " "))))
}

// The cases of W3C Trace Context (3.2, 3.3, 4.3 and its test suite).
func TestW3C(t *testing.T) {
	member := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("k%d=v", i))
		}
		return strings.Join(all, ",")
	}
	for _, tt := range []struct {
		name   string
		fields []string
		want   string
	}{
		{"none", nil, "new-none-01"},
		{"sampled", []string{"traceparent: " + good + "01"}, "same-same-01"},
		{"name in other case", []string{"TraceParent: " + good + "01"}, "same-same-01"},
		{"space around", []string{"traceparent: \t" + good + "01  "}, "same-same-01"},
		{"not sampled", []string{"traceparent: " + good + "00"}, "same"},
		{"not sampled, with state", []string{"traceparent: " + good + "00", "tracestate: a=1"}, "same"},
		{"random flag is kept", []string{"traceparent: " + good + "03"}, "same-same-03"},
		{"unknown flags are not", []string{"traceparent: " + good + "ff"}, "same-same-03"},
		{"unknown flags, not sampled", []string{"traceparent: " + good + "fc"}, "same"},
		{"version ff", []string{"traceparent: ff-" + traceID + "-" + parentID + "-01"}, "new-none-01"},
		{"later version", []string{"traceparent: cc-" + traceID + "-" + parentID + "-01"}, "same-same-01"},
		{"later version with more", []string{"traceparent: cc-" + traceID + "-" + parentID + "-01-what-the-future"}, "same-same-01"},
		{"later version with more, no dash", []string{"traceparent: cc-" + traceID + "-" + parentID + "-01.x"}, "new-none-01"},
		{"version 00 with more", []string{"traceparent: " + good + "01-x"}, "new-none-01"},
		{"version 00 with a dash more", []string{"traceparent: " + good + "01-"}, "new-none-01"},
		{"twice", []string{"traceparent: " + good + "01", "traceparent: " + good + "01"}, "new-none-01"},
		{"empty", []string{"traceparent:"}, "new-none-01"},
		{"upper case", []string{"traceparent: 00-" + strings.ToUpper(traceID) + "-" + parentID + "-01"}, "new-none-01"},
		{"zero trace", []string{"traceparent: 00-" + strings.Repeat("0", 32) + "-" + parentID + "-01"}, "new-none-01"},
		{"zero parent", []string{"traceparent: 00-" + traceID + "-0000000000000000-01"}, "new-none-01"},
		{"short trace", []string{"traceparent: 00-" + traceID[2:] + "-" + parentID + "-01"}, "new-none-01"},
		{"long trace", []string{"traceparent: 00-" + traceID + "00-" + parentID + "-01"}, "new-none-01"},
		{"short version", []string{"traceparent: 0-" + traceID + "-" + parentID + "-01"}, "new-none-01"},
		{"no hex in flags", []string{"traceparent: " + good + "0g"}, "new-none-01"},
		{"other separators", []string{"traceparent: 00_" + traceID + "_" + parentID + "_01"}, "new-none-01"},

		{"state goes on", []string{"traceparent: " + good + "01", "tracestate: a=1,b=2"}, "same-same-01"},
		{"state without parent", []string{"tracestate: a=1"}, "new-none-01 tracestate:"},
		{"state with a bad parent", []string{"traceparent: x", "tracestate: a=1"}, "new-none-01 tracestate:"},
		{"malformed state", []string{"traceparent: " + good + "01", "tracestate: a"}, "same-same-01 tracestate:"},
		{"state with a key twice", []string{"traceparent: " + good + "01", "tracestate: a=1", "tracestate: a=2"}, "same-same-01 tracestate:"},
		{"32 members", []string{"traceparent: " + good + "01", "tracestate: " + member(32)}, "same-same-01"},
		{"33 members", []string{"traceparent: " + good + "01", "tracestate: " + member(33)}, "same-same-01 tracestate:"},
		{"empty members", []string{"traceparent: " + good + "01", "tracestate: a=1,,b=2, ,"}, "same-same-01"},
		{"state too long", []string{"traceparent: " + good + "01", "tracestate: a=" + strings.Repeat("x", 250) + ",b=" + strings.Repeat("x", 250) + ",c=" + strings.Repeat("x", 20)}, "same-same-01 tracestate:"},
		{"tenant", []string{"traceparent: " + good + "01", "tracestate: 0t@sys=1,a/b_c-d*=~ ~"}, "same-same-01"},
		{"upper-case key", []string{"traceparent: " + good + "01", "tracestate: A=1"}, "same-same-01 tracestate:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := went(t, 1, tt.fields...); got != tt.want {
				t.Errorf("%q goes on as %q, want %q", tt.fields, got, tt.want)
			}
		})
	}
}

// What B3 says is written in W3C's words; its own fields are left alone.
func TestB3(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ratio  float64
		fields []string
		want   string
	}{
		{"single, sampled", 0, []string{"b3: " + traceID + "-" + parentID + "-1"}, "same-same-01"},
		{"single, debug", 0, []string{"b3: " + traceID + "-" + parentID + "-d"}, "same-same-01"},
		{"single, with parent", 0, []string{"b3: " + traceID + "-" + parentID + "-1-05e3ac9a4f6e3b90"}, "same-same-01"},
		{"single, not sampled", 1, []string{"b3: " + traceID + "-" + parentID + "-0"}, "same-same-00"},
		{"single, left to us: yes", 1, []string{"b3: " + traceID + "-" + parentID}, "same-same-01"},
		{"single, left to us: no", 0, []string{"b3: " + traceID + "-" + parentID}, "same-same-00"},
		{"single, deny alone", 1, []string{"b3: 0"}, "new-new-00"},
		{"single, accept alone", 0, []string{"b3: 1"}, "new-none-01"},
		{"64 bits", 1, []string{"b3: " + parentID + "-" + parentID + "-1"}, "0000000000000000" + parentID + "-same-01"},
		{"several, sampled", 0, []string{"X-B3-TraceId: " + traceID, "X-B3-SpanId: " + parentID, "X-B3-ParentSpanId: 05e3ac9a4f6e3b90", "X-B3-Sampled: 1"}, "same-same-01"},
		{"several, old word", 0, []string{"X-B3-TraceId: " + traceID, "X-B3-SpanId: " + parentID, "X-B3-Sampled: true"}, "same-same-01"},
		{"several, not sampled", 1, []string{"X-B3-TraceId: " + traceID, "X-B3-SpanId: " + parentID, "X-B3-Sampled: 0"}, "same-same-00"},
		{"several, debug", 0, []string{"X-B3-TraceId: " + traceID, "X-B3-SpanId: " + parentID, "X-B3-Flags: 1"}, "same-same-01"},
		{"several, deny alone", 1, []string{"X-B3-Sampled: 0"}, "new-new-00"},
		{"several, left to us", 1, []string{"X-B3-TraceId: " + traceID, "X-B3-SpanId: " + parentID}, "same-same-01"},
		{"several, no span", 1, []string{"X-B3-TraceId: " + traceID, "X-B3-Sampled: 0"}, "new-none-01"},
		{"single before several", 0, []string{"X-B3-Sampled: 1", "b3: " + traceID + "-" + parentID + "-0"}, "same-same-00"},
		{"W3C before both", 1, []string{"traceparent: " + good + "00", "b3: 1"}, "same"},
		{"a bad traceparent does not count", 0, []string{"traceparent: x", "b3: " + traceID + "-" + parentID + "-1"}, "same-same-01"},
		{"malformed", 1, []string{"b3: " + traceID}, "new-none-01"},
		{"malformed state", 1, []string{"b3: " + traceID + "-" + parentID + "-2"}, "new-none-01"},
		{"malformed parent", 1, []string{"b3: " + traceID + "-" + parentID + "-1-x"}, "new-none-01"},
		{"zeros", 1, []string{"b3: " + strings.Repeat("0", 32) + "-" + parentID + "-1"}, "new-none-01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := went(t, tt.ratio, tt.fields...); got != tt.want {
				t.Errorf("%q goes on as %q, want %q", tt.fields, got, tt.want)
			}
		})
	}
}

// Without a collector, and where none starts traces, requests are left alone.
func TestOff(t *testing.T) {
	tr, out := tracer(1)
	tr.Set(false, 1)
	var none *Tracer
	for name, r := range map[string]Request{"off": tr.Client(), "nil": none.Server(), "zero": {}} {
		for _, f := range [][]string{nil, {"traceparent: " + good + "01"}, {"traceparent: x", "tracestate: a=1"}, {"b3: 1"}} {
			r.Begin(head(t, f...))
			r.Start(Hop{})
			if r.Fields() != nil || r.Sampled() {
				t.Errorf("%s: %q goes on as %q", name, f, r.Fields())
			}
			r.End(Result{})
			r.Refused("s", Result{Reason: "x"}, time.Now())
			r.Cancel()
			r.Done()
		}
	}
	if len(*out) > 0 {
		t.Errorf("%d spans", len(*out))
	}
	if got := went(t, 0); got != "same" {
		t.Errorf("ratio 0 starts a trace: %s", got)
	}
}

// The ratio is kept, and the trace's ID alone decides, so that all agree.
func TestRatio(t *testing.T) {
	h := head(t)
	for _, ratio := range []float64{0.01, 0.25, 0.5, 0.99, 1, 2, math.NaN(), -1} {
		tr, out := tracer(ratio)
		r := tr.Client()
		const n = 20000
		for range n {
			r.Begin(h)
			r.Start(Hop{})
			r.End(Result{Status: 200})
			r.Done()
		}
		share := min(max(ratio, 0), 1)
		if math.IsNaN(ratio) {
			share = 0
		}
		// Six standard deviations.
		if d := math.Abs(float64(len(*out)) - n*share); d > 6*math.Sqrt(n*share*(1-share)) {
			t.Errorf("ratio %v: %d of %d", ratio, len(*out), n)
		}
		for _, s := range *out {
			if again, _ := tracer(ratio); !again.settings.Load().sample(s.Trace) {
				t.Fatalf("ratio %v: another sidecar would not sample %x", ratio, s.Trace)
			}
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[[8]byte]bool{}
	for range 10000 {
		id := newSpan()
		if id == [8]byte{} || seen[id] {
			t.Fatalf("span ID %x", id)
		}
		seen[id] = true
	}
	if a, b := newTrace(), newTrace(); a == b {
		t.Errorf("%x twice", a)
	}
}

// Each attempt is a span with the same parent and its own ID, and the request
// that is sent names it.
func TestAttempts(t *testing.T) {
	tr, out := tracer(0)
	r := tr.Client()
	h := head(t, "traceparent: "+good+"01", "tracestate: a=1")
	addr := netip.MustParseAddrPort("10.0.0.2:8080")
	attempt := func(end func()) {
		r.Begin(h)
		r.Start(Hop{Peer: "spiffe://a/b", Addr: addr, Service: "shop/orders"})
		if !strings.Contains(string(r.Fields()), hex.EncodeToString(r.span.ID[:])) {
			t.Errorf("%q does not name the span", r.Fields())
		}
		end()
	}
	attempt(func() { r.End(Result{Reason: "connect_failed"}) })
	attempt(r.Cancel) // a dead pooled connection: nothing was sent
	attempt(func() { r.End(Result{Status: 503}) })
	attempt(func() { r.End(Result{Status: 200}) })
	r.Refused("shop/orders", Result{Status: 200}, time.Now())
	r.Done()
	var got []string
	ids := map[[8]byte]bool{}
	for _, s := range *out {
		ids[s.ID] = true
		if hex.EncodeToString(s.Trace[:]) != traceID || hex.EncodeToString(s.Parent[:]) != parentID || s.State != "a=1" || s.Kind != spans.Client || s.Name != "GET" {
			t.Errorf("got %+v", s)
		}
		got = append(got, show(s))
	}
	const request = "http.request.method=GET url.path=/a/b url.scheme=http network.protocol.version=1.1 server.address=orders.shop server.port=8080 " +
		"network.peer.address=10.0.0.2 network.peer.port=8080 heddle.peer=spiffe://a/b heddle.service=shop/orders "
	want := []string{
		request + "heddle.attempt=1 heddle.reason=connect_failed error.type=connect_failed FAILED",
		request + "heddle.attempt=2 http.request.resend_count=1 heddle.retry=connect_failed http.response.status_code=503 error.type=503 FAILED",
		request + "heddle.attempt=3 http.request.resend_count=2 heddle.retry=503 http.response.status_code=200",
	}
	if len(ids) != 3 || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func show(s *spans.Span) string {
	var out []string
	for _, a := range s.Attrs {
		if a.Text != "" {
			out = append(out, a.Key+"="+a.Text)
		} else {
			out = append(out, fmt.Sprintf("%s=%d", a.Key, a.Number))
		}
	}
	if s.Failed {
		out = append(out, "FAILED")
	}
	return strings.Join(out, " ")
}

// What is refused before any attempt has a span, once.
func TestRefused(t *testing.T) {
	tr, out := tracer(1)
	r := tr.Client()
	for _, how := range []Result{{Status: 503, Reason: "no_endpoints"}, {Status: 429, Reason: "breaker_open"}} {
		r.Begin(head(t))
		r.Refused("shop/orders", how, time.Now())
		r.Refused("shop/orders", how, time.Now())
		r.Done()
	}
	if len(*out) != 2 || !strings.Contains(show((*out)[0]), "heddle.service=shop/orders http.response.status_code=503 heddle.reason=no_endpoints error.type=no_endpoints FAILED") {
		t.Errorf("got %d: %s", len(*out), show((*out)[0]))
	}
}

// A client's 4xx is an error to the client's side only.
func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		server bool
		how    Result
		failed bool
	}{
		{true, Result{Status: 200}, false}, {true, Result{Status: 404}, false}, {true, Result{Status: 500}, true},
		{true, Result{Status: 403, Reason: "access_denied", Policy: "p"}, true}, {true, Result{}, true},
		{false, Result{Status: 304}, false}, {false, Result{Status: 404}, true}, {false, Result{Status: 502}, true},
		{false, Result{Status: 200, Reason: "upstream_reset"}, true},
	} {
		tr, out := tracer(1)
		r := tr.Client()
		if tt.server {
			r = tr.Server()
		}
		r.Begin(head(t))
		r.Start(Hop{})
		if tt.server {
			r.Start(Hop{}) // an attempt more at the application is the same serving
		}
		r.End(tt.how)
		r.Done()
		if len(*out) != 1 || (*out)[0].Failed != tt.failed {
			t.Errorf("server %v, %+v: %d spans, failed %v", tt.server, tt.how, len(*out), (*out)[0].Failed)
		}
	}
}

// What a client writes can neither grow a span without bound nor leak a query.
func TestTexts(t *testing.T) {
	for target, want := range map[string]string{
		"/a?token=x":                    "url.path=/a ",
		"http://orders.shop:8080/b/c?d": "url.path=/b/c ",
		"http://orders.shop:8080":       "url.path=/ ",
		"/redirect?to=http://x/y":       "url.path=/redirect ",
		"/" + strings.Repeat("a", 5000): "url.path=/" + strings.Repeat("a", maxText-1) + " ",
		"/http://elsewhere/x":           "url.path=/http://elsewhere/x ",
		"/with#fragment":                "url.path=/with ",
	} {
		h := &http1.Head{}
		h.Reset()
		if done, err := h.ParseRequest([]byte("BREW " + target + " HTTP/1.1\r\nHost: orders.shop:8080\r\n\r\n")); !done || err != nil {
			t.Fatal(target, err)
		}
		tr, out := tracer(1)
		r := tr.Server()
		r.Begin(h)
		r.Start(Hop{})
		r.End(Result{Status: 200})
		got := show((*out)[0])
		if !strings.Contains(got, want) || !strings.HasPrefix(got, "http.request.method=_OTHER http.request.method_original=BREW ") || (*out)[0].Name != "HTTP" {
			t.Errorf("%.40s: %.200s", target, got)
		}
	}
}

// Requests that are not sampled cost no allocation.
func TestNoAllocations(t *testing.T) {
	tr, out := tracer(1e-18)
	for name, h := range map[string]*http1.Head{
		"no context":      head(t, "accept: */*", "user-agent: x"),
		"not sampled":     head(t, "traceparent: "+good+"00", "tracestate: a=1"),
		"b3, not sampled": head(t, "b3: "+traceID+"-"+parentID+"-0"),
		"malformed":       head(t, "traceparent: x", "tracestate: a=1"),
	} {
		for side, r := range map[string]Request{"client": tr.Client(), "server": tr.Server()} {
			n := testing.AllocsPerRun(1000, func() {
				r.Begin(h)
				r.Start(Hop{Peer: "spiffe://a/b"})
				_ = r.Fields()
				r.End(Result{Status: 200})
				r.Done()
			})
			if n != 0 {
				t.Errorf("%s, %s: %v allocations", name, side, n)
			}
		}
	}
	if len(*out) > 0 {
		t.Errorf("%d spans", len(*out))
	}
}

func BenchmarkUnsampled(b *testing.B) {
	tr, _ := tracer(1e-18)
	for _, tt := range []struct {
		name   string
		fields []string
	}{
		{"no context", []string{"accept: */*", "user-agent: x", "accept-encoding: gzip", "cookie: a=b", "x-request-id: 1"}},
		{"context", []string{"accept: */*", "user-agent: x", "accept-encoding: gzip", "cookie: a=b", "traceparent: " + good + "00"}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			h, r := head(b, tt.fields...), tr.Client()
			b.ReportAllocs()
			for b.Loop() {
				r.Begin(h)
				r.Start(Hop{})
				r.End(Result{Status: 200})
				r.Done()
			}
		})
	}
}
