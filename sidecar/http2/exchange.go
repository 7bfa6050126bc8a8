package http2

import (
	"context"
	"errors"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
	"github.com/heddle-mesh/heddle/sidecar/http2/link"
	"github.com/heddle-mesh/heddle/sidecar/http2/message"
)

const reasonField = codec.ReasonField

// unlock does what may not be done under the lock.
func (x *Exchange) unlock() {
	g, o, again, recorded := x.release, x.outcome, x.again, x.recorded
	x.release, x.again, x.recorded = nil, false, false
	x.mu.Unlock()
	if g != nil {
		x.r.c.Backend.Release(x, g.u, o)
	}
	switch {
	case again:
		x.open(false)
	case recorded:
		if !x.By.IsZero() {
			x.r.forget(x)
		}
		x.r.c.Backend.Record(x)
	}
}

// leave ends the attempt.
func (x *Exchange) leave(g *leg, o Outcome) {
	if o.Latency = x.latency; o.Latency == 0 {
		o.Latency = time.Since(x.began)
	}
	x.up, x.release, x.outcome = nil, g, o
}

// finish ends the exchange; what the client sees of it was sent.
func (x *Exchange) finish() {
	if x.done {
		return
	}
	x.done, x.recorded = true, true
	x.Duration = time.Since(x.Start)
	x.settle()
	if x.cancel != nil {
		x.cancel()
	}
}

// settle gives back what was kept for another attempt.
func (x *Exchange) settle() {
	x.whole, x.kept = false, nil
	if x.list != nil {
		x.r.heads.Add(-int64(x.size))
		if !x.opening {
			link.GiveList(x.list)
		}
		x.list = nil
	}
}

// open finds an endpoint for the request; reading: in a call of the client's
// connection, which is flushed after it.
func (x *Exchange) open(reading bool) {
	for {
		u, err := x.r.c.Backend.Open(x)
		switch {
		case errors.Is(err, ErrWait):
			x.await()
			return
		case err != nil:
			x.unopened(err, reading)
			return
		case x.attach(u, reading):
			return
		}
	}
}

func (x *Exchange) await() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done { // then Serve may be waiting already
		return
	}
	x.opening = true
	ctx, cancel := context.WithCancel(context.Background()) // ends with the client: clientGone
	x.cancel = cancel
	x.r.wg.Go(func() {
		defer cancel()
		for {
			u, err := x.r.c.Backend.Await(ctx, x)
			if err != nil {
				x.unopened(err, false)
				return
			}
			if x.attach(u, false) {
				return
			}
		}
	})
}

// attach sends the request to u; false: another is to be asked.
func (x *Exchange) attach(u *Upstream, reading bool) bool {
	x.mu.Lock()
	g := &leg{x: x, u: u}
	g.Owner = g
	x.began, x.latency = time.Now(), 0
	if x.done {
		x.leave(g, Outcome{Unsent: true})
		x.unlock()
		return true
	}
	x.head.x = x
	if err := u.Open(&g.Stream, &x.head, x.reqEnd && len(x.kept) == 0 && x.reqTrail == nil); err != nil {
		x.leave(g, Outcome{Unsent: true})
		x.Try++
		x.unlock()
		if x.Try < maxTries {
			return false
		}
		x.unopened(faultFull, reading)
		return true
	}
	x.up, x.opening = g, false
	if len(x.kept) > 0 {
		end := x.reqEnd && x.reqTrail == nil
		given := len(x.kept) - x.fresh
		g.Data(x.kept[:given], nil, end && x.fresh == 0)
		if x.fresh > 0 {
			g.Data(x.kept[given:], x.down, end)
		}
		if x.fresh = 0; len(x.kept) > keepMost {
			x.whole, x.kept = false, nil
		}
	}
	if x.reqTrail != nil {
		x.trail = trailers{x.reqTrail, x.r.c.Guarded}
		g.Head(&x.trail, true)
	}
	by := x.By
	x.unlock()
	if !by.IsZero() {
		x.r.watch(x)
	}
	if reading {
		x.r.conn.Touch(u.Conn)
		return true
	}
	u.Flush()
	x.r.conn.Flush()
	return true
}

