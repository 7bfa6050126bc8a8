package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/retry"
)

// Backend finds connections for requests and is told how they fared. Its calls
// for one Relay come one after the other.
type Backend interface {
	// Open gives a connection for an attempt at req, whose texts are valid until
	// Open returns; to another endpoint than those released as Unreached. An
	// error that is a *Fault is what the client is told.
	Open(ctx context.Context, req *Head, try Try) (*Conn, error)
	// Release takes a connection back, after each Open that gave one.
	Release(up *Conn, o Outcome)
	// Record is called once for each request, answered or not.
	Record(x *Exchange)
}

// Try is one attempt at a request.
type Try struct {
	N int // 0 for the first
	// Fresh asks for a new connection: one from the pool has just failed.
	Fresh bool
	// By is when it has to be done, connecting included; zero: no limit.
	By time.Time
}

// Outcome says what became of a connection in an exchange.
type Outcome struct {
	Reusable bool // else it is to be closed
	Failed   bool // the endpoint broke off or did not speak HTTP
	// Unreached: the endpoint's sidecar says that the application did not take
	// the request. It is tried elsewhere.
	Unreached bool
	Elsewhere bool             // the request is sent again, to another endpoint if there is one
	Unsent    bool             // nothing was sent: the pooled connection was dead
	Status    int              // of the endpoint's answer; 0: none
	Reason    telemetry.Reason // why there is none, or not all of it
	Latency   time.Duration    // until the head of the answer
}

// Exchange is one request and its answer.
type Exchange struct {
	Status         int              // what the client was told; 0: nothing
	Reason         telemetry.Reason // set if the answer is ours, or was cut
	Replayed       bool             // sent again since it provably had not reached an application
	Retries        retry.Counts     // sent again as the policy says
	Denied         telemetry.Reason // why it was not sent again once more, although the policy says so
	Start          time.Time
	Duration       time.Duration // until the end of the answer
	Sent, Received int64         // bytes to and from the client
}

// Config is what a Relay is to do besides relaying.
type Config struct {
	Backend Backend
	// Client is appended to X-Forwarded-For; empty: the field is left alone.
	Client string
	// Fields are whole field lines, with CRLF, added to each request.
	Fields string
	// Guarded removes x-heddle-* fields from requests and answers, so that only
	// sidecars can have written what an application or a client sees of them.
	Guarded bool
	// Quiet leaves x-heddle-reason out of our own answers (outside callers).
	Quiet bool
	// Plan tells, for each request, how it is treated; nil: the zero Plan.
	Plan func() Plan
	// Draining, when true, has each answer end its connection; nil: never.
	Draining func() bool
}

// Relay serves the requests of one client connection, one after the other.
type Relay struct {
	c        Config
	down     *Conn
	req, res Head
	reqBody  codec.Body
	resBody  codec.Body
	reqEdit  codec.Edit
	resEdit  codec.Edit
	first    []byte // of the body: what leaves with the head
	out      []byte // what is composed for the next write
	x        Exchange
	recorded bool
	tries    attempts
	upload   upload
	watch    watch
}

// NewRelay makes a relay for a client's connection.
func NewRelay(down *Conn, c Config) *Relay {
	r := &Relay{c: c, down: down}
	if c.Draining == nil {
		r.c.Draining = func() bool { return false }
	}
	if c.Client != "" {
		r.reqEdit.Client = []byte(c.Client)
	}
	r.reqEdit.Extra = []byte(c.Fields)
	r.reqEdit.NoHeddle, r.resEdit.NoHeddle = c.Guarded, c.Guarded
	r.upload.done = make(chan struct{}, 1)
	return r
}

// errCut says that an answer was broken off: the client must see a reset.
var errCut = errors.New("answer cut off")

// Serve relays until the client or we end the connection, which is closed
// then. The error says why it ended before its time; nil: in order.
func (r *Relay) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.watch.cancel.Store(&cancel)
	for {
		if err := r.readRequest(); err != nil {
			return r.close(err)
		}
		again, err := r.exchange(ctx)
		r.tries.forget()
		if err != nil || !again {
			return r.close(err)
		}
	}
}

