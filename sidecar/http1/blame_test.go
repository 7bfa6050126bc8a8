package http1

import (
	"bufio"
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

// watched is a Backend that remembers what became of each attempt.
type watched struct {
	*rig
	mu       sync.Mutex
	outcomes []Outcome
	done     chan Exchange
}

func newWatched(t *testing.T, c Config, serve func(net.Conn)) *watched {
	w := &watched{done: make(chan Exchange, 1000)}
	c.Backend = w
	newRig(t, c, serve)
	return w
}

func (w *watched) Release(up *Conn, o Outcome) {
	w.mu.Lock()
	w.outcomes = append(w.outcomes, o)
	w.mu.Unlock()
	w.rig.Release(up, o)
}

func (w *watched) Record(x *Exchange) { w.done <- *x }

// Who breaks off is to blame, and nobody else: an endpoint does not count as
// failing, and nothing is sent again, because a client went away.
func TestWhoIsToBlame(t *testing.T) {
	const post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf"
	const chunk = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"
	takeHead := func(c net.Conn) { readHead(c); io.Copy(io.Discard, c) }
	answerHalf := func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
		io.Copy(io.Discard, c)
	}
	timed := func() Plan { return Plan{Timeout: 200 * time.Millisecond} }
	for _, tt := range []struct {
		name   string
		say    string
		then   string
		serve  func(net.Conn)
		plan   func() Plan
		failed bool
		reason string
	}{
		{"client goes in its body", post, "", takeHead, nil, false, ""},
		{"client goes in its body, repeatable", "PUT" + post[4:], "", takeHead, rule(generous), false, ""},
		{"client goes in its body, answer under way", post, "", answerHalf, nil, false, ""},
		{"client sends nonsense", chunk, "xyz\r\n", takeHead, nil, false, "bad_request"},
		{"client sends nonsense, repeatable", "PUT" + chunk[4:], "xyz\r\n", takeHead, rule(generous), false, "bad_request"},
		{"client is slow", post, "stay", takeHead, timed, false, "upstream_timeout"},
		{"endpoint is slow", plainGet, "stay", takeHead, timed, true, "upstream_timeout"},
		{"endpoint goes", post, "stay", func(c net.Conn) { readHead(c) }, nil, true, "upstream_reset"},
		{"endpoint goes in its answer", plainGet, "stay", func(c net.Conn) {
			readHead(c)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
		}, nil, true, "upstream_reset"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			met := make(chan struct{}, 10)
			w := newWatched(t, Config{Plan: tt.plan}, func(c net.Conn) { met <- struct{}{}; tt.serve(c) })
			c := w.dial()
			send(t, c, tt.say)
			<-met
			switch tt.then {
			case "":
				if strings.Contains(tt.name, "under way") {
					expect(t, c, "HTTP/1.1 200 OK\r\n")
				}
				c.Close()
			case "stay":
				defer c.Close()
			default:
				defer c.Close()
				send(t, c, tt.then)
			}
			x := <-w.done
			if string(x.Reason) != tt.reason || x.Retries.Total() != 0 && tt.reason == "" {
				t.Errorf("recorded %+v", x)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.outcomes) != 1 || w.outcomes[0].Failed != tt.failed {
				t.Errorf("attempts %+v", w.outcomes)
			}
		})
	}
}

// An endpoint that ends without an answer after the client's FIN was passed on
// is not to blame, and a connection whose half was closed so is not used again.
func TestBlameAfterFIN(t *testing.T) {
	for _, answers := range []bool{false, true} {
		w := newWatched(t, Config{}, func(c net.Conn) {
			readHead(c)
			io.Copy(io.Discard, c) // until the FIN
			if answers {
				io.WriteString(c, ok2)
			}
		})
		l := listen(t)
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		relay := NewRelay(NewConn(server, nil), Config{Backend: w})
		served := make(chan error, 1)
		go func() { served <- relay.Serve(t.Context()) }()
		send(t, client, plainGet)
		await(t, relay, phaseSend)
		client.(*net.TCPConn).CloseWrite()
		for ended := false; !ended; {
			select {
			case <-served:
				ended = true
			case <-time.After(time.Millisecond): // as the real one, only sooner
				relay.Sweep()
			}
		}
		client.Close()
		if len(w.outcomes) != 1 || w.outcomes[0].Failed || w.outcomes[0].Reusable {
			t.Errorf("answers %v: attempts %+v", answers, w.outcomes)
		}
	}
}

