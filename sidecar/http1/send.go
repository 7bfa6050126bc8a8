package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/retry"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// maxStale bounds how many dead connections of a pool one request looks at
// before it asks for a new one.
const maxStale = 3

// maxUnreached bounds how many endpoints are tried after the first one's
// sidecar said that its application took nothing: a Service scaled from four
// to one has three of those for the moment until the news has spread.
const maxUnreached = 5

var (
	faultLate     = &Fault{Status: 504, Reason: telemetry.ReasonUpstreamTimeout, Detail: "no answer in the time that the policy gives"}
	faultReset    = &Fault{Status: 502, Reason: telemetry.ReasonUpstreamReset, Detail: "endpoint closed the connection without an answer"}
	faultAnswer   = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint's answer is not HTTP/1.x"}
	faultSwitch   = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint switched protocols unasked"}
	faultOldChunk = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint answered an HTTP/1.0 request in chunks"}
	faultInform   = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint sent too many informational answers"}
)

// send sends the request and reads the head of the final answer, in as many
// attempts as it takes: see judge for when there is another one.
func (r *Relay) send(ctx context.Context) (*Conn, error) {
	t := &r.tries
	r.plan()
	for {
		r.watch.enter(phaseSend)
		by := t.by()
		up, err := r.open(ctx, by)
		var v verdict
		if err != nil {
			if t.over() {
				return nil, faultLate
			}
			if v = r.unopened(err); !v.again {
				return nil, err
			}
		} else {
			a := r.try(up, by)
			if v = r.judge(up, a); !v.again {
				t.keeping.Store(keepNone)
				if a.err == nil {
					return up, nil
				}
			}
			if err = r.giveBack(up, a, v); !v.again || err != nil {
				return nil, err
			}
		}
		if !retry.Pause(ctx, v.pause) {
			return nil, ctx.Err()
		}
	}
}

// open asks for a connection. One from the pool that is not to be relied on is
// looked at first, if what it breaks could not be mended.
func (r *Relay) open(ctx context.Context, by time.Time) (*Conn, error) {
	t := &r.tries
	fresh := t.fresh
	t.fresh = false
	if t.kept != nil {
		r.req.Move(t.kept)
	}
	for stale := 0; ; stale++ {
		up, err := r.c.Backend.Open(ctx, &r.req, Try{N: t.n, Fresh: fresh || stale == maxStale, By: by})
		if err != nil {
			return nil, err
		}
		if !up.Reused || r.req.Replayable() || up.Alive() {
			t.n++
			return up, nil
		}
		r.c.Backend.Release(up, Outcome{Unsent: true})
	}
}

// giveBack takes leave of a connection whose answer, if there is one, is not
// for the client. Its error is the attempt's, or the client's.
func (r *Relay) giveBack(up *Conn, a attempt, v verdict) error {
	o := Outcome{Latency: r.watch.latency, Elsewhere: v.elsewhere, Unsent: a.unsent && v.again && !v.elsewhere}
	err := a.err
	slow := err == faultLate && r.upload.running && r.upload.waits.Load() // the client, not the endpoint
	switch {
	case err == nil:
		o.Status = r.res.Status
		if r.unreached(up) {
			o.Unreached, o.Reason = true, telemetry.ReasonConnectFailed
		}
		var whole bool
		whole, err = r.pauseUpload(up)
		o.Reusable = err == nil && whole && r.drainAnswer(up)
	case v.again:
		if _, err = r.pauseUpload(up); err == nil {
			o.Reason, o.Failed = reasonOf(a.err), v.elsewhere && !slow
		}
	default:
		if r.endUpload(up, err); r.upload.broken() {
			err = r.upload.err // so the endpoint's end was our doing
		}
		o.Reason = reasonOf(err)
		o.Failed = o.Reason != telemetry.ReasonOK && !r.clientGone() && !slow
	}
	if a.err == faultLate {
		up.Abort() // so that the endpoint's sidecar, too, gives up at once
	}
	r.c.Backend.Release(up, o)
	return err
}

// reasonOf is a fault's reason; none: the client is the cause.
func reasonOf(err error) telemetry.Reason {
	var f *Fault
	if errors.As(err, &f) {
		return f.Reason
	}
	return telemetry.ReasonOK
}

// unreached tells whether the endpoint's sidecar says that its application
// took nothing.
func (r *Relay) unreached(up *Conn) bool {
	return r.res.Status == 503 && up.Sidecar && r.res.Says(codec.ReasonField, string(telemetry.ReasonConnectFailed))
}

// drainAnswer throws the rest of an answer away that is not for the client, if
// it came with its head; false: it did not, so the connection is of no further
// use.
func (r *Relay) drainAnswer(up *Conn) bool {
	b := r.res.ResponseBody(&r.req)
	up.consume(r.res.Len())
	n, err := b.Take(up.buffered())
	up.consume(n)
	r.resBody = b
	if err != nil || !b.Done() || !r.upReusable(up) {
		return false
	}
	if !r.tries.end.IsZero() {
		up.SetDeadline(time.Time{})
	}
	return true
}

// attempt is how one went that got a connection.
type attempt struct {
	err    error // nil: the head of the final answer is there
	unsent bool  // with an error: not one byte was sent
	silent bool  // with an error: not one byte of an answer came
}