// unopened tells the client that there is no endpoint.
func (x *Exchange) unopened(err error, reading bool) {
	fault := faultFull
	errors.As(err, &fault)
	x.mu.Lock()
	x.say(fault)
	x.unlock()
	if !reading {
		x.r.conn.Flush()
	}
}

// say answers in the place of an endpoint.
func (x *Exchange) say(f *Fault) {
	if x.done {
		return
	}
	x.Status, x.Reason, x.final = f.Status, f.Reason, true
	x.answer = responseHead{fault: f, x: x}
	bare := x.grpc || x.Request.IsHead
	x.down.Head(&x.answer, bare)
	if !bare {
		x.down.Data(append([]byte(f.Detail), '\n'), nil, true)
	}
	if x.resEnd = true; !x.reqEnd {
		x.down.Reset(frame.NoError) // the rest of it is of no use (RFC 9113, 8.1)
	}
	x.finish()
}

// refuse answers what has not been offered to anybody.
func (x *Exchange) refuse(f *Fault, end bool) {
	x.mu.Lock()
	x.reqEnd = end
	x.say(f)
	x.unlock()
}

// malformed counts a request that the client broke off by an error of its own.
func (x *Exchange) malformed() {
	x.mu.Lock()
	x.Reason = telemetry.ReasonBadRequest
	x.finish()
	x.unlock()
}

// takeBody takes a piece of the request's body.
func (x *Exchange) takeBody(p []byte, end bool) *frame.Fault {
	x.mu.Lock()
	defer x.unlock()
	fault := x.reqBody.Take(len(p))
	if fault == nil && end {
		fault = x.reqBody.End()
	}
	if fault != nil || x.done {
		x.down.Credit(len(p))
		if fault != nil {
			x.broken()
		}
		return fault
	}
	x.reqEnd = end
	x.Received += int64(len(p))
	switch {
	case x.up == nil && !x.final:
		x.kept = append(x.kept, p...)
		x.fresh += len(p)
		return nil
	case x.up == nil: // answered in full
		x.down.Credit(len(p))
		return nil
	case x.whole && len(x.kept)+len(p) <= keepMost:
		x.kept = append(x.kept, p...)
	default:
		x.whole, x.kept = false, nil
	}
	x.up.Data(p, x.down, end)
	x.r.conn.Touch(x.up.u.Conn)
	if end {
		x.ended()
	}
	return nil
}

func (x *Exchange) takeTrailers(l *hpack.List, end bool) *frame.Fault {
	x.mu.Lock()
	defer x.unlock()
	var fault *frame.Fault
	switch {
	case !end, l.TooLarge:
		fault = faultMiddle
	default:
		if fault = message.Trailers(l); fault == nil {
			fault = x.reqBody.End()
		}
	}
	if fault != nil {
		x.broken()
		return fault
	}
	if x.done || x.final && x.up == nil {
		return nil
	}
	x.reqEnd = true
	// Kept for another attempt: requests with trailers are rare.
	x.reqTrail = x.r.conn.TakeList()
	if x.up != nil {
		x.trail = trailers{x.reqTrail, x.r.c.Guarded}
		x.up.Head(&x.trail, true)
		x.r.conn.Touch(x.up.u.Conn)
		x.ended()
	}
	return nil
}

// broken ends an exchange whose client broke a rule; its stream is reset by who
// is told so.
func (x *Exchange) broken() {
	if x.done {
		return
	}
	x.Reason = telemetry.ReasonBadRequest
	x.drop(frame.Cancel)
	x.finish()
}

