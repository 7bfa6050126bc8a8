package http2

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Clients that cancel at any moment, and endpoints that break off, leave nothing
// behind: no stream, no head, no window.
func TestChurn(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/early":
			io.CopyN(io.Discard, r.Body, 1000)
			w.Write(make([]byte, 1000))
		case "/abort":
			io.CopyN(w, r.Body, 50_000)
			panic(http.ErrAbortHandler)
		default:
			io.Copy(w, r.Body)
		}
	}
	m := newMesh(t, nil, newMesh(t, nil, serve(t, h), serve(t, h)).addr)
	c := newClient(t)
	if _, err := c.Post("http://"+m.addr, "", nil); err != nil { // so that there is one connection
		t.Fatal(err)
	}
	body := strings.Repeat("0123456789abcdef", 1<<14)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(i)))
			for range 25 {
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(2) == 0 {
					time.AfterFunc(time.Duration(rnd.IntN(8000))*time.Microsecond, cancel)
				}
				path := []string{"/", "/", "/early", "/abort"}[rnd.IntN(4)]
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+m.addr+path, strings.NewReader(body[:rnd.IntN(len(body))]))
				if res, err := c.Do(req); err == nil {
					io.CopyN(io.Discard, res.Body, rnd.Int64N(1<<19))
					res.Body.Close()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	r := m.served()
	until(t, "the relay is idle", func() bool { return !r.Busy() })
	if n := r.heads.Load(); n != 0 {
		t.Errorf("heads of %d bytes are left", n)
	}
	u := m.first()
	until(t, "the upstream is idle", func() bool { return !u.Busy() })
	for range 30 { // more than may be held or granted
		res, err := c.Post("http://"+m.addr, "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(res.Body); err != nil || string(got) != body {
			t.Fatal(err, len(got))
		}
	}
	m.recorded(30)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ends) > 0 || len(m.relays) != 1 {
		t.Errorf("%d connections: %q", len(m.relays), m.ends)
	}
}
