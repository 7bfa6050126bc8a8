package sidecar_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
)

// A probe of the node comes in without identity in strict mode: the declared
// path, or a bare connect, and nothing else.
func TestNodeProbe(t *testing.T) {
	m := newMesh(t)
	strict := func(port int, path string) *wire.InboundPolicy {
		return &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT,
			Probes:        []*wire.Probe{{Port: uint32(port), Path: path}},
			NodeAddresses: [][]byte{{127, 0, 0, 1}}}
	}
	serve := func(pod, path string, handle func(net.Conn)) *server {
		s := m.serve(serverConfig{pod: pod}, handle)
		s.in.SetPolicy(compile(strict(s.app.Addr().(*net.TCPAddr).Port, path)))
		return s
	}
	start := func(pod, path string, handle func(net.Conn)) func() *net.TCPConn {
		s := serve(pod, path, handle)
		return func() *net.TCPConn {
			c, err := net.Dial("tcp", s.front)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			t.Cleanup(func() { c.Close() })
			return c.(*net.TCPConn)
		}
	}
	dial := start("10.0.0.2:80", "/healthz", serveHTTP(echo))
	if got := ask(t, dial(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("the declared path: got %q", got)
	}
	got := ask(t, dial(), "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.Contains(got, "HTTP/1.1 403 Forbidden\r\n") || strings.Contains(got, "/secret") {
		t.Errorf("another path behind it: got %q", got)
	}

	dial = start("10.0.0.3:80", "", func(c net.Conn) { io.WriteString(c, "secret banner") })
	c := dial()
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // longer than the wait for the client
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("a bare connect: %d bytes, %v", n, err)
	}
	c = dial()
	io.WriteString(c, "anything")
	_, err := io.ReadAll(c)
	wantReset(t, err)

	dead, err := net.Dial("tcp", serve("10.0.0.4:80", "", nil).front)
	if err == nil { // else the reset was quicker than the dial
		defer dead.Close()
		_, err = io.ReadAll(dead)
	}
	wantReset(t, err) // a probe of a dead application must fail
}
