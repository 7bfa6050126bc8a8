// Package breaker counts what a sidecar has under way at one port of a
// destination and says when it is enough: requests, connections, and requests
// that wait for a connection. Counting takes no lock; waiting, which is rare,
// does. It knows no connection: whoever is handed one knows what it is.
// sidecar/balance keeps Breakers from version to version, sidecar/outbound asks
// them.
package breaker

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
)

// Limits are a policy's bounds; zero: none.
type Limits struct {
	Requests, Connections int64
	Pending               int64 // requests waiting for one of Connections; zero: none may
}

// Breaker is the count. The zero Breaker is ready.
type Breaker struct {
	requests, connections atomic.Int64

	waiting atomic.Int64 // length of queue
	mu      sync.Mutex
	queue   list.List // of *Waiter, who came first in front
}

// Request counts a request as under way; false: there are max already.
func (b *Breaker) Request(max int64) bool { return take(&b.requests, max) }

// RequestDone takes back what Request counted.
func (b *Breaker) RequestDone() { b.requests.Add(-1) }

// Connection counts a connection; false: there are max already; zero: no bound.
func (b *Breaker) Connection(max int64) bool { return take(&b.connections, max) }

func take(n *atomic.Int64, max int64) bool {
	if n.Add(1) > max && max > 0 {
		n.Add(-1)
		return false
	}
	return true
}

// Closed takes back what Connection counted. If somebody waits, the place is
// his from now on.
func (b *Breaker) Closed() {
	if b.waiting.Load() > 0 {
		if w := b.first(); w != nil {
			w.got <- nil
			return
		}
	}
	b.connections.Add(-1)
	if b.waiting.Load() > 0 { // he came between the two looks
		b.refill()
	}
}

// refill gives a place that is free to the first waiter, unless it is taken
// again by then.
func (b *Breaker) refill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.queue.Front(); e != nil {
		if w := e.Value.(*Waiter); take(&b.connections, w.connections) {
			b.remove(w)
			w.got <- nil
		}
	}
}

// Offer hands a connection that is free again to whoever waits longest; false:
// nobody does.
func (b *Breaker) Offer(c any) bool {
	if b.waiting.Load() == 0 {
		return false
	}
	w := b.first()
	if w == nil {
		return false
	}
	w.got <- c
	return true
}

// Waiting tells whether somebody waits.
func (b *Breaker) Waiting() bool { return b.waiting.Load() > 0 }

// first takes the first waiter out of the queue.
func (b *Breaker) first() *Waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.queue.Front()
	if e == nil {
		return nil
	}
	w := e.Value.(*Waiter)
	b.remove(w)
	return w
}

// remove takes a waiter out of the queue. The caller holds mu.
func (b *Breaker) remove(w *Waiter) {
	b.queue.Remove(w.element)
	b.waiting.Add(-1)
	w.element = nil
}

// Waiter is a request that waits for a connection, or the place of one.
type Waiter struct {
	b       *Breaker
	element *list.Element // nil: out of the queue
	got     chan any      // has room for the one thing it gets
	// connections is the bound that it waits under.
	connections int64
}

// Join begins to wait; nil: as many as may wait do already. Whoever joins looks
// once more for what may have come free in between, and ends with Wait or Leave.
func (b *Breaker) Join(l Limits) *Waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int64(b.queue.Len()) >= l.Pending {
		return nil
	}
	w := &Waiter{b: b, got: make(chan any, 1), connections: l.Connections}
	w.element = b.queue.PushBack(w)
	b.waiting.Add(1)
	return w
}

// Wait gives a connection that was offered, or nil for the place of one, which
// the caller has then as if Connection had said yes.
func (w *Waiter) Wait(ctx context.Context) (any, error) {
	select {
	case c := <-w.got:
		return c, nil
	case <-ctx.Done():
	}
	if c, ok := w.Leave(); ok {
		return c, nil // it came at the same moment
	}
	return nil, ctx.Err()
}

// Leave ends the waiting; true with what it was given at the same moment.
func (w *Waiter) Leave() (any, bool) {
	w.b.mu.Lock()
	if w.element != nil {
		w.b.remove(w)
		w.b.mu.Unlock()
		return nil, false
	}
	w.b.mu.Unlock()
	return <-w.got, true
}

// Load tells what is under way: requests (where a policy bounds them),
// connections, and requests that wait.
func (b *Breaker) Load() (requests, connections, waiting int64) {
	return b.requests.Load(), b.connections.Load(), b.waiting.Load()
}
