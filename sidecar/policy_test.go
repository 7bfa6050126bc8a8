package sidecar_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
)

func nanos(d time.Duration) *wire.Duration { return &wire.Duration{Nanos: int64(d)} }

// apply brings a policy into force, as the stream does.
func (c *client) apply(p wire.Protocol, t *wire.TrafficPolicy, endpoints ...*wire.Endpoint) {
	c.entry.policy = t
	c.entry.set(p, endpoints...)
}

// gatewayRetries repeats what an endpoint fails, at once.
func gatewayRetries(attempts uint32) *wire.Retry {
	return &wire.Retry{Attempts: attempts, On: []string{"connect", "reset", "gateway"}, BudgetRatio: 1, BudgetMinPerSecond: 100, MaxBodyBytes: 64 << 10}
}

// shop is an application that counts the requests it serves, by their id.
type shop struct {
	mu    sync.Mutex
	saw   map[string]int
	conns atomic.Int64
	// answer gives the status for the nth time that a request comes.
	answer func(id string, n int) int
}

func newShop(answer func(id string, n int) int) *shop {
	return &shop{saw: map[string]int{}, answer: answer}
}

func always(status int) func(string, int) int { return func(string, int) int { return status } }

func (s *shop) serve(c net.Conn) {
	s.conns.Add(1)
	serveHTTP(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		s.mu.Lock()
		n := s.saw[r.URL.Path]
		s.saw[r.URL.Path]++
		s.mu.Unlock()
		w.WriteHeader(s.answer(r.URL.Path, n))
		io.WriteString(w, r.URL.Path)
	})(c)
}

func (s *shop) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.saw {
		n += k
	}
	return n
}

func (s *shop) count(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saw[id]
}

// kept is a client's connection that is used again and again.
type kept struct {
	net.Conn
	br *bufio.Reader
}

func (c *client) keep() *kept {
	conn := c.dial()
	return &kept{conn, bufio.NewReader(conn)}
}

