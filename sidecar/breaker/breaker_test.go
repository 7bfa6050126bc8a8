package breaker

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimits(t *testing.T) {
	var b Breaker
	for i, want := range []bool{true, true, false} {
		if b.Request(2) != want {
			t.Errorf("request %d: want %v", i+1, want)
		}
	}
	b.RequestDone()
	if !b.Request(2) || b.Request(2) {
		t.Error("one was done")
	}
	if !b.Request(0) {
		t.Error("no bound")
	}
	if !b.Connection(1) || b.Connection(1) {
		t.Error("one connection")
	}
	b.Closed()
	if !b.Connection(1) {
		t.Error("it was closed")
	}
}

var one = Limits{Connections: 1, Pending: 2}

func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		b.Connection(1)
		first, second := b.Join(one), b.Join(one)
		if first == nil || second == nil || b.Join(one) != nil {
			t.Fatal("two may wait")
		}
		got := make(chan any, 2)
		for _, w := range []*Waiter{first, second} {
			go func() {
				c, err := w.Wait(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- c
			}()
			synctest.Wait()
		}
		if !b.Offer("a") {
			t.Fatal("nobody took it")
		}
		if c := <-got; c != "a" {
			t.Errorf("got %v", c)
		}
		b.Closed() // its place goes to the second
		if c := <-got; c != nil {
			t.Errorf("got %v", c)
		}
		if b.Connection(1) {
			t.Error("the place is taken")
		}
		b.Closed()
		if b.Offer("b") || !b.Connection(1) {
			t.Error("nobody waits any more")
		}
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Breaker
		b.Connection(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := b.Join(one)
		if c, err := w.Wait(ctx); err == nil {
			t.Errorf("got %v", c)
		}
		if _, _, n := b.Load(); n != 0 || b.Offer("a") {
			t.Error("still waits")
		}
		// What comes at the moment of leaving is not lost.
		w = b.Join(one)
		b.Offer("a")
		if c, late := w.Leave(); !late || c != "a" {
			t.Errorf("got %v %v", c, late)
		}
	})
}

// Nobody is forgotten in the queue, and the bound holds, whatever the timing.
func TestManyWait(t *testing.T) {
	const places, users, rounds = 3, 24, 400
	var b Breaker
	limits := Limits{Connections: places, Pending: users}
	var inUse, most atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for range users {
		wg.Go(func() {
			for range rounds {
				if !b.Connection(places) {
					w := b.Join(limits)
					if b.Connection(places) {
						if _, late := w.Leave(); late {
							b.Closed()
						}
					} else if _, err := w.Wait(ctx); err != nil {
						t.Error("forgotten:", err)
						return
					}
				}
				n := inUse.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				inUse.Add(-1)
				b.Closed()
			}
		})
	}
	wg.Wait()
	if _, c, n := b.Load(); c != 0 || n != 0 {
		t.Errorf("%d connections and %d waiting are left", c, n)
	}
	if most.Load() > places {
		t.Errorf("%d at once", most.Load())
	}
}
