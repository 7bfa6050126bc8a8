package http1

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/retry"
)

const browserHead = "GET /api/v1/orders/42?expand=items HTTP/1.1\r\nHost: orders.shop.svc.cluster.local\r\n" +
	"User-Agent: shop/1.2 (linux)\r\nAccept: application/json\r\nAccept-Encoding: gzip\r\nX-Request-Id: 0c1f9a\r\n" +
	"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nAuthorization: Bearer abcdefghijkl\r\n" +
	"Connection: keep-alive\r\nX-Forwarded-For: 10.1.2.3\r\nCache-Control: no-cache\r\nCookie: a=b\r\n\r\n"

// looped is a connection that says the same again and again.
type looped struct {
	text  []byte
	limit int // how many times
	at    int
	wrote int
}

func (l *looped) Read(p []byte) (int, error) {
	if l.at == 0 {
		if l.limit == 0 {
			return 0, io.EOF
		}
		l.limit--
	}
	n := copy(p, l.text[l.at:])
	l.at = (l.at + n) % len(l.text)
	return n, nil
}

func (l *looped) Write(p []byte) (int, error)      { l.wrote += len(p); return len(p), nil }
func (l *looped) Close() error                     { return nil }
func (l *looped) LocalAddr() net.Addr              { return nil }
func (l *looped) RemoteAddr() net.Addr             { return nil }
func (l *looped) SetDeadline(time.Time) error      { return nil }
func (l *looped) SetReadDeadline(time.Time) error  { return nil }
func (l *looped) SetWriteDeadline(time.Time) error { return nil }

// oneUp is a Backend with one connection that never fails.
type oneUp struct{ up *Conn }

func (b *oneUp) Open(context.Context, *Head, Try) (*Conn, error) { return b.up, nil }
func (b *oneUp) Release(c *Conn, o Outcome) {
	c.Reused = true
	c.Park()
}
func (b *oneUp) Record(*Exchange) {}

// relayed relays n requests between in-memory connections.
func relayed(request, answer string, n int) *looped { return relayedBy(nil, request, answer, n) }

func relayedBy(plan func() Plan, request, answer string, n int) *looped {
	down := &looped{text: []byte(request), limit: n}
	up := &looped{text: []byte(answer), limit: -1}
	r := NewRelay(NewConn(down, nil), Config{Backend: &oneUp{NewConn(up, nil)}, Plan: plan, Client: "10.0.0.7", Guarded: true})
	r.Serve(context.Background())
	return down
}

var cases = []struct{ name, request, answer string }{
	{"get", browserHead, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("x", 1000)},
	{"post", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("x", 1000), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
	{"chunked answer", plainGet, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
	{"long answer", plainGet, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000)},
}

// One request more costs no allocation more. Connections cost some, so what is
// compared is a thousand requests to one.
func TestNoAllocations(t *testing.T) {
	for _, tt := range cases {
		if tt.name == "post" {
			// A POST looks at the kernel's state of its connection; there is none here.
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			relayed(tt.request, tt.answer, 100) // fills the pools
			few := testing.AllocsPerRun(5, func() { relayed(tt.request, tt.answer, 1) })
			many := testing.AllocsPerRun(5, func() { relayed(tt.request, tt.answer, 1001) })
			// A collection in between empties the buffer pools: some are made anew.
			if extra := many - few; extra > perThousand {
				t.Errorf("1000 requests more allocate %v times", extra)
			}
		})
	}
	t.Run("heads", func(t *testing.T) {
		var h Head
		req, res, dst := []byte(browserHead), []byte(cases[0].answer), make([]byte, 0, 4096)
		e := codec.Edit{Client: []byte("10.0.0.7"), NoHeddle: true}
		n := testing.AllocsPerRun(100, func() {
			h.Reset()
			if done, err := h.ParseRequest(req); !done || err != nil {
				t.Fatal(done, err)
			}
			dst = h.AppendTo(dst[:0], &e)
			h.Reset()
			if done, err := h.ParseResponse(res); !done || err != nil {
				t.Fatal(done, err)
			}
			dst = h.AppendTo(dst[:0], &e)
		})
		if n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
	if w := relayed(browserHead, cases[0].answer, 10).wrote; w < 10*1000 {
		t.Errorf("the client got %d bytes: the test measures nothing", w)
	}
}

// Nor under a policy, as long as nothing has to be sent again.
func TestNoAllocationsUnderPolicy(t *testing.T) {
	compiled := retry.Compile(&wire.Retry{Attempts: 3, On: []string{"5xx", "reset"}, PerTryTimeout: &wire.Duration{Nanos: 1e9}, MaxBodyBytes: 1 << 16,
		BudgetRatio: 0.2, BudgetMinPerSecond: 10})
	budget := retry.NewBudget()
	plan := func() Plan { return Plan{Rule: compiled, Budget: budget, Timeout: time.Minute} }
	for _, tt := range cases {
		if tt.name == "post" {
			continue
		}
		relayedBy(plan, tt.request, tt.answer, 100)
		few := testing.AllocsPerRun(5, func() { relayedBy(plan, tt.request, tt.answer, 1) })
		many := testing.AllocsPerRun(5, func() { relayedBy(plan, tt.request, tt.answer, 1001) })
		if extra := many - few; extra > perThousand {
			t.Errorf("%s: 1000 requests more allocate %v times", tt.name, extra)
		}
	}
}

func BenchmarkRelay(b *testing.B) {
	for _, tt := range cases {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			relayed(tt.request, tt.answer, b.N)
		})
	}
}

func BenchmarkHead(b *testing.B) {
	b.ReportAllocs()
	var h Head
	req, dst := []byte(browserHead), make([]byte, 0, 4096)
	e := codec.Edit{Client: []byte("10.0.0.7"), NoHeddle: true}
	b.SetBytes(int64(len(req)))
	for b.Loop() {
		h.Reset()
		h.ParseRequest(req)
		dst = h.AppendTo(dst[:0], &e)
	}
	if !bytes.Contains(dst, []byte("10.0.0.7")) {
		b.Fatal("not edited")
	}
}
