package http1

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	plainGet = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	ok2      = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
)

// expect reads exactly want.
func expect(t testing.TB, c io.Reader, want string) {
	t.Helper()
	b := make([]byte, len(want))
	n, err := io.ReadFull(c, b)
	if string(b[:n]) != want {
		t.Fatalf("got %q, %v, want %q", b[:n], err, want)
	}
}

func send(t testing.TB, c io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// readHead reads up to the end of a head.
func readHead(c net.Conn) string {
	var b []byte
	one := make([]byte, 1)
	for !strings.HasSuffix(string(b), "\r\n\r\n") {
		if _, err := c.Read(one); err != nil {
			break
		}
		b = append(b, one[0])
	}
	return string(b)
}

func TestUpgrade(t *testing.T) {
	const ask = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
	const answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
	heads := make(chan string, 1)
	r := newRig(t, Config{}, func(c net.Conn) {
		heads <- readHead(c)
		io.WriteString(c, answer+"server first|")
		io.Copy(c, c)
	})
	c := r.dial()
	defer c.Close()
	send(t, c, ask+"early|") // bytes of the new protocol right behind the head
	if got, want := <-heads, "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\nConnection: Upgrade\r\n\r\n"; got != want {
		t.Errorf("endpoint got %q", got)
	}
	expect(t, c, answer+"server first|early|")
	send(t, c, "GET / HTTP/1.1\r\n\r\n") // means nothing any more
	expect(t, c, "GET / HTTP/1.1\r\n\r\n")
	c.CloseWrite()
	if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
		t.Errorf("rest %q, %v", rest, err)
	}
}

