package http2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// mesh is a relay before some endpoints, all on loopback.
type mesh struct {
	t         *testing.T
	addr      string
	config    Config
	wait      bool // nothing is at hand: Await is asked
	sidecar   bool
	within    time.Duration // Exchange.By
	chunk     int           // most bytes that one read gives; 0: all
	ctx       context.Context
	wg        sync.WaitGroup
	endpoints []string

	mu       sync.Mutex
	ups      map[string]*Upstream
	next     int
	outcomes []Outcome
	records  []string
	relays   []*Relay
	dialled  int
	ends     []string // why connections of clients ended before their time
}

// newMesh begins a relay that spreads requests over the endpoints in turn.
func newMesh(t *testing.T, adapt func(m *mesh), endpoints ...string) *mesh {
	ctx, cancel := context.WithCancel(context.Background())
	m := &mesh{t: t, ctx: ctx, endpoints: endpoints, ups: map[string]*Upstream{}}
	if adapt != nil {
		adapt(m)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.addr = l.Addr().String()
	m.config.Backend = m
	m.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := NewRelay(m.cut(c), nil, m.config)
			m.mu.Lock()
			m.relays = append(m.relays, r)
			m.mu.Unlock()
			m.wg.Go(func() {
				if err := r.Serve(ctx); err != nil && ctx.Err() == nil {
					m.mu.Lock()
					m.ends = append(m.ends, err.Error())
					m.mu.Unlock()
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		m.wg.Wait()
	})
	return m
}

// slow gives few bytes at once, so that frames come in pieces.
type slow struct {
	net.Conn
	most int
}

func (s slow) Read(b []byte) (int, error) { return s.Conn.Read(b[:min(len(b), s.most)]) }

func (m *mesh) cut(c net.Conn) net.Conn {
	if m.chunk > 0 {
		return slow{c, m.chunk}
	}
	return c
}

func (m *mesh) Open(x *Exchange) (*Upstream, error) {
	if m.within > 0 {
		x.By = x.Start.Add(m.within)
	}
	if m.wait {
		return nil, ErrWait
	}
	return m.pick()
}

func (m *mesh) Await(_ context.Context, x *Exchange) (*Upstream, error) { return m.pick() }

func (m *mesh) pick() (*Upstream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range m.endpoints {
		addr := m.endpoints[m.next%len(m.endpoints)]
		m.next++
		u := m.ups[addr]
		if u == nil || !u.Usable() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				continue
			}
			m.dialled++
			u = NewUpstream(m.cut(c), UpstreamConfig{Sidecar: m.sidecar})
			m.ups[addr] = u
			m.wg.Go(func() { u.Serve(m.ctx) })
		}
		return u, nil
	}
	return nil, errors.New("none")
}

func (m *mesh) Release(x *Exchange, up *Upstream, o Outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outcomes = append(m.outcomes, o)
}

func (m *mesh) Record(x *Exchange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = append(m.records, fmt.Sprintf("%d %s %v %d %d", x.Status, x.Reason, x.Replayed, x.Received, x.Sent))
}

