package message

import (
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
)

// list makes a list of lines "name: value".
func list(t testing.TB, lines ...string) *hpack.List {
	t.Helper()
	e := hpack.NewEncoder()
	b := e.Begin(nil)
	for _, s := range lines {
		i := strings.Index(s[1:], ": ") + 1
		if i < 1 && s[:2] != ": " {
			t.Fatalf("%q", s)
		}
		b = e.Append(b, s[:i], []byte(s[i+2:]), false)
	}
	l := &hpack.List{}
	if err := hpack.NewDecoder(hpack.Limits{Table: 4096, Size: 1 << 16, Fields: 1000}, Marks).Decode(b, l); err != nil {
		t.Fatal(err)
	}
	return l
}

// get is a request; more lines follow it.
func get(more ...string) []string {
	return append([]string{":method: GET", ":scheme: http", ":path: /", ":authority: a"}, more...)
}

var requests = []struct {
	name  string
	lines []string
	want  *frame.Fault
	check func(r *Request) bool
}{
	{"get", get("accept: *"), nil, func(r *Request) bool {
		return string(r.Method) == "GET" && string(r.Path) == "/" && string(r.Authority) == "a" && string(r.Scheme) == "http" && r.Length == -1 && !r.IsHead
	}},
	{"any order", []string{":path: /x", ":authority: a", ":method: HEAD", ":scheme: https"}, nil, func(r *Request) bool { return r.IsHead }},
	{"Host instead", []string{":method: GET", ":scheme: http", ":path: /", "host: b"}, nil, func(r *Request) bool { return string(r.Authority) == "b" }},
	{"Host too", get("host: A:80"), nil, nil},
	{"te, expect, length", get("te: trailers", "expect: 100-continue", "content-length: 5", "content-length: 5"), nil, func(r *Request) bool { return r.Trailers && r.Expect && r.Length == 5 }},
	{"Host too, https", []string{":method: GET", ":scheme: https", ":path: /", ":authority: a", "host: a:443"}, nil, nil},
	{"options of all", []string{":method: OPTIONS", ":scheme: http", ":path: *", ":authority: a"}, nil, nil},
	{"connect", []string{":method: CONNECT", ":authority: a:1"}, nil, func(r *Request) bool { return r.IsConnect && r.Protocol == nil }},
	{"websocket", []string{":method: CONNECT", ":protocol: websocket", ":scheme: http", ":path: /chat", ":authority: a"}, nil, func(r *Request) bool { return string(r.Protocol) == "websocket" }},
	{"value with tab and high bytes", get("x: a\tb\xff"), nil, nil},
	{"empty value", get("x: "), nil, nil},

	{"no method", []string{":scheme: http", ":path: /", ":authority: a"}, faultMissing, nil},
	{"no scheme", []string{":method: GET", ":path: /", ":authority: a"}, faultMissing, nil},
	{"no path", []string{":method: GET", ":scheme: http", ":authority: a"}, faultMissing, nil},
	{"nothing", nil, faultMissing, nil},
	{"no authority", []string{":method: GET", ":scheme: http", ":path: /"}, faultAuthority, nil},
	{"another Host", get("host: b"), faultAuthority, nil},
	{"default port of another scheme", get("host: a:443"), faultAuthority, nil},
	{"two Hosts", get("host: a", "host: a"), faultTwice, nil},
	{"method twice", append([]string{":method: GET"}, get()...), faultTwice, nil},
	{"path twice", append([]string{":path: /"}, get()...), faultTwice, nil},
	{"scheme twice", append([]string{":scheme: http"}, get()...), faultTwice, nil},
	{"authority twice", append([]string{":authority: a"}, get()...), faultTwice, nil},
	{"pseudo after others", append([]string{"x: y"}, get()...), faultOrder, nil},
	{"pseudo after known others", append([]string{"te: trailers"}, get()...), faultOrder, nil},
	{"status", append([]string{":status: 200"}, get()...), faultPseudo, nil},
	{"unknown pseudo", append([]string{":foo: bar"}, get()...), faultPseudo, nil},
	{"only a colon", append([]string{":: bar"}, get()...), faultPseudo, nil},
	{"upper-case pseudo", append([]string{":Method: GET"}, get()...), faultPseudo, nil},
	{"empty path", []string{":method: GET", ":scheme: http", ":path: ", ":authority: a"}, faultField, nil},
	{"path without slash", []string{":method: GET", ":scheme: http", ":path: x", ":authority: a"}, faultField, nil},
	{"path with a space", []string{":method: GET", ":scheme: http", ":path: /a b", ":authority: a"}, faultField, nil},
	{"path with a fragment", []string{":method: GET", ":scheme: http", ":path: /a#b", ":authority: a"}, faultField, nil},
	{"path that is a request", []string{":method: GET", ":scheme: http", ":path: / HTTP/1.1\r\nHost: b", ":authority: a"}, faultField, nil},
	{"star", []string{":method: GET", ":scheme: http", ":path: *", ":authority: a"}, faultPath, nil},
	{"method with a space", []string{":method: GET /", ":scheme: http", ":path: /", ":authority: a"}, faultField, nil},
	{"empty method", []string{":method: ", ":scheme: http", ":path: /", ":authority: a"}, faultField, nil},
	{"scheme with a path", []string{":method: GET", ":scheme: http://b/?", ":path: /", ":authority: a"}, faultField, nil},
	{"empty authority", []string{":method: GET", ":scheme: http", ":path: /", ":authority: "}, faultField, nil},
	{"authority with user", []string{":method: GET", ":scheme: http", ":path: /", ":authority: u@a"}, faultField, nil},
	{"authority with a path", []string{":method: GET", ":scheme: http", ":path: /", ":authority: a/b"}, faultField, nil},
	{"connect with path", []string{":method: CONNECT", ":path: /", ":authority: a:1"}, faultMissing, nil},
	{"connect with scheme", []string{":method: CONNECT", ":scheme: http", ":authority: a:1"}, faultMissing, nil},
	{"connect without authority", []string{":method: CONNECT", "host: a:1"}, faultMissing, nil},
	{"extended connect without path", []string{":method: CONNECT", ":protocol: websocket", ":scheme: http", ":authority: a"}, faultMissing, nil},
	{"protocol without connect", append([]string{":protocol: websocket"}, get()...), faultMissing, nil},

	{"no name", get(": x"), faultField, nil},
	{"upper-case name", get("X: y"), faultField, nil},
	{"name with a space", get("x : y"), faultField, nil},
	{"name with a colon", get("x:y: z"), faultField, nil},
	{"name with control", get("x\x00: y"), faultField, nil},
	{"name with a high byte", get("x\x80: y"), faultField, nil},
	{"value with CR", get("x: a\rb"), faultField, nil},
	{"value with LF", get("x: a\nb: c"), faultField, nil},
	{"value with NUL", get("x: a\x00b"), faultField, nil},
	{"value with DEL", get("x: a\x7fb"), faultField, nil},
	{"value begins with a space", get("x:  a"), faultField, nil},
	{"value ends with a tab", get("x: a\t"), faultField, nil},
	{"connection", get("connection: close"), faultHop, nil},
	{"keep-alive", get("keep-alive: timeout=5"), faultHop, nil},
	{"proxy-connection", get("proxy-connection: x"), faultHop, nil},
	{"transfer-encoding", get("transfer-encoding: chunked"), faultHop, nil},
	{"upgrade", get("upgrade: h2c"), faultHop, nil},
	{"te gzip", get("te: trailers, gzip"), faultHop, nil},
	{"length not a number", get("content-length: 5x"), faultField, nil},
	{"length negative", get("content-length: -1"), faultField, nil},
	{"length with plus", get("content-length: +1"), faultField, nil},
	{"length empty", get("content-length: "), faultField, nil},
	{"length too large", get("content-length: 9223372036854775808"), faultField, nil},
	{"lengths differ", get("content-length: 5", "content-length: 6"), faultLength, nil},
	{"length listed", get("content-length: 5, 5"), faultField, nil},
}

