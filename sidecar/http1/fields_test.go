package http1

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
)

// adding is a Backend that wants fields on each attempt, and whose first
// connection is dead.
type adding struct {
	*rig
	n int
}

func (a *adding) Open(ctx context.Context, req *Head, try Try) (*Conn, error) {
	a.n++
	c, err := a.rig.Open(ctx, req, try)
	if err != nil {
		return nil, err
	}
	c.Fields = fmt.Appendf(nil, "traceparent: new-%d\r\ntracestate: t\r\n", a.n)
	if try.N == 0 {
		c.Conn.(*net.TCPConn).CloseRead()
		c.Conn.(*net.TCPConn).CloseWrite()
		c.Reused = true
	}
	return c, nil
}

// What Open adds belongs to one attempt, and takes the place of what the
// client sent under the same names.
func TestFieldsOfAttempt(t *testing.T) {
	var seen safeBuffer
	r := newRig(t, Config{Backend: &adding{}}, script(ok2, true, &seen))
	got := r.say("GET / HTTP/1.1\r\nHost: a\r\nTraceParent: old\r\nTraceparentX: kept\r\ntracestate: a=b\r\ntracestate: c=d\r\nX: y\r\n\r\n", nil)
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Fatalf("client got %q", got)
	}
	const want = "GET / HTTP/1.1\r\nHost: a\r\nTraceparentX: kept\r\nX: y\r\ntraceparent: new-2\r\ntracestate: t\r\n\r\n"
	if s := seen.String(); s != want {
		t.Errorf("endpoint got %q, want %q", s, want)
	}
}
