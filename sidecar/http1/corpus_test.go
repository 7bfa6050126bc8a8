package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// sample is one case of testdata/requests.txt.
type sample struct {
	name                           string
	client, endpoint, answer, want string
	closes                         bool
	status                         int
	reason                         string
}

func corpus(t testing.TB) []*sample {
	t.Helper()
	text, err := os.ReadFile("testdata/requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []*sample
	for n, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if name, ok := strings.CutPrefix(line, "== "); ok {
			all = append(all, &sample{name: name, answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"})
			continue
		}
		s := all[len(all)-1]
		if err := s.set(line[0], strings.TrimSpace(line[1:])); err != nil {
			t.Fatalf("testdata/requests.txt:%d: %v", n+1, err)
		}
	}
	return all
}

func (s *sample) set(key byte, value string) error {
	if key == 'F' {
		_, err := fmt.Sscanf(value, "%d %s", &s.status, &s.reason)
		return err
	}
	if key == 'S' {
		value, s.closes = strings.CutSuffix(value, " close")
	}
	text, err := strconv.Unquote(value)
	switch key {
	case 'C':
		s.client += text
	case 'U':
		s.endpoint += text
	case 'S':
		s.answer = text
	case 'R':
		s.want += text
	}
	return err
}

// rig is a relay between a client and a scripted endpoint, all over loopback.
type rig struct {
	t        testing.TB
	endpoint net.Listener
	front    net.Listener
	config   Config
	refuse   *Fault

	mu    sync.Mutex
	idle  []*Conn
	ended bool
	wg    sync.WaitGroup
}

// newRig starts an endpoint that serves each connection with serve, and a
// front whose connections are relayed to it.
func newRig(t testing.TB, c Config, serve func(net.Conn)) *rig {
	t.Helper()
	r := &rig{t: t, config: c}
	switch b := c.Backend.(type) {
	case *watched:
		b.rig = r
	case *adding:
		b.rig = r
	default:
		r.config.Backend = r
	}
	r.endpoint, r.front = listen(t), listen(t)
	r.wg.Go(func() { r.accept(r.endpoint, serve) })
	r.wg.Go(func() {
		r.accept(r.front, func(c net.Conn) { NewRelay(NewConn(c, nil), r.config).Serve(context.Background()) })
	})
	t.Cleanup(func() {
		r.endpoint.Close()
		r.front.Close()
		r.mu.Lock()
		r.ended = true
		for _, c := range r.idle {
			c.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (r *rig) accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		r.wg.Go(func() {
			defer c.Close()
			serve(c)
		})
	}
}

func (r *rig) Open(ctx context.Context, _ *Head, try Try) (*Conn, error) {
	r.mu.Lock()
	if r.refuse != nil {
		defer r.mu.Unlock()
		return nil, r.refuse
	}
	if n := len(r.idle); n > 0 && !try.Fresh {
		c := r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.mu.Unlock()
		return c, nil
	}
	r.mu.Unlock()
	c, err := net.Dial("tcp", r.endpoint.Addr().String())
	if err != nil {
		return nil, &Fault{Status: 503, Reason: telemetry.ReasonConnectFailed, Detail: "dial"}
	}
	return NewConn(c, nil), nil
}

func (r *rig) Release(c *Conn, o Outcome) {
	if !o.Reusable {
		c.Close()
		return
	}
	c.Reused = true
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		c.Close()
		return
	}
	r.idle = append(r.idle, c)
}

func (r *rig) Record(*Exchange) {}

// script reads requests with net/http's parser and answers each with answer;
// what it saw goes to seen.
func script(answer string, closes bool, seen *safeBuffer) func(net.Conn) {
	return func(c net.Conn) {
		br := bufio.NewReader(io.TeeReader(c, seen))
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			if _, err := io.WriteString(c, answer); err != nil || closes {
				return
			}
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// say sends text in pieces, then FIN, and gives all that comes back.
func (r *rig) say(text string, pieces []int) string {
	r.t.Helper()
	c := r.dial()
	defer c.Close()
	go func() {
		for _, n := range pieces {
			if _, err := io.WriteString(c, text[:n]); err != nil {
				return
			}
			text = text[n:]
			time.Sleep(time.Millisecond) // lets the kernel send a segment; nothing waits for it
		}
		io.WriteString(c, text)
		c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, io.EOF) {
		r.t.Errorf("client got a broken answer %q: %v", got, err)
	}
	return string(got)
}

func (r *rig) dial() *net.TCPConn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.front.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// check runs a sample in pieces and compares all that can be seen.
func (s *sample) check(t *testing.T, pieces []int) {
	t.Helper()
	var seen safeBuffer
	r := newRig(t, Config{}, script(s.answer, s.closes, &seen))
	got := r.say(s.client, pieces)
	r.endpoint.Close()
	switch {
	case s.status == 0:
		if got != s.want {
			t.Errorf("client got\n%q, want\n%q", got, s.want)
		}
	case !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", s.status)) || !strings.Contains(got, "\r\nx-heddle-reason: "+s.reason+"\r\n"):
		t.Errorf("client got\n%q, want %d %s", got, s.status, s.reason)
	}
	if s.status/100 != 4 && seen.String() != s.endpoint {
		t.Errorf("endpoint got\n%q, want\n%q", seen.String(), s.endpoint)
	}
	if s.status/100 == 4 && strings.Contains(seen.String(), "\r\n0\r\n\r\n") {
		t.Errorf("endpoint got the whole of a bad request: %q", seen.String())
	}
}

func TestCorpus(t *testing.T) {
	for _, s := range corpus(t) {
		t.Run(s.name, func(t *testing.T) { t.Parallel(); s.check(t, nil) })
	}
}

// However the client's bytes are cut into segments, the outcome is the same.
func TestCorpusInPieces(t *testing.T) {
	for _, s := range corpus(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			rounds := 4
			if testing.Short() {
				rounds = 1
			}
			for range rounds {
				var pieces []int
				for left := len(s.client); left > 1 && len(pieces) < 12; {
					n := 1 + rand.IntN(left-1)
					if len(pieces) < 6 {
						n = 1 + rand.IntN(min(left-1, 20))
					}
					pieces = append(pieces, n)
					left -= n
				}
				s.check(t, pieces)
				if t.Failed() {
					t.Fatalf("cut into %v", pieces)
				}
			}
		})
	}
}
