package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// maxStale bounds how many dead connections of a pool one request looks at
// before it asks for a new one.
const maxStale = 3

// maxUnreached bounds how many endpoints are tried after the first one's
// sidecar said that its application took nothing: a Service scaled from four
// to one has three of those for the moment until the news has spread.
const maxUnreached = 5

// ReasonField is the field of an answer that says why a sidecar refused or
// failed a request; lower case.
const ReasonField = "x-heddle-reason"

var (
	faultReset    = &Fault{Status: 502, Reason: telemetry.ReasonUpstreamReset, Detail: "endpoint closed the connection without an answer"}
	faultAnswer   = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint's answer is not HTTP/1.x"}
	faultSwitch   = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint switched protocols unasked"}
	faultOldChunk = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint answered an HTTP/1.0 request in chunks"}
	faultInform   = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint sent too many informational answers"}
)

// send sends the request and reads the head of the final answer. A request is
// sent again, once, on a new connection, where that cannot run it twice: the
// pooled connection took not one byte of it, or it is safe to repeat and the
// connection ended before any byte of an answer.
func (r *Relay) send(ctx context.Context) (*Conn, error) {
	for attempt, stale := 0, 0; ; attempt++ {
		r.watch.enter(phaseSend)
		up, err := r.c.Backend.Open(ctx, &r.req, Try{N: attempt, Fresh: attempt > 0})
		if err != nil {
			return nil, err
		}
		if up.Reused && !r.req.Replayable() && !up.Alive() {
			r.c.Backend.Release(up, Outcome{Unsent: true})
			if stale++; stale < maxStale {
				attempt--
			}
			continue
		}
		again, err := r.try(up)
		if err == nil && r.unreached(up) && attempt < maxUnreached {
			r.c.Backend.Release(up, Outcome{Reusable: r.drainAnswer(up), Unreached: true, Status: r.res.Status, Reason: telemetry.ReasonConnectFailed})
			r.x.Replayed = true
			continue
		}
		if err == nil {
			return up, nil
		}
		again = again && up.Reused && attempt == 0
		r.endUpload(up, err)
		r.c.Backend.Release(up, Outcome{Failed: !again, Reason: reasonOf(err), Latency: r.watch.latency})
		if !again {
			return nil, err
		}
		r.x.Replayed = true
	}
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
// took nothing, and the request is still whole in our hands.
func (r *Relay) unreached(up *Conn) bool {
	if r.res.Status != 503 || !up.Sidecar || r.upload.running {
		return false
	}
	return r.res.Says(ReasonField, string(telemetry.ReasonConnectFailed))
}

// drainAnswer throws the rest of a sidecar's own answer away, which came with
// its head; false: it did not, so the connection is of no further use.
func (r *Relay) drainAnswer(up *Conn) bool {
	b := r.res.ResponseBody(&r.req)
	up.consume(r.res.Len())
	n, err := b.Take(up.buffered())
	up.consume(n)
	return err == nil && b.Done() && r.res.Persistent()
}

// try sends the request on up; true with an error: it may be sent again.
func (r *Relay) try(up *Conn) (bool, error) {
	r.compose(up)
	began := time.Now()
	n, err := up.Write(r.out)
	if err != nil {
		r.watch.latency = time.Since(began)
		return n == 0, faultReset
	}
	r.watch.await(up)
	defer r.watch.await(nil)
	if !r.reqBody.Done() {
		r.startUpload(up)
	}
	untouched, err := r.readAnswer(up)
	r.watch.latency = time.Since(began)
	if err == nil && r.req.Minor == 0 && r.res.Chunked() && !r.res.Bodiless() {
		err = faultOldChunk
	}
	return untouched && r.req.Replayable() && !r.upload.running, err
}

// readAnswer reads the head of the final answer and relays informational ones.
// True with an error: not a byte of an answer came.
func (r *Relay) readAnswer(up *Conn) (bool, error) {
	for i := 0; i < maxInformational; i++ {
		r.res.Reset()
		if err := r.readHead(up); err != nil {
			return i == 0 && up.r == up.w && err == faultReset, err
		}
		switch {
		case r.res.Status == 101 && !r.req.Upgrade():
			return false, faultSwitch
		case r.res.Status == 101 || r.res.Status >= 200:
			return false, nil
		}
		if r.req.Minor == 1 {
			r.resEdit.NoLengths, r.resEdit.AsMinor1 = true, true
			// Not into out: it still holds the request.
			info := r.res.AppendTo(takeBuffer(smallBuffer)[:0], &r.resEdit)
			err := r.writeDown(append(info, "\r\n"...))
			giveBuffer(info)
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
			if err == errBufferFull {
				return faultAnswer
			}
			return faultReset
		}
	}
}

// switchProtocols passes on the answer that agrees to it, then bytes.
func (r *Relay) switchProtocols(ctx context.Context, up *Conn) error {
	r.resEdit.NoLengths, r.resEdit.AsMinor1 = true, true
	r.resEdit.Upgrade = r.res.Status == 101
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
	o := append(r.out, "HTTP/1.1 "...)
	o = appendInt(o, f.Status)
	o = append(append(o, ' '), statusText(f.Status)...)
	o = append(o, "\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: "...)
	o = appendInt(o, len("heddle: \n")+len(f.Detail))
	if !r.c.Quiet {
		o = append(append(append(append(o, "\r\n"...), ReasonField...), ": "...), f.Reason...)
	}
	switch {
	case !keep:
		o = append(o, "\r\nConnection: close"...)
	case r.req.Minor == 0:
		o = append(o, "\r\nConnection: keep-alive"...)
	}
	o = append(o, "\r\n\r\n"...)
	if !r.req.IsHead() {
		o = append(append(append(o, "heddle: "...), f.Detail...), '\n')
	}
	r.out = o
	return r.writeDown(o)
}

func appendInt(b []byte, n int) []byte {
	if n >= 10 {
		b = appendInt(b, n/10)
	}
	return append(b, byte('0'+n%10))
}

func statusText(status int) string {
	switch status {
	case 400:
		return "Bad Request"
	case 403:
		return "Forbidden"
	case 408:
		return "Request Timeout"
	case 431:
		return "Request Header Fields Too Large"
	case 501:
		return "Not Implemented"
	case 502:
		return "Bad Gateway"
	case 503:
		return "Service Unavailable"
	case 504:
		return "Gateway Timeout"
	case 505:
		return "HTTP Version Not Supported"
	}
	return "Error"
}
