package pool

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/sidecar/http1"
)

// closing tells when a connection is closed.
type closing struct {
	net.Conn
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

func dialer(made *[]*closing) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		c := &closing{}
		*made = append(*made, c)
		return c, nil
	}
}

func get(t *testing.T, p *Pool, fresh bool) *http1.Conn {
	t.Helper()
	c, err := p.Get(t.Context(), fresh)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNewestFirstOldestExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made []*closing
		s := NewSet()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		p := s.New(Config{Dial: dialer(&made), Idle: 10 * time.Second})
		a, b := get(t, p, false), get(t, p, false)
		p.Put(a, true)
		time.Sleep(5 * time.Second)
		p.Put(b, true)
		if got := get(t, p, false); got != b || !got.Reused {
			t.Error("not the one used last")
		}
		p.Put(b, true)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if !made[0].closed || made[1].closed || p.Open() != 1 {
			t.Errorf("after 11 s: first closed %v, second %v, open %d", made[0].closed, made[1].closed, p.Open())
		}
		if get(t, p, true) == b {
			t.Error("asked for a new one, got an old one")
		}
		cancel()
		<-done
		if !made[1].closed {
			t.Error("an idle one outlives Run")
		}
	})
}

func TestGone(t *testing.T) {
	var made []*closing
	gone := make(chan struct{})
	s := NewSet()
	p := s.New(Config{Dial: dialer(&made), Idle: time.Hour, Gone: gone})
	busy, idle := get(t, p, false), get(t, p, false)
	p.Put(idle, true)
	close(gone)
	s.sweep(time.Now(), false)
	p.Put(busy, true) // finished after the endpoint left
	if !made[0].closed || !made[1].closed || p.Open() != 0 {
		t.Errorf("left open: %v %v, %d", !made[0].closed, !made[1].closed, p.Open())
	}
	if len(s.pools) != 0 {
		t.Error("the set keeps the pool of a gone endpoint")
	}
}

func TestBounds(t *testing.T) {
	var made []*closing
	p := NewSet().New(Config{Dial: dialer(&made), Idle: time.Hour})
	var all []*http1.Conn
	for range MaxOpen {
		all = append(all, get(t, p, false))
	}
	if _, err := p.Get(t.Context(), false); !errors.Is(err, ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	for _, c := range all {
		p.Put(c, true)
	}
	if p.Open() != maxIdle {
		t.Errorf("%d kept idle", p.Open())
	}
	fail := errors.New("no")
	p = NewSet().New(Config{Dial: func(context.Context) (net.Conn, error) { return nil, fail }})
	if _, err := p.Get(t.Context(), false); !errors.Is(err, fail) || p.Open() != 0 {
		t.Errorf("failed dial: %v, %d open", err, p.Open())
	}
}
