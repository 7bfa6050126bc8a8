package sidecar_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry/spans"
	"github.com/heddle-mesh/heddle/sidecar/trace"
)

// BenchmarkTwoSidecars is a request through both sidecars over loopback, with
// client and application in the same process: for profiles, not for claims.
func BenchmarkTwoSidecars(b *testing.B) {
	b.Run("untraced", func(b *testing.B) { throughBoth(b, nil) })
	b.Run("unsampled", func(b *testing.B) {
		throughBoth(b, func(string) *trace.Tracer {
			t := trace.New(func(*spans.Span) { b.Error("a span") })
			t.Set(true, 1e-18)
			return t
		})
	})
}

func throughBoth(b *testing.B, tracer func(string) *trace.Tracer) {
	const request = "GET /api/v1/orders/42 HTTP/1.1\r\nHost: orders.shop\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
	answer := "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("x", 1000)
	m := newMesh(b)
	m.tracer = tracer
	s := m.serve(serverConfig{}, func(c net.Conn) {
		buf := make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			io.WriteString(c, answer)
		}
	})
	conn := m.client(nil, http1, s.endpoint()).dial()
	conn.SetDeadline(time.Time{})
	buf := make([]byte, len(answer))
	b.ReportAllocs()
	for b.Loop() {
		io.WriteString(conn, request)
		if _, err := io.ReadFull(conn, buf); err != nil {
			b.Fatal(err)
		}
	}
}