// try sends the request on up, for an answer before by.
func (r *Relay) try(up *Conn, by time.Time) attempt {
	if !by.IsZero() {
		up.SetDeadline(by)
	}
	began := time.Now()
	n, err := r.write(up)
	if err != nil {
		r.watch.latency = time.Since(began)
		if isLate(err) {
			return attempt{err: faultLate, unsent: n == 0}
		}
		return attempt{err: faultReset, unsent: n == 0, silent: true}
	}
	r.watch.await(up)
	defer r.watch.answered()
	if !r.reqBody.Done() {
		r.startUpload(up)
	}
	silent, err := r.readAnswer(up)
	r.watch.latency = time.Since(began)
	if err == nil && r.req.Minor == 0 && r.res.Chunked() && !r.res.Bodiless() {
		err = faultOldChunk
	}
	if err == nil && !by.IsZero() && by != r.tries.end {
		up.SetDeadline(r.tries.end) // zero: none
	}
	return attempt{err: err, silent: silent}
}

// write composes the head for this attempt and sends it with what there is of
// the body.
func (r *Relay) write(up *Conn) (int, error) {
	body := r.first
	if kept := r.tries.kept; kept != nil {
		body = kept[r.req.Len():]
	}
	r.compose(up)
	if len(body) <= joinLimit {
		r.out = append(r.out, body...)
		return up.Write(r.out)
	}
	n, err := up.Write(r.out)
	if err == nil {
		var m int
		m, err = up.Write(body)
		n += m
	}
	return n, err
}

// readAnswer reads the head of the final answer and relays informational ones.
// True with an error: not a byte of an answer came.
func (r *Relay) readAnswer(up *Conn) (bool, error) {
	for i := 0; i < maxInformational; i++ {
		r.res.Reset()
		if err := r.readHead(up); err != nil {
			return i == 0 && up.r == up.w, err
		}
		switch {
		case r.res.Status == 101 && !r.req.Upgrade():
			return false, faultSwitch
		case r.res.Status == 101 || r.res.Status >= 200:
			return false, nil
		}
		if r.req.Minor == 1 {
			r.tries.informed = true
			r.resEdit.NoLengths, r.resEdit.AsMinor1 = true, true
			// Not into out: it still holds the request.
			info := r.res.AppendTo(codec.TakeBuffer(codec.SmallBuffer)[:0], &r.resEdit)
			err := r.writeDown(append(info, "\r\n"...))
			codec.GiveBuffer(info)
			if err != nil {
				return false, err
			}
		}
		up.consume(r.res.Len())
	}
	return false, faultInform
}

func (r *Relay) readHead(up *Conn) error {
	for {
		if b := up.buffered(); len(b) > 0 {
			done, err := r.res.ParseResponse(b)
			if err != nil {
				return faultAnswer
			}
			if done {
				return nil
			}
		}
		if err := up.fill(); err != nil {
			switch {
			case err == errBufferFull:
				return faultAnswer
			case isLate(err):
				return faultLate
			}
			return faultReset
		}
	}
}

// switchProtocols passes on the answer that agrees to it, then bytes.
func (r *Relay) switchProtocols(ctx context.Context, up *Conn) error {
	r.resEdit.NoLengths, r.resEdit.AsMinor1 = true, true
	r.resEdit.Upgrade = r.res.Status == 101
	if !r.tries.end.IsZero() {
		up.SetDeadline(time.Time{}) // from here on it is no request any more
	}
	r.out = append(r.res.AppendTo(r.out[:0], &r.resEdit), "\r\n"...)
	up.consume(r.res.Len())
	if r.upload.running { // the rest of the request comes first
		<-r.upload.done
		r.upload.running = false
	}
	err := r.writeDown(r.out)
	r.giveOut()
	if err == nil {
		r.watch.enter(phaseTunnel)
		t := tunnel.Tunnel{Down: r.down.Conn, Up: up.Conn,
			FromDown: r.down.buffered(), FromUp: up.buffered()}
		err = t.Run()
		r.x.Sent += t.Sent()
		r.x.Received += t.Received()
	}
	r.c.Backend.Release(up, Outcome{Status: r.res.Status, Latency: r.watch.latency})
	r.record(r.res.Status)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return io.EOF
}

// answerFault answers a well-formed request that could not be served; true:
// the connection goes on.
func (r *Relay) answerFault(err error) (bool, error) {
	var f *Fault
	if r.upload.err != nil && errors.As(r.upload.err, &f) {
		err = f // what the client sent is the cause
	} else if !errors.As(err, &f) {
		return false, err
	}
	whole := r.reqBody.Done()
	keep := whole && r.req.Persistent() && !r.c.Draining()
	werr := r.answer(f, keep)
	r.record(f.Status)
	if werr != nil {
		return false, werr
	}
	if !keep {
		r.linger(!whole)
	}
	return keep, nil
}

// answer writes an answer of our own.
func (r *Relay) answer(f *Fault, keep bool) error {
	r.x.Reason = f.Reason
	r.takeOut()
	r.out = f.AppendAnswer(r.out, codec.Answer{Quiet: r.c.Quiet, Close: !keep, KeepAlive: r.req.Minor == 0, NoBody: r.req.IsHead()})
	return r.writeDown(r.out)
}
