package http2

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
	"github.com/heddle-mesh/heddle/sidecar/http2/link"
)

// Config is what a Relay is to do besides relaying.
type Config struct {
	Backend Backend
	// Client is appended to X-Forwarded-For; empty: the field is left alone.
	Client string
	// Fields are added to each request; fields of the same names give way.
	Fields []Field
	// Guarded removes x-heddle-* fields from requests and answers, so that only
	// sidecars can have written what an application or a client sees of them.
	Guarded bool
	// Quiet leaves x-heddle-reason out of our own answers (outside callers).
	Quiet   bool
	Streams uint32 // most that the client may have open; zero: link.DefaultStreams
}

// Relay serves the requests of one client's connection.
type Relay struct {
	c     Config
	conn  *link.Conn
	heads atomic.Int64
	wg    sync.WaitGroup // Backend.Await

	mu    sync.Mutex
	timed map[*Exchange]struct{} // that have to end by some time
}

// NewRelay makes a relay for a client's connection, of which read was read.
func NewRelay(conn net.Conn, read []byte, c Config) *Relay {
	r := &Relay{c: c, timed: map[*Exchange]struct{}{}}
	r.conn = link.New(link.Config{Conn: conn, Read: read, Server: true, Handler: (*client)(r), Streams: c.Streams})
	return r
}

// Serve relays until the connection ends, by the client, with ctx, or drained.
// It is closed then, and nothing of its requests is under way any more.
func (r *Relay) Serve(ctx context.Context) error {
	err := r.conn.Serve(ctx)
	r.wg.Wait()
	return err
}

// Busy tells whether requests are under way.
func (r *Relay) Busy() bool { return r.conn.Busy() }

// Drain ends the connection when its requests are answered; the client is told.
func (r *Relay) Drain() { r.conn.Drain() }

// Sweep ends what has waited too long. It is to be called once a second, until
// Serve has returned.
func (r *Relay) Sweep() {
	r.conn.Sweep()
	now := time.Now()
	var late []*Exchange
	r.mu.Lock()
	for x := range r.timed {
		if now.After(x.By) {
			late = append(late, x)
			delete(r.timed, x)
		}
	}
	r.mu.Unlock()
	for _, x := range late {
		x.late()
	}
}

func (r *Relay) watch(x *Exchange) {
	r.mu.Lock()
	r.timed[x] = struct{}{}
	r.mu.Unlock()
}

func (r *Relay) forget(x *Exchange) {
	r.mu.Lock()
	delete(r.timed, x)
	r.mu.Unlock()
}

var (
	faultConnect  = &Fault{Status: 501, Reason: telemetry.ReasonBadRequest, Detail: "CONNECT is not served here"}
	faultTooLarge = &Fault{Status: 431, Reason: telemetry.ReasonHeaderTooLarge, Detail: "header fields of more than 64 KiB, or more than 1000"}
	faultReset    = &Fault{Status: 502, Reason: telemetry.ReasonUpstreamReset, Detail: "endpoint closed the connection without an answer"}
	faultAnswer   = &Fault{Status: 502, Reason: telemetry.ReasonBadResponse, Detail: "endpoint's answer is not HTTP/2"}
	faultLate     = &Fault{Status: 504, Reason: telemetry.ReasonUpstreamTimeout, Detail: "no answer in the time that the policy gives"}
	faultFull     = &Fault{Status: 503, Reason: telemetry.ReasonConnectFailed, Detail: "no endpoint took the request"}
)

var (
	faultProtocol = &frame.Fault{Code: frame.ProtocolError, Stream: true, Detail: ":protocol, which was not announced (RFC 8441, 3)"}
	faultMiddle   = &frame.Fault{Code: frame.ProtocolError, Stream: true, Detail: "a header block amid the body that ends nothing (RFC 9113, 8.1)"}
	faultNoHead   = &frame.Fault{Code: frame.ProtocolError, Stream: true, Detail: "data before a head (RFC 9113, 8.1)"}
	faultHeads    = &frame.Fault{Code: frame.RefusedStream, Stream: true, Detail: "heads of unanswered requests take more than 1 MiB"}
	faultInterims = &frame.Fault{Code: frame.EnhanceYourCalm, Stream: true, Detail: "more than 32 answers of 1xx"}
)

// client takes what a client says.
type client Relay