// readRequest waits for a request and parses its head.
func (r *Relay) readRequest() error {
	r.req.Reset()
	r.x, r.recorded = Exchange{}, false
	r.giveOut()
	r.down.release()
	r.watch.enter(phaseIdle)
	begun := false
	for {
		if b := r.down.buffered(); len(b) > 0 {
			if !begun {
				r.watch.enter(phaseHead)
				begun = true
			}
			done, err := r.req.ParseRequest(b)
			if done || err != nil {
				r.x.Start = time.Now()
				r.x.Received = int64(r.req.Len())
				return err
			}
		} else if r.c.Draining() && r.down.Reused {
			return io.EOF
		}
		err := r.fillDown()
		switch {
		case err == nil:
		case begun && errors.Is(err, os.ErrDeadlineExceeded):
			r.x.Start = time.Now()
			return faultSlow
		case begun && err == errBufferFull:
			return codec.TooLarge
		case !begun && isRoutine(err):
			return io.EOF
		default:
			return err
		}
	}
}

var faultSlow = &Fault{Status: 408, Reason: telemetry.ReasonRequestTimeout, Detail: "request head did not arrive in time"}

// isRoutine tells the ends of idle connections that nobody need know of.
func isRoutine(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed)
}

// exchange relays one request and its answer; true: the connection goes on.
func (r *Relay) exchange(ctx context.Context) (bool, error) {
	r.down.Reused = true
	if err := r.begin(); err != nil {
		return false, err
	}
	up, err := r.send(ctx)
	if err != nil {
		again, err := r.answerFault(err)
		if !r.recorded {
			r.record(0) // the client went away
		}
		return again, err
	}
	if r.res.Status == 101 || r.req.IsConnect() && r.res.Status/100 == 2 {
		return false, r.switchProtocols(ctx, up)
	}
	keep := r.composeAnswer()
	err = r.stream(up)
	complete := r.endUpload(up, err)
	reusable := err == nil && complete && r.upReusable(up)
	o := Outcome{Reusable: reusable, Status: r.res.Status, Latency: r.watch.latency}
	switch {
	case err == errUpstream && !r.clientGone():
		o.Reason, o.Failed = telemetry.ReasonUpstreamReset, true
	case err == errLate:
		o.Reason, o.Failed = telemetry.ReasonUpstreamTimeout, true
		up.Abort()
	}
	if reusable && !r.tries.end.IsZero() {
		up.SetDeadline(time.Time{})
	}
	r.c.Backend.Release(up, o)
	switch {
	case err == nil:
	case o.Failed:
		r.x.Reason = o.Reason
		err = errCut
	default:
		r.x.Reason = telemetry.ReasonOK // the client went away
	}
	r.record(r.res.Status)
	if err == nil && (!keep || !complete) {
		r.linger(!complete)
	}
	return keep && complete, err
}

// begin takes the request's head and what is already here of its body. Both
// stay where they were read, for every attempt to use, until more is read.
func (r *Relay) begin() error {
	r.down.consume(r.req.Len())
	r.reqBody = r.req.RequestBody()
	b := r.down.buffered()
	n, err := r.reqBody.Take(b[:min(len(b), joinLimit)])
	if err != nil {
		return err
	}
	r.first = b[:n]
	r.x.Received += int64(n)
	r.down.consume(n)
	return nil
}

// compose puts the edited head for an attempt into out.
func (r *Relay) compose(up *Conn) {
	r.takeOut()
	r.reqEdit.Instead = up.Fields
	r.out = r.req.AppendTo(r.out, &r.reqEdit)
	if r.req.Minor == 0 && r.req.KeepAlive() {
		r.out = append(r.out, "Connection: keep-alive\r\n"...)
	}
	r.out = append(r.out, "\r\n"...)
}

