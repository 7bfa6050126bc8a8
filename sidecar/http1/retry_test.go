package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/sidecar/retry"
)

// faulty is an endpoint that does with each request what its field Do says for
// this attempt, and remembers what it got.
type faulty struct {
	mu   sync.Mutex
	seen map[string][]string // by id: the body of each attempt that came in whole
	met  map[string]int      // attempts of which at least the head came in
}

func newFaulty() *faulty { return &faulty{seen: map[string][]string{}, met: map[string]int{}} }

func (f *faulty) serve(c net.Conn) {
	br := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		id := req.Header.Get("Id")
		f.mu.Lock()
		n := f.met[id]
		f.met[id]++
		f.mu.Unlock()
		todo := "ok"
		if script := strings.Fields(req.Header.Get("Do")); n < len(script) {
			todo = script[n]
		}
		if todo == "early" { // before the body
			io.WriteString(c, "HTTP/1.1 503 Early\r\nContent-Length: 5\r\n\r\nearly")
			return
		}
		if todo == "slam" {
			c.(*net.TCPConn).SetLinger(0)
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		f.mu.Lock()
		f.seen[id] = append(f.seen[id], string(body))
		f.mu.Unlock()
		switch todo {
		case "close":
			return
		case "part":
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Le")
			return
		case "hang":
			io.Copy(io.Discard, br) // until the relay gives up
			return
		case "ok":
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(id), id)
		case "cut":
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
			return
		case "slow":
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
			io.Copy(io.Discard, br)
			return
		case "told":
			io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
			return
		default:
			fmt.Fprintf(c, "HTTP/1.1 %s X\r\nContent-Length: 6\r\n\r\nfailed", todo)
		}
	}
}

func (f *faulty) got(id string) (met int, bodies []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.met[id], f.seen[id]
}

func rule(r *wire.Retry) func() Plan {
	compiled := retry.Compile(r)
	return func() Plan { return Plan{Rule: compiled} }
}

func span(d time.Duration) *wire.Duration { return &wire.Duration{Nanos: int64(d)} }

var generous = &wire.Retry{Attempts: 3, On: []string{"connect", "reset", "gateway"}, StatusCodes: []uint32{429}, MaxBodyBytes: 64 << 10}

func TestRetries(t *testing.T) {
	limited := rule(&wire.Retry{Attempts: 3, On: []string{"reset", "gateway"}, PerTryTimeout: span(150 * time.Millisecond), MaxBodyBytes: 10})
	for _, tt := range []struct {
		name, method, do, body string
		plan                   func() Plan
		status, met            int
	}{
		{"503 twice", "GET", "503 503", "", rule(generous), 200, 3},
		{"429", "GET", "429", "", rule(generous), 200, 2},
		{"500 is not named", "GET", "500", "", rule(generous), 500, 1},
		{"as often as allowed", "GET", "503 503 503 503", "", rule(generous), 503, 4},
		{"reset", "GET", "close", "", rule(generous), 200, 2},
		{"reset in the head", "GET", "part", "", rule(generous), 200, 2},
		{"reset after the head is too late", "GET", "cut", "", rule(generous), 0, 1},
		{"informed", "GET", "told", "", rule(generous), 502, 1},
		{"put with a body", "PUT", "503 close", "hello", rule(generous), 200, 3},
		{"post is not repeated", "POST", "503", "hello", rule(generous), 503, 1},
		{"post is not repeated after a reset", "POST", "close", "hello", rule(generous), 502, 1},
		{"post named", "POST", "503 close", "hello", rule(&wire.Retry{Attempts: 3, On: generous.On, Methods: []string{"POST"}, MaxBodyBytes: 100}), 200, 3},
		{"get not named", "GET", "503", "", rule(&wire.Retry{Attempts: 3, On: generous.On, Methods: []string{"POST"}, MaxBodyBytes: 100}), 503, 1},
		{"body kept", "PUT", "503 503", "0123456789", limited, 200, 3},
		{"body too long", "PUT", "503", "0123456789x", limited, 503, 1},
		{"no answer in time", "GET", "hang", "", limited, 200, 2},
		{"never an answer in time", "GET", "hang hang hang hang", "", limited, 504, 4},
		{"post without an answer in time", "POST", "hang", "x", limited, 504, 1},
		{"nothing said", "GET", "503", "", nil, 503, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty()
			r := newRig(t, Config{Plan: tt.plan}, f.serve)
			if tt.status == 0 { // it ends with a reset
				if got, err := r.oneRequest(tt.method, "one", tt.do, tt.body); err == nil {
					t.Errorf("client got %q", got)
				}
				if met, _ := f.got("one"); met != tt.met {
					t.Errorf("endpoint met it %d times", met)
				}
				return
			}
			got := r.say(fmt.Sprintf("%s / HTTP/1.1\r\nHost: a\r\nId: one\r\nDo: %s\r\nContent-Length: %d\r\n\r\n%s", tt.method, tt.do, len(tt.body), tt.body), nil)
			if !strings.Contains(got, fmt.Sprintf("HTTP/1.1 %d ", tt.status)) {
				t.Errorf("client got %q, want %d", got, tt.status)
			}
			met, bodies := f.got("one")
			if met != tt.met {
				t.Errorf("endpoint met it %d times, want %d", met, tt.met)
			}
			for _, b := range bodies {
				if b != tt.body {
					t.Errorf("endpoint got body %q", b)
				}
			}
		})
	}
}