func TestUpgradeRefused(t *testing.T) {
	var seen safeBuffer
	r := newRig(t, Config{}, script(ok2, false, &seen))
	c := r.dial()
	defer c.Close()
	send(t, c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
	expect(t, c, ok2)
	send(t, c, plainGet) // still HTTP
	expect(t, c, ok2)
}

func TestConnect(t *testing.T) {
	r := newRig(t, Config{}, func(c net.Conn) {
		if h := readHead(c); strings.HasPrefix(h, "CONNECT no:1 ") {
			io.WriteString(c, "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
			return
		}
		io.WriteString(c, "HTTP/1.1 200 Connected\r\nContent-Length: 7\r\n\r\n") // a length that must not be passed on
		io.Copy(c, c)
	})
	c := r.dial()
	defer c.Close()
	send(t, c, "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n")
	expect(t, c, "HTTP/1.1 200 Connected\r\n\r\n")
	send(t, c, "tunnelled")
	expect(t, c, "tunnelled")

	d := r.dial()
	defer d.Close()
	send(t, d, "CONNECT no:1 HTTP/1.1\r\nHost: no:1\r\n\r\n")
	expect(t, d, "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
}

func TestContinue(t *testing.T) {
	const head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
	r := newRig(t, Config{}, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		io.ReadFull(c, make([]byte, 5))
		io.WriteString(c, ok2)
		readHead(c)
		io.WriteString(c, "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
		io.Copy(io.Discard, c)
	})
	c := r.dial()
	defer c.Close()
	send(t, c, head)
	expect(t, c, "HTTP/1.1 100 Continue\r\n\r\n")
	send(t, c, "hello")
	expect(t, c, ok2)
	// A final answer instead: whether the body comes is unknown, so the
	// connection ends.
	send(t, c, head)
	expect(t, c, "HTTP/1.1 417 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

// The endpoint answers before it has read the body, and goes away: the client
// gets the answer, though it is still sending.
func TestEarlyAnswer(t *testing.T) {
	const answer = "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"
	r := newRig(t, Config{}, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, answer)
		c.(*net.TCPConn).CloseWrite()
		io.CopyN(io.Discard, c, 64<<10)
	})
	c := r.dial()
	defer c.Close()
	send(t, c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
	go func() {
		b := make([]byte, 32<<10)
		for i := 0; i < 40; i++ {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	expect(t, c, answer)
}

// The endpoint answers early but reads on: it gets the whole body.
func TestFullDuplex(t *testing.T) {
	r := newRig(t, Config{}, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
		for range 3 {
			b := make([]byte, 2)
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			c.Write(b)
		}
	})
	c := r.dial()
	defer c.Close()
	send(t, c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n")
	expect(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n")
	for i := range 3 {
		send(t, c, fmt.Sprintf("%02d", i))
		expect(t, c, fmt.Sprintf("%02d", i))
	}
}

// A client that breaks off in its body must not look to the endpoint as if it
// were done.
func TestClientBreaksOff(t *testing.T) {
	ended := make(chan error, 1)
	r := newRig(t, Config{}, func(c net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err == nil {
			_, err = io.ReadAll(req.Body)
		}
		ended <- err
	})
	c := r.dial()
	send(t, c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
	c.Close()
	if err := <-ended; err == nil {
		t.Error("endpoint took the half for the whole")
	}
}

// An endpoint that breaks off in its answer must not look to the client as if
// it were done.
func TestEndpointBreaksOff(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nxyz\r\n",
	} {
		var seen safeBuffer
		r := newRig(t, Config{}, script(answer, true, &seen))
		c := r.dial()
		send(t, c, plainGet)
		if b, err := io.ReadAll(c); err == nil {
			t.Errorf("%q: client got a clean end after %q", answer, b)
		}
		c.Close()
	}
}

// A pooled connection that has died meanwhile costs nothing where sending
// again is safe, and is found out beforehand where it is not.
func TestStaleConnection(t *testing.T) {
	var conns atomic.Int32
	r := newRig(t, Config{}, func(c net.Conn) {
		conns.Add(1)
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		io.WriteString(c, ok2) // and closes, without saying so
	})
	c := r.dial()
	defer c.Close()
	for i := range 6 {
		if i%2 == 0 {
			send(t, c, plainGet)
		} else {
			send(t, c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
		}
		expect(t, c, ok2)
		deadline := time.Now().Add(5 * time.Second)
		for idle := true; idle && time.Now().Before(deadline); { // until the FIN is here
			r.mu.Lock()
			idle = len(r.idle) == 0 || r.idle[0].Alive()
			r.mu.Unlock()
		}
	}
	if n := conns.Load(); n != 6 {
		t.Errorf("%d connections for 6 requests", n)
	}
}

// A request that the endpoint may have run is not sent again.
func TestNoReplayOfPOST(t *testing.T) {
	var requests atomic.Int32
	r := newRig(t, Config{}, func(c net.Conn) {
		br := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			if requests.Add(1) == 2 {
				return // breaks off on a used connection, the request read
			}
			io.WriteString(c, ok2)
		}
	})
	c := r.dial()
	defer c.Close()
	const post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
	send(t, c, post)
	expect(t, c, ok2)
	send(t, c, post)
	expect(t, c, "HTTP/1.1 502 Bad Gateway\r\n")
	if n := requests.Load(); n != 2 {
		t.Errorf("the endpoint got %d requests", n)
	}
}

func TestHeadTooLarge(t *testing.T) {
	var seen safeBuffer
	r := newRig(t, Config{}, script(ok2, false, &seen))
	line := "X-Big: " + strings.Repeat("x", 1000) + "\r\n"
	c := r.dial()
	defer c.Close()
	send(t, c, "GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat(line, 63)+"\r\n") // just below
	expect(t, c, ok2)
	got := r.say("GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat(line, 200)+"\r\n", nil)
	if !strings.HasPrefix(got, "HTTP/1.1 431 ") || !strings.Contains(got, "x-heddle-reason: header_too_large\r\n") {
		t.Errorf("got %q", got)
	}
	got = r.say("GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("A:\r\n", 1001)+"\r\n", nil)
	if !strings.HasPrefix(got, "HTTP/1.1 431 ") {
		t.Errorf("1001 fields: got %q", got)
	}
}

func TestForwardedForAndGuard(t *testing.T) {
	var seen safeBuffer
	r := newRig(t, Config{Client: "10.0.0.7", Guarded: true, Fields: "x-heddle-client-id: spiffe://a/b\r\n"},
		script("HTTP/1.1 200 OK\r\nX-Heddle-Reason: faked\r\nContent-Length: 2\r\n\r\nok", false, &seen))
	got := r.say("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nx-forwarded-for: 2.2.2.2\r\nX_Heddle-Client-Id: forged\r\nX: y\r\n\r\n"+plainGet, nil)
	if want := ok2 + ok2; got != want {
		t.Errorf("client got %q", got)
	}
	want := "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nx-forwarded-for: 2.2.2.2, 10.0.0.7\r\nX: y\r\nx-heddle-client-id: spiffe://a/b\r\n\r\n" +
		"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.7\r\nx-heddle-client-id: spiffe://a/b\r\n\r\n"
	if seen.String() != want {
		t.Errorf("endpoint got %q", seen.String())
	}
}

func TestOwnAnswerKeepsConnection(t *testing.T) {
	r := newRig(t, Config{}, func(net.Conn) {})
	r.mu.Lock()
	r.refuse = &Fault{Status: 503, Reason: telemetry.ReasonNoEndpoints, Detail: "none"}
	r.mu.Unlock()
	c := r.dial()
	defer c.Close()
	for range 2 {
		send(t, c, plainGet)
		expect(t, c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 13\r\nx-heddle-reason: no_endpoints\r\n\r\nheddle: none\n")
	}
}

func TestDraining(t *testing.T) {
	var draining atomic.Bool
	var asked atomic.Int32
	var seen safeBuffer
	r := newRig(t, Config{Draining: func() bool { asked.Add(1); return draining.Load() }}, script(ok2, false, &seen))
	c := r.dial()
	defer c.Close()
	send(t, c, plainGet)
	expect(t, c, ok2)
	// It asks while idle, at the answer, and when idle again: draining that
	// begins before the third may close the connection, as it should.
	for deadline := time.Now().Add(5 * time.Second); asked.Load() < 3 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	draining.Store(true)
	send(t, c, plainGet)
	expect(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("then %q, %v", b, err)
	}
}

// sweeps runs a relay by hand and gives it, to be swept.
func sweeps(t *testing.T, r *rig) (*Relay, *net.TCPConn) {
	t.Helper()
	l := listen(t)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client.SetDeadline(time.Now().Add(20 * time.Second))
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	relay := NewRelay(NewConn(server, nil), r.config)
	r.wg.Go(func() { relay.Serve(context.Background()) })
	t.Cleanup(func() { client.Close() })
	return relay, client.(*net.TCPConn)
}

func (r *Relay) phase() phase { return phase(r.watch.seq.Load() & (1<<phaseBits - 1)) }

func await(t *testing.T, r *Relay, p phase) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); r.phase() != p || r.watch.seq.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("phase %d, want %d", r.phase(), p)
		}
	}
}

func TestTimeouts(t *testing.T) {
	r := newRig(t, Config{}, func(c net.Conn) { io.Copy(io.Discard, c) })
	t.Run("slow head", func(t *testing.T) {
		relay, c := sweeps(t, r)
		send(t, c, "GET / HT")
		await(t, relay, phaseHead)
		for range int(headTimeout/SweepEvery) + 1 {
			relay.Sweep()
		}
		expect(t, c, "HTTP/1.1 408 Request Timeout\r\n")
	})
	t.Run("idle", func(t *testing.T) {
		relay, c := sweeps(t, r)
		await(t, relay, phaseIdle)
		for range int(idleTimeout/SweepEvery) + 1 {
			relay.Sweep()
		}
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

// A client that goes away while it waits: a slow endpoint sees it.
func TestClientGoneIsPassedOn(t *testing.T) {
	saw := make(chan error, 1)
	r := newRig(t, Config{}, func(c net.Conn) {
		readHead(c)
		_, err := c.Read(make([]byte, 1))
		saw <- err
		io.WriteString(c, ok2)
	})
	relay, c := sweeps(t, r)
	send(t, c, plainGet)
	await(t, relay, phaseSend)
	c.CloseWrite()
	for range int(clientGoneAfter/SweepEvery) + 2 {
		relay.Sweep()
		time.Sleep(10 * time.Millisecond) // the FIN and the connection to the endpoint take a moment
	}
	if err := <-saw; err != io.EOF {
		t.Errorf("endpoint saw %v", err)
	}
	expect(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
}