// upReusable tells whether the endpoint's connection can carry another request.
func (r *Relay) upReusable(up *Conn) bool {
	if r.req.Minor == 0 && !(r.req.KeepAlive() && r.res.KeepAlive()) {
		return false
	}
	return r.res.Persistent() && !r.resBody.UntilClose() && up.r == up.w && !r.watch.halfClosed.Load()
}

// composeAnswer puts the edited head of the answer and the first of its body
// into out and tells whether the client's connection goes on after it.
func (r *Relay) composeAnswer() bool {
	r.resBody = r.res.ResponseBody(&r.req)
	keep := r.req.Persistent() && !r.c.Draining() && !r.resBody.UntilClose() &&
		!r.watch.halfClosed.Load() && r.upload.ending(&r.reqBody)
	r.resEdit.NoLengths = r.res.Status == 204
	r.resEdit.AsMinor1 = r.req.Minor == 1
	r.out = r.res.AppendTo(r.out[:0], &r.resEdit)
	switch {
	case !keep:
		r.out = append(r.out, "Connection: close\r\n"...)
	case r.req.Minor == 0:
		r.out = append(r.out, "Connection: keep-alive\r\n"...)
	}
	r.out = append(r.out, "\r\n"...)
	return keep
}

var (
	errUpstream = errors.New("endpoint broke off its answer")
	errLate     = errors.New("the answer took longer than the policy allows")
)

// stream writes the answer's head and body to the client.
func (r *Relay) stream(up *Conn) error {
	up.consume(r.res.Len())
	b := up.buffered()
	n, err := r.resBody.Take(b[:min(len(b), joinLimit)])
	if err != nil {
		return errUpstream
	}
	r.out = append(r.out, b[:n]...)
	up.consume(n)
	if err := r.writeDown(r.out); err != nil {
		return err
	}
	r.giveOut() // a long answer needs it no more
	if !r.resBody.Done() {
		r.watch.enter(phaseBody)
	}
	for !r.resBody.Done() {
		if up.r == up.w {
			err := up.fill()
			if err == io.EOF && r.resBody.UntilClose() {
				return nil
			}
			if isLate(err) {
				return errLate
			}
			if err != nil {
				return errUpstream
			}
		}
		n, err := r.resBody.Take(up.buffered())
		if n > 0 {
			if err := r.writeDown(up.buffered()[:n]); err != nil {
				return err
			}
			up.consume(n)
		}
		if err != nil {
			return errUpstream
		}
	}
	return nil
}

func (r *Relay) writeDown(b []byte) error {
	n, err := r.down.Write(b)
	r.x.Sent += int64(n)
	return err
}

// record tells the Backend of the exchange.
func (r *Relay) record(status int) {
	r.x.Status = status
	if r.x.Start.IsZero() {
		r.x.Start = time.Now()
	}
	r.x.Duration = time.Since(r.x.Start)
	r.x.Received += r.upload.bytes
	r.upload.bytes = 0
	r.recorded = true
	r.c.Backend.Record(&r.x)
}

func (r *Relay) takeOut() {
	if r.out == nil {
		r.out = codec.TakeBuffer(codec.MediumBuffer)[:0]
	}
	r.out = r.out[:0]
}

// giveOut gives the buffer back, unless a large head made append replace it:
// then it is garbage.
func (r *Relay) giveOut() {
	if r.out != nil {
		codec.GiveBuffer(r.out)
		r.out = nil
	}
}

// close ends the client's connection: with an answer if it asked for something
// we refuse, with a reset if it must not take what it has for the whole.
func (r *Relay) close(err error) error {
	var f *Fault
	switch {
	case errors.As(err, &f):
		r.down.Reused = true
		if r.answer(f, false) == nil {
			r.linger(true)
		}
		r.record(f.Status)
	case err == nil, err == io.EOF:
		err = nil
	default:
		r.down.Abort()
	}
	r.giveOut()
	r.down.Close()
	return err
}