// Sweep may close half of a connection at the very moment of its answer: then
// no other request gets it.
func TestAnsweredAtTheSameMoment(t *testing.T) {
	var w watch
	up := &Conn{}
	w.await(up)
	w.answered()
	if w.halfClosed.Load() {
		t.Error("nobody closed it")
	}
	w.await(up)
	w.up.CompareAndSwap(up, nil) // as passFIN does before it closes
	w.answered()
	if !w.halfClosed.Load() {
		t.Error("it would be used again")
	}
}

// Endpoints that answer while the body still comes, bodies about as long as may
// be kept: what an endpoint gets whole is what was sent, and the connection of
// an early answer, whose request was broken off, is not used again.
func TestEarlyAnswersInLongBodies(t *testing.T) {
	const most = 20 << 10
	var mu sync.Mutex
	met, got := map[string]int{}, map[string][]string{}
	plan := rule(&wire.Retry{Attempts: 3, On: []string{"gateway"}, MaxBodyBytes: most})
	w := newWatched(t, Config{Plan: plan}, func(c net.Conn) {
		br := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			id := req.URL.Path
			mu.Lock()
			met[id]++
			n := met[id]
			mu.Unlock()
			if n < 3 {
				io.CopyN(io.Discard, req.Body, rand.Int64N(most))
				io.WriteString(c, "HTTP/1.1 503 Early\r\nContent-Length: 5\r\n\r\nearly")
			}
			b, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			if n < 3 {
				continue
			}
			mu.Lock()
			got[id] = append(got[id], string(b))
			mu.Unlock()
			io.WriteString(c, ok2)
		}
	})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 20 {
				id := fmt.Sprintf("/%d-%d", worker, i)
				var body strings.Builder
				for n := 0; body.Len() < most-3000+i*300; n++ {
					fmt.Fprintf(&body, "%s:%d,", id, n)
				}
				c := w.dial()
				go func() {
					fmt.Fprintf(c, "PUT %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", id, body.Len())
					for rest := body.String(); rest != ""; {
						n := min(len(rest), 1+rand.IntN(4000))
						if _, err := io.WriteString(c, rest[:n]); err != nil {
							return
						}
						rest = rest[n:]
					}
				}()
				answer, _ := io.ReadAll(c)
				c.Close()
				mu.Lock()
				for _, b := range got[id] {
					if b != body.String() {
						t.Errorf("%s: endpoint got a body of %d bytes that is not the one of %d bytes that was sent", id, len(b), body.Len())
					}
				}
				if body.Len() <= most && !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
					t.Errorf("%s of %d bytes, answered %q", id, body.Len(), answer)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.outcomes {
		if o.Elsewhere && o.Failed {
			t.Errorf("an early answer is an answer: %+v", o)
		}
	}
}

// Once it is decided that a request is sent again, nothing of what still comes
// of its body is left out, though it is more than is kept otherwise.
func TestKeptWhole(t *testing.T) {
	for _, again := range []bool{true, false} {
		r := &Relay{}
		r.tries.plan.Rule = &retry.Rule{Attempts: 1, MaxBody: 10}
		if done, err := r.req.ParseRequest([]byte(plainGet)); !done || err != nil {
			t.Fatal(err)
		}
		r.keep([]byte("12345"))
		if again && !r.whole() {
			t.Fatal("all is there")
		}
		r.keep([]byte("6789012345"))
		if r.whole() != again {
			t.Errorf("decided %v: whole %v", again, !again)
		}
		if got := string(r.tries.kept); again && got != plainGet+"123456789012345" {
			t.Errorf("kept %q", got)
		}
	}
}
