package sidecar_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Bodies stream in flat memory, both ways, over HTTP and as bytes.
func TestGiBInFlatMemory(t *testing.T) {
	size := 1 << 30
	if testing.Short() {
		size = 1 << 27
	}
	m := newMesh(t)
	block := make([]byte, 256<<10)
	download := m.serve(serverConfig{}, serveHTTP(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			n, _ := io.CopyBuffer(io.Discard, struct{ io.Reader }{r.Body}, make([]byte, 256<<10))
			fmt.Fprint(w, n)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(size))
		for range size / len(block) {
			w.Write(block)
		}
	}))
	c := m.client(nil, http1, download.endpoint())
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		var most uint64
		for {
			var s runtime.MemStats
			runtime.ReadMemStats(&s)
			most = max(most, s.HeapInuse)
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	conn := c.dial()
	conn.SetDeadline(time.Now().Add(5 * time.Minute)) // of a slow machine under the race detector
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReaderSize(conn, 256<<10), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{res.Body}, make([]byte, 256<<10)); n != int64(size) || err != nil {
		t.Fatalf("got %d bytes, %v", n, err)
	}
	go func() {
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size)
		for range size / len(block) {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	}()
	res, err = http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res.Body); string(b) != fmt.Sprint(size) || err != nil {
		t.Fatalf("uploaded %s, %v", b, err)
	}
	close(stop)
	if most := <-peak; most > 24<<20 {
		t.Errorf("heap grew to %d MiB", most>>20)
	}
}

// Ten thousand connections, one after the other, leave neither a descriptor
// nor a goroutine behind.
func TestTenThousandConnections(t *testing.T) {
	rounds := 10000
	if testing.Short() {
		rounds = 500
	}
	m := newMesh(t)
	web := m.serve(serverConfig{pod: "10.0.0.2:80"}, serveHTTP(echo))
	tcp := m.serve(serverConfig{pod: "10.0.0.3:80"}, echoTCP)
	overHTTP, overTCP := m.client(nil, http1, web.endpoint()), m.client(nil, opaque, tcp.endpoint())
	once := func(i int) {
		c, text := overHTTP, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
		if i%4 == 0 { // each costs a handshake
			c, text = overTCP, "hello"
		}
		conn, err := net.Dial("tcp", c.front)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, text)
		conn.(*net.TCPConn).CloseWrite()
		b, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") && string(b) != "hello" {
			t.Fatalf("connection %d: got %q, %v", i, b, err)
		}
	}
	for i := range 20 {
		once(i)
	}
	settled := func() (goroutines, files int) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(list)
	}
	g0, f0 := settled()
	for i := range rounds {
		once(i)
	}
	eventually(t, "goroutines and files are as few as before", func() bool {
		g, f := settled()
		return g <= g0+4 && f <= f0+4
	})
}

// While the sidecar drains, what runs is finished and says goodbye.
func TestInboundDrain(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{}, serveHTTP(echo))
	c := m.client(nil, http1, s.endpoint())
	conn := c.dial()
	br := bufio.NewReader(conn)
	request := func() {
		t.Helper()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 200 || res.Close {
			t.Fatalf("got %v, %v", res, err)
		}
	}
	request()
	open, _ := s.flows.Count()
	if open != 1 {
		t.Fatalf("%d connections between the sidecars", open)
	}
	s.drain.Store(true)
	for range 5 { // each on a new connection to the draining sidecar, unseen by the application
		request()
	}
	eventually(t, "no connection is left at the draining sidecar", func() bool {
		open, _ := s.flows.Count()
		return open == 0
	})
}

func TestTooManyHeaders(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{}, serveHTTP(echo))
	c := m.client(nil, unsaid, s.endpoint())
	got := ask(t, c.dial(), "GET / HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("x", 70<<10)+"\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 431 ") || !strings.Contains(got, "x-heddle-reason: header_too_large") {
		t.Errorf("got %q", got)
	}
}
