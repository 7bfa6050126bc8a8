package http1

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
)

// upload is the second goroutine of an exchange: it sends the rest of a
// request's body while the first one already waits for the answer. It owns
// reading from the client and writing to the endpoint while it runs.
type upload struct {
	running bool // owned by the relay's goroutine
	done    chan struct{}
	err     error // valid after done: why it ended early
	client  bool  // valid after done: the client is why
	bytes   int64 // valid after done; of all attempts
	last    atomic.Bool
	stop    atomic.Bool
	waits   atomic.Bool // for the client
	gone    atomic.Bool // the client broke off, and the endpoint's connection with it
}

func (r *Relay) startUpload(up *Conn) {
	u := &r.upload
	u.running, u.err, u.client = true, nil, false
	if t := &r.tries; t.plan.Rule.Attempts > t.retries {
		t.keeping.CompareAndSwap(keepAll, keepMost)
		r.keep(nil)
	} else {
		t.keeping.Store(keepNone)
	}
	u.last.Store(false)
	u.stop.Store(false)
	u.gone.Store(false)
	go r.runUpload(up)
}

func (r *Relay) runUpload(up *Conn) {
	u := &r.upload
	toClient, err := r.copyUpload(up)
	u.err, u.client = err, toClient
	if err != nil && toClient && !u.stop.Load() {
		// The client broke off, or sends nonsense: the endpoint must not wait for
		// the rest, nor take what it has for the whole.
		u.gone.Store(true)
		up.Abort()
	}
	u.done <- struct{}{}
}

// copyUpload copies the body; true with an error: the client is at fault.
func (r *Relay) copyUpload(up *Conn) (bool, error) {
	u := &r.upload
	for {
		if b := r.down.buffered(); len(b) > 0 {
			n, err := r.reqBody.Take(b)
			if r.reqBody.Done() {
				u.last.Store(true)
			}
			r.keep(b[:n])
			u.bytes += int64(n)
			r.down.consume(n) // b stays as it is until more is read
			if _, err := up.Write(b[:n]); err != nil {
				return false, err
			}
			if err != nil {
				return true, err
			}
		}
		if u.last.Load() {
			return false, nil
		}
		u.waits.Store(true)
		err := r.fillDown()
		u.waits.Store(false)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return true, err
		}
	}
}

// ending tells whether the request is all read, so that the connection can
// carry another one after the answer.
func (u *upload) ending(b *codec.Body) bool {
	if u.running {
		return u.last.Load()
	}
	return b.Done()
}

// endUpload waits for the upload after the answer has ended, with err, and
// tells whether the whole body went to the endpoint.
func (r *Relay) endUpload(up *Conn, err error) bool {
	u := &r.upload
	if !u.running {
		return true
	}
	u.running = false
	if err == nil && (u.last.Load() || r.res.Persistent()) {
		// An early answer, and the endpoint stays: it may still want the rest.
		t := time.NewTimer(earlyGrace)
		defer t.Stop()
		select {
		case <-u.done:
			return u.err == nil
		case <-t.C:
		}
	}
	u.stop.Store(true)
	r.down.SetReadDeadline(time.Unix(1, 0))
	up.Abort()
	<-u.done
	r.down.SetReadDeadline(time.Time{})
	return false
}

// broken tells that the client broke off its request, or sent nonsense. The
// upload must have ended.
func (u *upload) broken() bool { return u.client && u.err != nil && !isLate(u.err) }

// pauseUpload ends an upload in the middle; the next attempt goes on with it.
// True: the endpoint got the whole body. An error is the client's: there will be
// no more of the request.
func (r *Relay) pauseUpload(up *Conn) (whole bool, err error) {
	u := &r.upload
	if !u.running {
		return true, nil
	}
	u.running = false
	select {
	case <-u.done:
		whole = u.err == nil
	default:
		u.stop.Store(true)
		r.down.SetReadDeadline(time.Unix(1, 0))
		up.Abort()
		<-u.done
		r.down.SetReadDeadline(time.Time{})
		u.stop.Store(false)
	}
	if u.broken() {
		err = u.err
	}
	return whole, err
}

// fillDown reads from the client. A deadline that Sweep set for a phase that
// is over by now is taken back.
func (r *Relay) fillDown() error {
	for {
		err := r.down.fill()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) ||
			r.upload.stop.Load() || r.watch.expired.Load() == r.watch.seq.Load() {
			return err
		}
		r.down.SetReadDeadline(time.Time{})
	}
}

// linger closes the sending side and, if the client may still be sending,
// reads on for a moment, so that it gets our answer rather than a reset.
func (r *Relay) linger(reading bool) {
	if closer, ok := r.down.Conn.(interface{ CloseWrite() error }); ok {
		closer.CloseWrite()
	}
	if !reading {
		return
	}
	r.upload.stop.Store(true) // a deadline of Sweep counts as well from here on
	r.down.SetReadDeadline(time.Now().Add(lingerTimeout))
	for {
		r.down.consume(len(r.down.buffered()))
		if r.down.fill() != nil {
			return
		}
	}
}
