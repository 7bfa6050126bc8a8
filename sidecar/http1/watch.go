package http1

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// phase is what a relay is waiting for.
type phase uint64

const (
	phaseIdle   phase = iota // a request
	phaseHead                // the rest of a request's head
	phaseSend                // a connection to an endpoint, or its answer
	phaseBody                // the rest of an answer
	phaseTunnel              // nothing: bytes pass
	phaseBits   = 3
)

// watch lets Sweep see, from another goroutine, how long a relay has been
// waiting, at the price of one atomic addition per phase.
type watch struct {
	seq     atomic.Uint64 // counts phases; the low bits are the present one
	expired atomic.Uint64 // the phase for which Sweep set a read deadline
	up      atomic.Pointer[Conn]
	// halfClosed: the client's FIN was passed on; both connections end after
	// this exchange.
	halfClosed atomic.Bool
	// cancel ends the wait for a connection.
	cancel atomic.Pointer[context.CancelFunc]

	latency time.Duration // owned by the relay

	seen  uint64 // owned by Sweep
	since int
}

func (w *watch) enter(p phase) {
	w.seq.Store((w.seq.Load()>>phaseBits+1)<<phaseBits | uint64(p))
}

// await names the connection whose answer is awaited, until answered.
func (w *watch) await(up *Conn) { w.up.Store(up) }

// answered ends that. passFIN may have taken the connection at this moment: then
// its other half is closed any time now, and no other request may use it.
func (w *watch) answered() {
	if w.up.Swap(nil) == nil {
		w.halfClosed.Store(true)
	}
}

// clientGone tells that the client has gone, or has closed its sending side: an
// endpoint that breaks off then is not to blame. The upload must have ended.
func (r *Relay) clientGone() bool { return r.watch.halfClosed.Load() || r.upload.broken() }

// Busy tells whether a request, or a tunnel, is under way.
func (r *Relay) Busy() bool { return phase(r.watch.seq.Load()&(1<<phaseBits-1)) != phaseIdle }

// Tunnelling tells whether the connection carries bytes instead of requests, as
// an Upgrade or CONNECT had it.
func (r *Relay) Tunnelling() bool { return phase(r.watch.seq.Load()&(1<<phaseBits-1)) == phaseTunnel }

// Sweep ends what has waited too long. It is to be called every SweepEvery,
// never by two goroutines at once, until Serve has returned.
func (r *Relay) Sweep() {
	w := &r.watch
	seq := w.seq.Load()
	if seq != w.seen {
		w.seen, w.since = seq, 0
		if phase(seq&(1<<phaseBits-1)) != phaseIdle || !r.c.Draining() {
			return
		}
	}
	w.since++
	waited := time.Duration(w.since) * SweepEvery
	switch phase(seq & (1<<phaseBits - 1)) {
	case phaseIdle:
		if waited >= idleTimeout || r.c.Draining() {
			r.expire(seq)
		}
	case phaseHead:
		if waited >= headTimeout {
			r.expire(seq)
		}
	case phaseSend:
		if waited >= clientGoneAfter {
			r.passFIN()
		}
	}
}

func (r *Relay) expire(seq uint64) {
	r.watch.expired.Store(seq)
	r.down.SetReadDeadline(time.Unix(1, 0))
}

// passFIN shows an endpoint that is slow to answer that the client has closed
// its sending side, as it would have seen without us: many servers then give
// up the work. Asked of the kernel, not read: the relay's goroutine is waiting
// for the endpoint, and what the client may have pipelined is not ours to take.
func (r *Relay) passFIN() {
	if r.watch.halfClosed.Load() {
		return
	}
	events, ok := tunnel.Poll(r.down.Conn, unix.POLLRDHUP)
	if !ok || events&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) == 0 {
		return
	}
	up := r.watch.up.Load()
	if up == nil {
		// No endpoint has the request yet. A client that has only closed its
		// sending side may still want the answer; one that reset does not.
		if cancel := r.watch.cancel.Load(); cancel != nil && events&(unix.POLLERR|unix.POLLHUP) != 0 {
			(*cancel)()
		}
		return
	}
	if !r.watch.up.CompareAndSwap(up, nil) {
		return // it was answered just now
	}
	r.watch.halfClosed.Store(true)
	if events&unix.POLLERR != 0 {
		up.Abort()
	} else if c, ok := up.Conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
}