// recorded waits for the n-th record.
func (m *mesh) recorded(n int) []string {
	m.t.Helper()
	deadline := time.After(5 * time.Second)
	for {
		m.mu.Lock()
		r := m.records
		m.mu.Unlock()
		if len(r) >= n {
			return r
		}
		select {
		case <-deadline:
			m.t.Fatalf("%d records of %d: %q", len(r), n, r)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// serve begins a server of net/http that speaks HTTP/2.
func serve(t *testing.T, h http.HandlerFunc) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Protocols: new(http.Protocols), Handler: h}
	s.Protocols.SetUnencryptedHTTP2(true)
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

func newClient(t *testing.T) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Trailer", "X-Sum")
	w.Header().Set("X-Heddle-Reason", "forged")
	w.Header().Set("X-Seen", fmt.Sprint(r.Host, " ", r.Header["X-Forwarded-For"], r.Header["X-Heddle-Client-Id"], r.Trailer))
	fmt.Fprintf(w, "%s %s ", r.Method, r.URL)
	w.Write(b)
	w.Header().Set("X-Sum", fmt.Sprint(len(b)))
}

// What goes through comes out, in whatever pieces.
func TestRelays(t *testing.T) {
	for _, chunk := range []int{0, 1, 7, 1000} {
		for _, wait := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d,%v", chunk, wait), func(t *testing.T) {
				m := newMesh(t, func(m *mesh) {
					m.chunk, m.wait = chunk, wait
					m.config = Config{Client: "192.0.2.1", Guarded: true, Fields: []Field{{"x-heddle-client-id", "spiffe://a/b"}}}
				}, serve(t, echo))
				c := newClient(t)
				sizes := []int{0, 5, 70000, 1 << 20}
				if chunk == 1 || chunk == 7 {
					sizes = sizes[:3]
				}
				for _, size := range sizes {
					for _, trailer := range []bool{false, true} {
						if size == 0 && trailer {
							continue // Go's client does not send trailers without a body
						}
						body := strings.Repeat("0123456789abcdef", size/16+1)[:size]
						req, _ := http.NewRequest("POST", "http://"+m.addr+"/x?y", strings.NewReader(body))
						req.Header.Set("X-Heddle-Client-Id", "forged")
						req.Header.Set("X-Forwarded-For", "198.51.100.7")
						want := m.addr + " [198.51.100.7, 192.0.2.1] [spiffe://a/b] map[]"
						if trailer {
							req.ContentLength = -1
							req.Trailer = http.Header{"X-End": {"1"}}
							want = strings.Replace(want, "map[]", "map[X-End:[1]]", 1)
						}
						res, err := c.Do(req)
						if err != nil {
							t.Fatal(size, trailer, err)
						}
						got, err := io.ReadAll(res.Body)
						if err != nil || string(got) != "POST /x?y "+body {
							t.Fatalf("%d %v: %v, %d bytes", size, trailer, err, len(got))
						}
						if res.Trailer.Get("X-Sum") != fmt.Sprint(size) || res.Header.Get("X-Seen") != want || res.Header["X-Heddle-Reason"] != nil {
							t.Fatalf("%v %q %v", res.Trailer, res.Header.Get("X-Seen"), res.Header["X-Heddle-Reason"])
						}
					}
				}
				for _, r := range m.recorded(2*len(sizes) - 1) {
					if !strings.HasPrefix(r, "200  false ") {
						t.Error(r)
					}
				}
			})
		}
	}
}

// The requests of one client connection are spread one by one, and many at once
// are served.
func TestBalancesRequests(t *testing.T) {
	var hits [3]atomic.Int32
	var addrs []string
	for i := range hits {
		addrs = append(addrs, serve(t, func(w http.ResponseWriter, r *http.Request) {
			hits[i].Add(1)
			io.Copy(w, r.Body)
		}))
	}
	m := newMesh(t, nil, addrs...)
	c := newClient(t)
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			want := bytes.Repeat([]byte{byte(i)}, i*100)
			res, err := c.Post("http://"+m.addr+"/", "", bytes.NewReader(want))
			if err != nil {
				t.Error(err)
				return
			}
			got, err := io.ReadAll(res.Body)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d: %v, %d bytes", i, err, len(got))
			}
		})
	}
	wg.Wait()
	for i := range hits {
		if n := hits[i].Load(); n != 100 {
			t.Errorf("endpoint %d: %d requests", i, n)
		}
	}
	if len(m.ups) != 3 {
		t.Errorf("%d connections", m.dialled)
	}
}

// HEAD, 204, 304, 1xx and errors pass as they are.
func TestKindsOfAnswers(t *testing.T) {
	m := newMesh(t, nil, serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.WriteHeader(304)
		case "/103":
			w.Header().Set("Link", "</a>")
			w.WriteHeader(103)
			w.WriteHeader(103)
			fmt.Fprint(w, "after")
		case "/abort":
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Content-Length", "5")
			fmt.Fprint(w, "hello")
		}
	}))
	c := newClient(t)
	for _, tt := range []struct {
		method, path string
		status       int
		body         string
	}{{"HEAD", "/", 200, ""}, {"GET", "/", 200, "hello"}, {"GET", "/204", 204, ""}, {"GET", "/304", 304, ""}, {"GET", "/103", 200, "after"}} {
		req, _ := http.NewRequest(tt.method, "http://"+m.addr+tt.path, nil)
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(tt, err)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != tt.status || string(b) != tt.body {
			t.Errorf("%v: %v %v %q", tt, err, res.StatusCode, b)
		}
	}
	res, err := c.Get("http://" + m.addr + "/abort")
	if err == nil {
		_, err = io.ReadAll(res.Body)
	}
	if err == nil || !strings.Contains(err.Error(), "INTERNAL_ERROR") {
		t.Error(err)
	}
}