// drop ends the attempt that is under way, for no fault of the endpoint's.
func (x *Exchange) drop(code frame.Code) {
	if g := x.up; g != nil {
		g.Reset(code)
		x.r.conn.Touch(g.u.Conn)
		x.leave(g, Outcome{Status: x.Status})
	}
}

// clientGone ends what nobody wants any more.
func (x *Exchange) clientGone() {
	x.mu.Lock()
	if !x.done {
		x.drop(frame.Cancel)
		x.finish()
	}
	x.unlock()
}

// ended ends the exchange if both sides have said their last.
func (x *Exchange) ended() {
	if x.reqEnd && x.resEnd && x.up != nil {
		x.leave(x.up, Outcome{Status: x.res.Status})
		x.finish()
	}
}

func (x *Exchange) endpointTrailers(g *leg, l *hpack.List, end bool) *frame.Fault {
	fault := faultMiddle
	if end && !l.TooLarge {
		if fault = message.Trailers(l); fault == nil {
			fault = x.resBody.End()
		}
	}
	if fault != nil {
		return x.endpointFault(g, fault)
	}
	x.downTrail = trailers{l, x.r.c.Guarded}
	if x.down.Head(&x.downTrail, true) {
		g.Conn().TakeList()
	}
	x.resEnd = true
	x.ended()
	return nil
}

// endpointFault ends an exchange whose endpoint broke a rule.
func (x *Exchange) endpointFault(g *leg, fault *frame.Fault) *frame.Fault {
	x.leave(g, Outcome{Failed: true, Status: x.Status, Reason: telemetry.ReasonBadResponse})
	x.cut(faultAnswer, frame.InternalError)
	return fault
}

// cut answers, or breaks off an answer that has begun.
func (x *Exchange) cut(f *Fault, code frame.Code) {
	if !x.final {
		x.say(f)
		return
	}
	x.Reason = f.Reason
	x.down.Reset(code)
	x.finish()
}

// mayRepeat tells whether the request can be offered to another endpoint.
func (x *Exchange) mayRepeat() bool { return !x.committed && x.whole && x.Try+1 < maxTries }

// repeat has the request offered to another endpoint, without the lock.
func (x *Exchange) repeat(g *leg, o Outcome) {
	x.leave(g, o)
	x.Try++
	x.Replayed, x.again, x.opening = true, true, true
	x.res = message.Response{}
}

// endpointGone takes notice that an attempt has ended before its time.
func (x *Exchange) endpointGone(g *leg, e link.End) {
	x.mu.Lock()
	defer x.unlock()
	switch {
	case x.up != g:
	case e.Unseen && x.mayRepeat():
		x.repeat(g, Outcome{Unseen: true})
	case x.resEnd && e.Code == frame.NoError: // it does not want the rest
		x.leave(g, Outcome{Status: x.Status})
		x.down.Reset(frame.NoError)
		x.finish()
	case e.Conn:
		x.leave(g, Outcome{Failed: true, Unseen: e.Unseen, Status: x.Status, Reason: telemetry.ReasonUpstreamReset})
		x.cut(faultReset, frame.InternalError)
	default:
		// The endpoint's own word, which the client has to hear: some send again what
		// was refused.
		x.leave(g, Outcome{Status: x.Status, Reason: telemetry.ReasonUpstreamReset})
		x.Reason = telemetry.ReasonUpstreamReset
		x.down.Reset(passed(e.Code))
		x.finish()
	}
}

// late ends what took longer than it may.
func (x *Exchange) late() {
	x.mu.Lock()
	if g := x.up; !x.done && g != nil {
		g.Reset(frame.Cancel)
		x.leave(g, Outcome{Failed: true, Status: x.Status, Reason: telemetry.ReasonUpstreamTimeout})
		defer g.u.Flush()
	}
	if !x.done {
		x.cut(faultLate, frame.Cancel)
	}
	x.unlock()
	x.r.conn.Flush()
}