func TestRequest(t *testing.T) {
	for _, tt := range requests {
		var r Request
		fault := r.Parse(list(t, tt.lines...))
		if fault != tt.want {
			t.Errorf("%s: %v, not %v", tt.name, fault, tt.want)
			continue
		}
		if fault == nil && tt.check != nil && !tt.check(&r) {
			t.Errorf("%s: %+v", tt.name, r)
		}
		if fault != nil && (!fault.Stream || fault.Code != frame.ProtocolError) {
			t.Errorf("%s: %v", tt.name, fault)
		}
	}
}

func TestResponse(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lines  []string
		end    bool
		want   *frame.Fault
		status int
		length int64
	}{
		{"200", []string{":status: 200", "content-length: 3"}, false, nil, 200, 3},
		{"599", []string{":status: 599"}, true, nil, 599, -1},
		{"interim", []string{":status: 103", "link: x"}, false, nil, 103, -1},
		{"interim that ends", []string{":status: 103"}, true, faultInterim, 0, 0},
		{"101", []string{":status: 101"}, false, faultStatus, 0, 0},
		{"none", []string{"x: y"}, false, faultMissing, 0, 0},
		{"twice", []string{":status: 200", ":status: 200"}, false, faultTwice, 0, 0},
		{"late", []string{"x: y", ":status: 200"}, false, faultOrder, 0, 0},
		{"two digits", []string{":status: 20"}, false, faultField, 0, 0},
		{"below 100", []string{":status: 099"}, false, faultField, 0, 0},
		{"with a space", []string{":status: 20 "}, false, faultField, 0, 0},
		{"method", []string{":status: 200", ":method: GET"}, false, faultPseudo, 0, 0},
		{"unknown pseudo", []string{":status: 200", ":foo: bar"}, false, faultPseudo, 0, 0},
		{"connection", []string{":status: 200", "connection: close"}, false, faultHop, 0, 0},
		{"upper case", []string{":status: 200", "Server: x"}, false, faultField, 0, 0},
		{"lengths differ", []string{":status: 200", "content-length: 3", "content-length: 4"}, false, faultLength, 0, 0},
	} {
		var r Response
		fault := r.Parse(list(t, tt.lines...), tt.end)
		if fault != tt.want || fault == nil && (r.Status != tt.status || r.Length != tt.length || r.Interim() != (tt.status < 200)) {
			t.Errorf("%s: %v, not %v; %+v", tt.name, fault, tt.want, r)
		}
	}
}