func (k *kept) ask(method, path, body string) (int, http.Header, error) {
	fmt.Fprintf(k, "%s %s HTTP/1.1\r\nHost: orders\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
	res, err := http.ReadResponse(k.br, &http.Request{Method: method})
	if err != nil {
		return 0, nil, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Header, err
}

// A failing endpoint is retried elsewhere, so that no client sees it, and
// ejected, so that it is not asked any more.
func TestFailingEndpoint(t *testing.T) {
	m := newMesh(t)
	good1, good2, bad := newShop(always(200)), newShop(always(200)), newShop(always(503))
	s1 := m.serve(serverConfig{pod: "10.0.0.2:80"}, good1.serve)
	s2 := m.serve(serverConfig{pod: "10.0.0.3:80"}, good2.serve)
	s3 := m.serve(serverConfig{pod: "10.0.0.4:80"}, bad.serve)
	c := m.client(nil, http1)
	c.apply(http1, &wire.TrafficPolicy{
		Retry:           gatewayRetries(1),
		OutlierEjection: &wire.OutlierEjection{ConsecutiveFailures: 3, BaseEjection: nanos(time.Minute), MaxEjection: nanos(time.Minute), MaxEjectedPercent: 50},
	}, s1.endpoint(), s2.endpoint(), s3.endpoint())
	k := c.keep()
	for i := range 200 {
		if status, h, err := k.ask("GET", fmt.Sprintf("/%d", i), ""); err != nil || status != 200 {
			t.Fatalf("request %d: %d %v %v", i, status, h, err)
		}
	}
	if n := bad.total(); n != 3 {
		t.Errorf("the failing endpoint served %d requests, 3 eject it", n)
	}
	if n := good1.total() + good2.total(); n != 200 {
		t.Errorf("the good ones served %d requests", n)
	}
	for want, parts := range map[float64][]string{
		3: {"heddle_retries_total", "cause=gateway", "service=shop/orders"},
		1: {"heddle_ejections_total", "service=shop/orders"},
	} {
		if n := metric(t, c.metrics, parts...); n != want {
			t.Errorf("%v: %v", parts, n)
		}
	}
}

// A request comes to an endpoint again only where that is allowed.
func TestRetriedAsAllowed(t *testing.T) {
	firstFails := func(_ string, n int) int {
		if n == 0 {
			return 503
		}
		return 200
	}
	for _, tt := range []struct {
		name, method, body string
		retry              *wire.Retry
		status, times      int
		denied             string
	}{
		{"no policy", "GET", "", nil, 503, 1, ""},
		{"get, falls back to the only endpoint", "GET", "", gatewayRetries(1), 200, 2, ""},
		{"put with a body of more than one segment", "PUT", strings.Repeat("x", 40<<10), gatewayRetries(1), 200, 2, ""},
		{"post", "POST", "x", gatewayRetries(3), 503, 1, ""},
		{"long body", "PUT", strings.Repeat("x", 80<<10), gatewayRetries(1), 503, 1, "retry_body_too_large"},
		{"no budget", "GET", "", &wire.Retry{Attempts: 1, On: []string{"gateway"}}, 503, 1, "retry_budget_exhausted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMesh(t)
			app := newShop(firstFails)
			s := m.serve(serverConfig{}, app.serve)
			c := m.client(nil, http1)
			c.apply(http1, &wire.TrafficPolicy{Retry: tt.retry}, s.endpoint())
			status, _, err := c.keep().ask(tt.method, "/id", tt.body)
			if err != nil || status != tt.status || app.count("/id") != tt.times {
				t.Errorf("got %d %v, served %d times; want %d and %d", status, err, app.count("/id"), tt.status, tt.times)
			}
			if tt.denied != "" {
				eventually(t, "denied: "+tt.denied, func() bool {
					return metric(t, c.metrics, "heddle_retries_denied_total", "reason="+tt.denied) == 1
				})
			}
		})
	}
}

// The next request of a connection that is open goes by the newest policy.
func TestPolicyChangesNextRequest(t *testing.T) {
	m := newMesh(t)
	app := newShop(func(_ string, n int) int { return []int{503, 200}[min(n, 1)] })
	s := m.serve(serverConfig{}, app.serve)
	c := m.client(nil, http1, s.endpoint())
	k := c.keep()
	for i, tt := range []struct {
		policy *wire.TrafficPolicy
		status int
	}{{nil, 503}, {&wire.TrafficPolicy{Retry: gatewayRetries(1)}, 200}, {nil, 503}} {
		c.apply(http1, tt.policy, s.endpoint())
		if status, _, err := k.ask("GET", fmt.Sprintf("/%d", i), ""); err != nil || status != tt.status {
			t.Errorf("step %d: %d %v, want %d", i, status, err, tt.status)
		}
	}
}

// gate is an application whose requests wait until it opens.
type gate struct {
	waiting, conns atomic.Int64
	open           chan struct{}
}

func (g *gate) serve(c net.Conn) {
	g.conns.Add(1)
	serveHTTP(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // only then is it noticed that the client has gone
		g.waiting.Add(1)
		select {
		case <-g.open:
		case <-r.Context().Done():
		}
		g.waiting.Add(-1)
	})(c)
}

// ask sends a request on a connection of its own, in the background.
func (c *client) ask(out chan<- string) {
	k := c.keep()
	go func() {
		status, h, err := k.ask("GET", "/", "")
		out <- fmt.Sprint(status, " ", h.Get("X-Heddle-Reason"), " ", err)
	}()
}

func TestBreakerRequests(t *testing.T) {
	m := newMesh(t)
	g := &gate{open: make(chan struct{})}
	s := m.serve(serverConfig{}, g.serve)
	c := m.client(nil, http1)
	c.apply(http1, &wire.TrafficPolicy{CircuitBreaker: &wire.CircuitBreaker{MaxRequests: 2}}, s.endpoint())
	out := make(chan string, 8)
	c.ask(out)
	c.ask(out)
	eventually(t, "two are under way", func() bool { return g.waiting.Load() == 2 })
	for range 3 {
		c.ask(out)
		if got := <-out; got != "503 circuit_open <nil>" {
			t.Errorf("one too many: %s", got)
		}
	}
	close(g.open)
	for range 2 {
		if got := <-out; got != "200  <nil>" {
			t.Errorf("under way: %s", got)
		}
	}
	c.ask(out)
	if got := <-out; got != "200  <nil>" {
		t.Errorf("afterwards: %s", got)
	}
	if n := metric(t, c.metrics, "heddle_circuit_open_total", "limit=requests", "service=shop/orders"); n != 3 {
		t.Errorf("%v counted", n)
	}
}

