package sidecar_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
)

const (
	http1  = wire.Protocol_PROTOCOL_HTTP1
	opaque = wire.Protocol_PROTOCOL_TCP
	unsaid = wire.Protocol_PROTOCOL_DETECT
)

// serveHTTP makes an application of a net/http handler.
func serveHTTP(h http.HandlerFunc) func(net.Conn) {
	return func(c net.Conn) {
		l := &oneConn{c: c, done: make(chan struct{})}
		s := &http.Server{Handler: h, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				l.end()
			}
		}}
		s.Serve(l)
	}
}

// oneConn is a listener with one connection to give.
type oneConn struct {
	c     net.Conn
	given atomic.Bool
	ended atomic.Bool
	done  chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if l.given.CompareAndSwap(false, true) {
		return l.c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) end() {
	if l.ended.CompareAndSwap(false, true) {
		close(l.done)
	}
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.c.LocalAddr() }

func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Saw", r.Method+" "+r.URL.Path+" "+r.Header.Get("X-Heddle-Client-Id"))
	io.Copy(w, r.Body)
}

func TestHTTPThroughBoth(t *testing.T) {
	for _, p := range []wire.Protocol{http1, unsaid} {
		t.Run(p.String(), func(t *testing.T) {
			m := newMesh(t)
			s := m.serve(serverConfig{}, serveHTTP(echo))
			c := m.client(nil, p, s.endpoint())
			conn := c.dial()
			br := bufio.NewReader(conn)
			for i := range 3 {
				fmt.Fprintf(conn, "POST /%d HTTP/1.1\r\nHost: orders\r\nContent-Length: 5\r\nX-Heddle-Client-Id: forged\r\n\r\nhello", i)
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(res.Body)
				if want := fmt.Sprintf("POST /%d %s", i, clientID); res.StatusCode != 200 || string(body) != "hello" || res.Header.Get("X-Saw") != want {
					t.Fatalf("got %d %q %v, want 200, hello and %q", res.StatusCode, body, res.Header, want)
				}
			}
			eventually(t, "3 requests counted outbound", func() bool {
				return metric(t, c.metrics, "heddle_requests_total", "direction=outbound", "code=2xx", "peer="+serverID, "service=shop/orders", "tls=true") == 3
			})
			eventually(t, "3 requests counted inbound", func() bool {
				return metric(t, s.metrics, "heddle_requests_total", "direction=inbound", "code=2xx", "peer="+clientID, "tls=true") == 3
			})
			if n := metric(t, s.metrics, "heddle_handshakes_total", "result=ok"); n != 1 {
				t.Errorf("%v handshakes for one connection's requests", n)
			}
		})
	}
}

func get(t testing.TB, c *client) (int, string, http.Header) {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(ask(t, c.dial(), "GET / HTTP/1.1\r\nHost: orders\r\n\r\n"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body), res.Header
}

func TestNoEndpoint(t *testing.T) {
	m := newMesh(t)
	c := m.client(nil, http1)
	if status, _, h := get(t, c); status != 503 || h.Get("X-Heddle-Reason") != "no_endpoints" {
		t.Errorf("got %d %v", status, h)
	}
}

// A dead endpoint, and one whose application is gone but whose sidecar is
// not: another one serves the request.
func TestOtherEndpoint(t *testing.T) {
	for _, p := range []wire.Protocol{http1, opaque} {
		t.Run(p.String(), func(t *testing.T) {
			m := newMesh(t)
			good := m.serve(serverConfig{pod: "10.0.0.2:80"}, serveHTTP(echo))
			noApp := m.serve(serverConfig{pod: "10.0.0.3:80"}, nil)
			dead := m.serve(serverConfig{pod: "10.0.0.4:80"}, nil)
			m.route(dead.pod, "")
			for range 8 { // whichever is picked first
				c := m.client(nil, p, good.endpoint(), noApp.endpoint(), dead.endpoint())
				if status, body, h := get(t, c); status != 200 {
					t.Fatalf("got %d %q %v", status, body, h)
				}
			}
			c := m.client(nil, p, noApp.endpoint())
			if p == opaque {
				wantReset(t, c.refused())
			} else if status, _, h := get(t, c); status != 503 || h.Get("X-Heddle-Reason") != "connect_failed" {
				t.Errorf("only a dead one: got %d %v", status, h)
			}
		})
	}
}

// The last known endpoint is gone, and the news of its successor comes while a
// request looks for one: the request is served.
func TestSuccessor(t *testing.T) {
	for _, p := range []wire.Protocol{http1, opaque} {
		t.Run(p.String(), func(t *testing.T) {
			m := newMesh(t)
			good := m.serve(serverConfig{pod: "10.0.0.2:80"}, serveHTTP(echo))
			noApp := m.serve(serverConfig{pod: "10.0.0.3:80"}, nil)
			c := m.client(nil, p, noApp.endpoint())
			time.AfterFunc(30*time.Millisecond, func() { c.entry.set(p, good.endpoint()) })
			if status, body, h := get(t, c); status != 200 {
				t.Errorf("got %d %q %v", status, body, h)
			}
		})
	}
}

func wantReset(t testing.TB, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("ended with %v, want a reset", err)
	}
}