// A client's cancel reaches the application; a stalled client does not stall the
// others on the same connections.
func TestCancelAndStall(t *testing.T) {
	gone := make(chan struct{}, 1)
	m := newMesh(t, nil, serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/wait":
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			gone <- struct{}{}
		case "/big":
			w.Write(make([]byte, 16<<20))
		default:
			fmt.Fprint(w, "ok")
		}
	}))
	c := newClient(t)
	for range 5 { // each has 4 MiB in the client, and what the relay takes
		res, err := c.Get("http://" + m.addr + "/big")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
	}
	for range 20 {
		res, err := c.Get("http://" + m.addr + "/")
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+m.addr+"/wait", nil)
	if _, err := c.Do(req); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the application has not heard of the cancel")
	}
}

// Nobody there: a clean answer, for gRPC in its words.
func TestNoEndpoint(t *testing.T) {
	m := newMesh(t, func(m *mesh) { m.wait = true }, "127.0.0.1:1")
	c := newClient(t)
	res, err := c.Get("http://" + m.addr + "/")
	if err != nil || res.StatusCode != 503 || res.Header.Get("X-Heddle-Reason") != "connect_failed" {
		t.Fatal(err, res)
	}
	req, _ := http.NewRequest("POST", "http://"+m.addr+"/svc/Method", io.MultiReader(strings.NewReader("some"), strings.NewReader("thing")))
	req.Header.Set("Content-Type", "application/grpc+proto")
	res, err = c.Do(req)
	if err != nil || res.StatusCode != 200 || res.Header.Get("Grpc-Status") != "14" {
		t.Fatal(err, res)
	}
	m.recorded(2)
}

// What takes longer than it may ends on both sides; so does all of a client
// whose connection ends.
func TestEnds(t *testing.T) {
	gone := make(chan string, 3)
	m := newMesh(t, func(m *mesh) { m.within = time.Millisecond }, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
		gone <- r.URL.Path
	}))
	c := newClient(t)
	swept := make(chan struct{})
	sweep := func(want int) {
		defer func() { swept <- struct{}{} }()
		if !poll(func() bool { r := m.served(); return r != nil && r.conn.Count() == want && m.first().Count() == want }) {
			t.Errorf("never %d requests under way", want)
			return
		}
		<-time.After(2 * time.Millisecond) // By
		m.served().Sweep()
	}
	go sweep(1)
	res, err := c.Get("http://" + m.addr + "/late")
	if err != nil || res.StatusCode != 504 || <-gone != "/late" {
		t.Fatal(err, res)
	}
	res.Body.Close()
	<-swept
	res, err = c.Get("http://" + m.addr + "/begun")
	if err != nil {
		t.Fatal(err)
	}
	go sweep(1)
	if _, err = io.ReadAll(res.Body); err == nil || <-gone != "/begun" {
		t.Fatal(err)
	}
	<-swept
	p := dialPeer(t, m.addr)
	p.ask(1, true)
	p.ask(3, false)
	first := m.first()
	until(t, "both requests are under way", func() bool { return first.Count() == 2 })
	p.c.Close()
	<-gone
	<-gone
	for _, r := range m.recorded(4)[:2] {
		if !strings.Contains(r, "upstream_timeout") {
			t.Error(r)
		}
	}
}

// first waits for the connection to the first endpoint.
func (m *mesh) first() (u *Upstream) {
	if !poll(func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		u = m.ups[m.endpoints[0]]
		return u != nil
	}) {
		panic("the first endpoint was never connected to")
	}
	return u
}

// until is poll with a name for what did not come.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !poll(ok) {
		t.Fatalf("not within ten seconds: %s", what)
	}
}

// poll looks for what no event tells of from outside, for ten seconds at most.
func poll(ok func() bool) bool {
	end := time.NewTimer(10 * time.Second)
	defer end.Stop()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-end.C:
			return false
		}
	}
	return true
}