func TestBreakerConnections(t *testing.T) {
	m := newMesh(t)
	g := &gate{open: make(chan struct{})}
	s := m.serve(serverConfig{}, g.serve)
	other := m.serve(serverConfig{pod: "10.0.0.3:80"}, g.serve)
	c := m.client(nil, http1)
	c.apply(http1, &wire.TrafficPolicy{CircuitBreaker: &wire.CircuitBreaker{MaxConnections: 1, MaxPending: 2}}, s.endpoint(), other.endpoint())
	out := make(chan string, 8)
	c.ask(out)
	eventually(t, "one is under way", func() bool { return g.waiting.Load() == 1 })
	waiting := func() int64 {
		_, _, n := c.entry.Load().Port(80).Breaker().Load()
		return n
	}
	c.ask(out)
	c.ask(out)
	eventually(t, "two wait", func() bool { return waiting() == 2 })
	c.ask(out)
	if got := <-out; got != "503 circuit_open <nil>" {
		t.Errorf("one too many: %s", got)
	}
	close(g.open)
	for range 3 {
		if got := <-out; got != "200  <nil>" {
			t.Errorf("got %s", got)
		}
	}
	// The idle connection serves whoever comes, whichever endpoint is picked.
	for range 10 {
		c.ask(out)
		if got := <-out; got != "200  <nil>" {
			t.Errorf("got %s", got)
		}
	}
	if n := metric(t, c.metrics, "heddle_handshakes_total", "result=ok"); n != 1 {
		t.Errorf("%v connections, one was allowed", n)
	}
	if _, n, w := c.entry.Load().Port(80).Breaker().Load(); n != 1 || w != 0 {
		t.Errorf("%d connections and %d waiting are counted", n, w)
	}
}

// A request that is not answered in time is given up on both sides, and its
// connection is not used again.
func TestRequestTimeoutThroughBoth(t *testing.T) {
	m := newMesh(t)
	g := &gate{open: make(chan struct{})}
	s := m.serve(serverConfig{}, g.serve)
	c := m.client(nil, http1)
	c.apply(http1, &wire.TrafficPolicy{Timeouts: &wire.Timeouts{Request: nanos(150 * time.Millisecond)}}, s.endpoint())
	k := c.keep()
	status, h, err := k.ask("POST", "/", "x")
	if err != nil || status != 504 || h.Get("X-Heddle-Reason") != "upstream_timeout" {
		t.Fatalf("got %d %v %v", status, h, err)
	}
	eventually(t, "the application was told", func() bool { return g.waiting.Load() == 0 })
	close(g.open)
	if status, _, err := k.ask("POST", "/", "x"); err != nil || status != 200 {
		t.Errorf("the next request: %d %v", status, err)
	}
	if n := metric(t, c.metrics, "heddle_handshakes_total", "result=ok"); n != 2 {
		t.Errorf("%v connections, want a second one", n)
	}
}

// Opaque connections: as many as allowed, tried again while nobody takes them.
func TestPolicyTCP(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{}, func(c net.Conn) { io.Copy(c, c) })
	c := m.client(nil, opaque)
	retries := gatewayRetries(8)
	retries.BackoffBase, retries.BackoffMax = nanos(100*time.Millisecond), nanos(100*time.Millisecond)
	c.apply(opaque, &wire.TrafficPolicy{Retry: retries, CircuitBreaker: &wire.CircuitBreaker{MaxConnections: 1}}, s.endpoint())
	m.route(s.pod, "") // nobody is there
	first := c.dial()
	eventually(t, "tried again", func() bool {
		return metric(t, c.metrics, "heddle_retries_total", "cause=connect") >= 1
	})
	m.route(s.pod, s.front)
	if _, err := io.WriteString(first, "hello"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(first, b); err != nil || string(b) != "hello" {
		t.Fatalf("got %q %v", b, err)
	}
	wantReset(t, c.refused())
	if n := metric(t, c.metrics, "heddle_refused_total", "reason=circuit_open"); n != 1 {
		t.Errorf("%v refused", n)
	}
	first.Close()
	eventually(t, "the place is free again", func() bool {
		_, n, _ := c.entry.Load().Port(80).Breaker().Load()
		return n == 0
	})
}