// The whole request has a time, whatever the attempts do with it, and the
// connection that was too slow is not used again.
func TestRequestTimeout(t *testing.T) {
	for _, tt := range []struct{ do, want string }{
		{"hang", "HTTP/1.1 504 "}, {"503 503 503 503 503 503 503 503", "HTTP/1.1 503 "}, {"slow", "half"}, {"ok", "HTTP/1.1 200 "},
	} {
		t.Run(tt.do, func(t *testing.T) {
			t.Parallel()
			f := newFaulty()
			compiled := retry.Compile(&wire.Retry{Attempts: 10, On: []string{"gateway"}, BackoffBase: span(100 * time.Millisecond), BackoffMax: span(time.Minute)})
			plan := func() Plan { return Plan{Rule: compiled, Timeout: 300 * time.Millisecond} }
			r := newRig(t, Config{Plan: plan}, f.serve)
			c := r.dial()
			defer c.Close()
			began := time.Now()
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a\r\nId: one\r\nDo: %s\r\nConnection: close\r\n\r\n", tt.do)
			got, err := io.ReadAll(c)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			if !strings.Contains(string(got), tt.want) {
				t.Errorf("got %q", got)
			}
			if tt.do == "slow" && err == nil {
				t.Error("an answer that was cut off looks whole")
			}
			if tt.do == "hang" && !strings.Contains(string(got), "x-heddle-reason: upstream_timeout") {
				t.Errorf("got %q", got)
			}
		})
	}
}

// A connection that met its deadline in time serves later requests without one.
func TestDeadlineIsTakenBack(t *testing.T) {
	f := newFaulty()
	compiled := retry.Compile(&wire.Retry{Attempts: 1, PerTryTimeout: span(100 * time.Millisecond)})
	r := newRig(t, Config{Plan: func() Plan { return Plan{Rule: compiled, Timeout: 200 * time.Millisecond} }}, f.serve)
	c := r.dial()
	defer c.Close()
	br := bufio.NewReader(c)
	for i := range 3 {
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nId: %d\r\nContent-Length: 0\r\n\r\n", i)
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatal(i, res, err)
		}
		io.Copy(io.Discard, res.Body)
		time.Sleep(250 * time.Millisecond) // the deadline passes while the connection is idle
	}
}

// Random requests with random failures, cut into random segments: what an
// endpoint gets whole is what was sent; a POST that came in whole never comes
// twice; what may be repeated is, until it is answered or has been tried as
// often as allowed; each answer is the request's own.
func TestRetriesInPieces(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 12
	}
	f := newFaulty()
	r := newRig(t, Config{Plan: rule(generous)}, f.serve)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range rounds {
				id := fmt.Sprintf("%d-%d", worker, i)
				method := []string{"GET", "PUT", "POST", "DELETE", "PATCH"}[rand.IntN(5)]
				repeatable := method != "POST" && method != "PATCH"
				body := strings.Repeat(id, []int{0, 1, 900, 4000, 12000}[rand.IntN(5)])
				var script []string
				for range rand.IntN(5) {
					script = append(script, []string{"503", "close", "part", "429", "early", "502", "slam", "500", "told"}[rand.IntN(9)])
				}
				answer, err := r.oneRequest(method, id, strings.Join(script, " "), body)
				met, bodies := f.got(id)
				for _, b := range bodies {
					if b != body {
						t.Errorf("%s %s %v: endpoint got a body of %d bytes, sent were %d", method, id, script, len(b), len(body))
					}
				}
				if !repeatable && len(bodies) > 1 {
					t.Errorf("%s %s %v: delivered %d times", method, id, script, len(bodies))
				}
				if met > 4+1 { // one more for a pooled connection that was dead
					t.Errorf("%s %s %v: met %d times", method, id, script, met)
				}
				if err == nil && strings.HasPrefix(answer, "200") && answer != "200 "+id {
					t.Errorf("%s %s %v: answered %q", method, id, script, answer)
				}
				if hopeful(script) && repeatable && len(body) < 30000 && answer != "200 "+id {
					t.Errorf("%s %s %v of %d bytes: ended with %q, %v", method, id, script, len(body), answer, err)
				}
			}
		})
	}
	wg.Wait()
}

// hopeful: a policy of three retries gets the better of it.
func hopeful(script []string) bool {
	for _, s := range script {
		if s == "500" || s == "told" {
			return false
		}
	}
	return len(script) <= 3
}

// oneRequest sends one request in random pieces and gives status and body of
// its answer.
func (r *rig) oneRequest(method, id, do, body string) (string, error) {
	c := r.dial()
	defer c.Close()
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s /%s HTTP/1.1\r\nHost: a\r\nId: %s\r\nDo: %s\r\n", method, id, id, do)
	if rand.IntN(2) == 0 {
		fmt.Fprintf(&text, "Content-Length: %d\r\n\r\n%s", len(body), body)
	} else {
		text.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		for rest := body; rest != ""; {
			n := 1 + rand.IntN(len(rest))
			fmt.Fprintf(&text, "%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		text.WriteString("0\r\n\r\n")
	}
	go func() {
		b := text.Bytes()
		for len(b) > 0 {
			n := 1 + rand.IntN(len(b))
			if rand.IntN(3) == 0 {
				n = min(n, 40)
			}
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
			b = b[n:]
			if rand.IntN(2) == 0 {
				time.Sleep(time.Millisecond) // lets the kernel send a segment; nothing waits for it
			}
		}
	}()
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, &http.Request{Method: method})
	for err == nil && res.StatusCode < 200 {
		res, err = http.ReadResponse(br, &http.Request{Method: method})
	}
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(res.Body)
	return fmt.Sprintf("%d %s", res.StatusCode, b), err
}