func TestTrailers(t *testing.T) {
	for _, tt := range []struct {
		line string
		want *frame.Fault
	}{
		{"grpc-status: 0", nil},
		{"x: y", nil},
		{":status: 200", faultTrailer},
		{":path: /", faultTrailer},
		{":foo: x", faultTrailer},
		{"content-length: 3", faultTrailer},
		{"host: a", faultTrailer},
		{"connection: close", faultHop},
		{"transfer-encoding: chunked", faultHop},
		{"X: y", faultField},
		{"x: a\nb", faultField},
	} {
		if fault := Trailers(list(t, tt.line)); fault != tt.want {
			t.Errorf("%s: %v, not %v", tt.line, fault, tt.want)
		}
	}
}

func TestBody(t *testing.T) {
	for _, tt := range []struct {
		name  string
		body  Body
		data  []int
		fault *frame.Fault
	}{
		{"as declared", (&Request{Length: 5}).Body(), []int{2, 0, 3}, nil},
		{"none declared", (&Request{Length: -1}).Body(), []int{1 << 30}, nil},
		{"none at all", (&Request{Length: -1}).Body(), nil, nil},
		{"too long", (&Request{Length: 5}).Body(), []int{2, 4}, faultBody},
		{"too short", (&Request{Length: 5}).Body(), []int{4}, faultBody},
		{"missing", (&Request{Length: 5}).Body(), nil, faultBody},
		{"tunnel", (&Request{Length: 5, IsConnect: true}).Body(), []int{7}, nil},
		{"to HEAD", (&Response{200, 5}).Body(&Request{IsHead: true}), nil, nil},
		{"to HEAD, with body", (&Response{200, 5}).Body(&Request{IsHead: true}), []int{5}, faultBody},
		{"304", (&Response{304, 5}).Body(&Request{}), nil, nil},
		{"204 with body", (&Response{204, -1}).Body(&Request{}), []int{1}, faultBody},
		{"200", (&Response{200, 5}).Body(&Request{}), []int{5}, nil},
		{"200 cut", (&Response{200, 5}).Body(&Request{}), []int{3}, faultBody},
		{"tunnel's answer", (&Response{200, 5}).Body(&Request{IsConnect: true}), []int{7}, nil},
		{"tunnel refused", (&Response{403, 5}).Body(&Request{IsConnect: true}), []int{7}, faultBody},
	} {
		var fault *frame.Fault
		for _, n := range tt.data {
			if fault == nil {
				fault = tt.body.Take(n)
			}
		}
		if fault == nil {
			fault = tt.body.End()
		}
		if fault != tt.fault {
			t.Errorf("%s: %v, not %v", tt.name, fault, tt.fault)
		}
	}
}

func TestKinds(t *testing.T) {
	for line, want := range map[string]Kind{
		"x-heddle-reason: x": Heddle, "x_heddle_reason: x": Heddle, "x-heddles: x": Other, "x-heddle: x": Other,
		"cookie: a=b": Cookie, "grpc-status: 0": GRPCStatus, "x-forwarded-for: x": ForwardedFor, ":path: /": Path,
	} {
		if got := KindOf(list(t, line), 0); got != want {
			t.Errorf("%s: %d, not %d", line, got, want)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	l := list(t, get("te: trailers", "content-length: 5", "user-agent: x", "host: a")...)
	res := list(t, ":status: 200", "content-length: 5")
	n := testing.AllocsPerRun(100, func() {
		var req Request
		var r Response
		if req.Parse(l) != nil || r.Parse(res, false) != nil {
			t.Fatal("refused")
		}
		b := r.Body(&req)
		if b.Take(5) != nil || b.End() != nil {
			t.Fatal("refused")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What we take, x/net's rules for fields take too, and it cannot become two
// lines of HTTP/1.
func FuzzField(f *testing.F) {
	for _, tt := range requests {
		for _, s := range tt.lines {
			if i := strings.LastIndex(s, ": "); i > 0 {
				f.Add(s[:i], s[i+2:])
			}
		}
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		if mark([]byte(name), []byte(value))&bad != 0 {
			return
		}
		if strings.HasPrefix(name, ":") {
			if kinds[name] == Other || value == "" || strings.ContainsAny(value, " \r\n\t\x00") {
				t.Fatalf("%q: %q", name, value)
			}
			return
		}
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) || strings.ToLower(name) != name ||
			strings.Trim(value, " \t") != value {
			t.Fatalf("%q: %q", name, value)
		}
	})
}