// Headers begins a request, or ends one with trailers.
func (c *client) Headers(s *link.Stream, l *hpack.List, end bool) *frame.Fault {
	r := (*Relay)(c)
	if s.Owner != nil {
		return s.Owner.(*Exchange).takeTrailers(l, end)
	}
	x := &Exchange{r: r, down: s, Start: time.Now(), whole: true}
	s.Owner = x
	if l.TooLarge {
		x.refuse(faultTooLarge, end)
		return nil
	}
	fault := x.Request.Parse(l)
	if fault == nil && x.Request.Protocol != nil {
		fault = faultProtocol
	}
	x.reqBody, x.reqEnd = x.Request.Body(), end
	if fault == nil && end {
		fault = x.reqBody.End()
	}
	if fault == nil && r.heads.Load()+int64(l.Size) > maxHeads {
		fault = faultHeads
	}
	if fault != nil {
		x.malformed()
		return fault
	}
	if x.Request.IsConnect {
		x.refuse(faultConnect, end)
		return nil
	}
	x.grpc = isGRPC(l)
	x.list, x.size = r.conn.TakeList(), l.Size
	r.heads.Add(int64(x.size))
	x.open(true)
	return nil
}

// Data takes a piece of a request's body.
func (c *client) Data(s *link.Stream, p []byte, end bool) *frame.Fault {
	return s.Owner.(*Exchange).takeBody(p, end)
}

// Ended ends a request whose client does not want it any more.
func (c *client) Ended(s *link.Stream, e link.End) {
	if x, ok := s.Owner.(*Exchange); ok {
		x.clientGone()
	}
}

// NewUpstream makes a connection to an endpoint of one that was dialled; Serve
// begins to talk. Its owner runs Serve, and Sweep once a second.
func NewUpstream(conn net.Conn, c UpstreamConfig) *Upstream {
	u := &Upstream{UpstreamConfig: c}
	u.Conn = link.New(link.Config{Conn: conn, Handler: (*endpoint)(u), Streams: c.Streams})
	return u
}

// endpoint takes what an endpoint says.
type endpoint Upstream

// Headers takes the head of an answer, or its trailers.
func (u *endpoint) Headers(s *link.Stream, l *hpack.List, end bool) *frame.Fault {
	g := s.Owner.(*leg)
	x := g.x
	u.Touch(x.r.conn)
	x.mu.Lock()
	defer x.unlock()
	switch {
	case x.up != g:
		return nil
	case x.final:
		return x.endpointTrailers(g, l, end)
	}
	var fault *frame.Fault
	if l.TooLarge {
		fault = faultNoHead
	} else if fault = x.res.Parse(l, end); fault == nil && x.res.Interim() {
		if x.interims++; x.interims <= maxInterim {
			x.committed = true
			x.answer = responseHead{trailers: trailers{l, x.r.c.Guarded}}
			x.down.Head(&x.answer, false)
			return nil
		}
		fault = faultInterims
	}
	x.latency = time.Since(x.began)
	x.resBody = x.res.Body(&x.Request)
	if fault == nil && end {
		fault = x.resBody.End()
	}
	if fault != nil {
		return x.endpointFault(g, fault)
	}
	if g.u.Sidecar && x.res.Status == 503 && says(l, reasonField, telemetry.ReasonConnectFailed) && x.mayRepeat() {
		x.repeat(g, Outcome{Unreached: true, Status: 503, Reason: telemetry.ReasonConnectFailed})
		g.Reset(frame.Cancel)
		return nil
	}
	x.final, x.committed, x.Status = true, true, x.res.Status
	x.answer = responseHead{trailers: trailers{l, x.r.c.Guarded}}
	x.down.Head(&x.answer, end)
	x.settle()
	if x.resEnd = end; end {
		x.ended()
	}
	return nil
}

// Data takes a piece of an answer's body.
func (u *endpoint) Data(s *link.Stream, p []byte, end bool) *frame.Fault {
	g := s.Owner.(*leg)
	x := g.x
	u.Touch(x.r.conn)
	x.mu.Lock()
	defer x.unlock()
	if x.up != g {
		s.Credit(len(p))
		return nil
	}
	var fault *frame.Fault
	if !x.final {
		fault = faultNoHead
	} else if fault = x.resBody.Take(len(p)); fault == nil && end {
		fault = x.resBody.End()
	}
	if fault != nil {
		s.Credit(len(p))
		return x.endpointFault(g, fault)
	}
	x.Sent += int64(len(p))
	x.down.Data(p, s, end)
	if x.resEnd = end; end {
		x.ended()
	}
	return nil
}

// Ended takes notice that an endpoint has broken off, or refused.
func (u *endpoint) Ended(s *link.Stream, e link.End) {
	g := s.Owner.(*leg)
	u.Touch(g.x.r.conn)
	g.x.endpointGone(g, e)
}