// An opaque connection that is idle for as long as the policy says is ended;
// one that is not goes on.
func TestIdleTCP(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{}, func(c net.Conn) { io.Copy(c, c) })
	c := m.client(nil, opaque)
	c.apply(opaque, &wire.TrafficPolicy{Timeouts: &wire.Timeouts{Idle: nanos(2 * time.Second)}}, s.endpoint())
	busy, idle := c.dial(), c.dial()
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for range 8 {
			io.WriteString(busy, "x")
			if _, err := io.ReadFull(busy, make([]byte, 1)); err != nil {
				t.Errorf("the busy one ended: %v", err)
				return
			}
			time.Sleep(500 * time.Millisecond) // plays a client that says something now and then
		}
	}()
	io.WriteString(idle, "x")
	_, err := io.ReadAll(idle)
	wantReset(t, err)
	<-stop
}

// An endpoint that takes no connections is ejected, too.
func TestEjectedByConnectFailures(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{pod: "10.0.0.2:80"}, newShop(always(200)).serve)
	dead := m.serve(serverConfig{pod: "10.0.0.3:80"}, nil)
	m.route(dead.pod, "")
	c := m.client(nil, http1)
	c.apply(http1, &wire.TrafficPolicy{
		OutlierEjection: &wire.OutlierEjection{ConsecutiveFailures: 1, BaseEjection: nanos(time.Minute), MaxEjection: nanos(time.Minute), MaxEjectedPercent: 50},
	}, s.endpoint(), dead.endpoint())
	k := c.keep()
	eventually(t, "ejected", func() bool {
		if status, _, err := k.ask("GET", "/", ""); err != nil || status != 200 {
			t.Fatalf("got %d %v", status, err)
		}
		return c.entry.Load().Port(80).Ejected() == 1
	})
}

// Many callers at once: the ejection comes after the failures that it takes and
// those that were under way, no later.
func TestFailingEndpointMeetsMany(t *testing.T) {
	const workers, failures = 8, 5
	m := newMesh(t)
	good, good2, bad := newShop(always(200)), newShop(always(200)), newShop(always(503))
	c := m.client(nil, http1)
	retries := gatewayRetries(2)
	retries.On = []string{"5xx"}
	c.apply(http1, &wire.TrafficPolicy{
		Retry:           retries,
		OutlierEjection: &wire.OutlierEjection{ConsecutiveFailures: failures, BaseEjection: nanos(time.Minute), MaxEjection: nanos(5 * time.Minute), MaxEjectedPercent: 50},
	}, m.serve(serverConfig{pod: "10.0.0.2:80"}, good.serve).endpoint(), m.serve(serverConfig{pod: "10.0.0.3:80"}, good2.serve).endpoint(),
		m.serve(serverConfig{pod: "10.0.0.4:80"}, bad.serve).endpoint())
	var wg sync.WaitGroup
	for w := range workers {
		k := c.keep()
		wg.Go(func() {
			for i := range 60 {
				if status, h, err := k.ask("GET", fmt.Sprintf("/%d-%d", w, i), ""); err != nil || status != 200 {
					t.Errorf("got %d %v %v", status, h, err)
				}
			}
		})
	}
	wg.Wait()
	if n := bad.total(); n < failures || n > failures+workers {
		t.Errorf("the failing endpoint served %d requests", n)
	}
	if n := good.total() + good2.total(); n != 60*workers {
		t.Errorf("the good ones served %d requests", n)
	}
}
