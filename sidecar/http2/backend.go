package http2

import (
	"context"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
	"github.com/heddle-mesh/heddle/sidecar/http2/link"
	"github.com/heddle-mesh/heddle/sidecar/http2/message"
)

// Fault is why a request is not served, and what its client is told.
type Fault = codec.Fault

// Backend finds connections for requests and is told how they fared. Calls for
// different requests come at the same time, from any goroutine.
type Backend interface {
	// Open gives a connection for an attempt at the request, without waiting;
	// ErrWait: Await is to be asked. For attempts after the first it may refuse by
	// a budget. An error that is a *Fault is what the client is told.
	Open(x *Exchange) (*Upstream, error)
	// Await is Open and may wait; ctx ends when the client has gone.
	Await(ctx context.Context, x *Exchange) (*Upstream, error)
	// Release is called once for each connection given, when the attempt is over.
	Release(x *Exchange, up *Upstream, o Outcome)
	// Record is called once for each request, answered or not.
	Record(x *Exchange)
}

// Outcome says what became of an attempt.
type Outcome struct {
	Failed    bool // the endpoint broke off or did not speak HTTP/2
	Unsent    bool // the connection took the request not even into its queue
	Unseen    bool // the endpoint says that no application has seen it
	Unreached bool // the endpoint's sidecar says that its application was not there
	Status    int  // of the endpoint's answer; 0: none
	Reason    telemetry.Reason
	Latency   time.Duration // until the head of the answer
}

// Exchange is one request and its answer.
type Exchange struct {
	// Request is what the head says; its texts are valid in Open and Await.
	Request message.Request
	Try     int // 0 for the first attempt
	// Owner and the next two belong to the Backend, which may set them in Open and
	// Await. Fields are added to this attempt's request; fields of the same names
	// give way.
	Owner  any
	Fields []Field
	// By is when the answer must have ended, to the second; zero: no limit.
	By time.Time

	Status         int              // what the client was told; 0: nothing
	Reason         telemetry.Reason // set if the answer is ours, or was cut
	Replayed       bool             // sent again since no application had seen it
	Start          time.Time
	Duration       time.Duration // until the end of both, request and answer
	Sent, Received int64         // bytes of bodies to and from the client

	r    *Relay
	down *link.Stream

	mu        sync.Mutex
	list      *hpack.List // of the request, until it is not to be sent any more
	size      int         // of it
	reqBody   message.Body
	grpc      bool
	reqTrail  *hpack.List // while there is no stream for it
	reqEnd    bool        // the client has said its last
	kept      []byte      // of the request's body
	fresh     int         // bytes at the end of kept that were not yet given back
	whole     bool        // kept has all of the body that was sent
	up        *leg        // nil: none is there, yet or any more
	cancel    context.CancelFunc
	res       message.Response
	resBody   message.Body
	resEnd    bool
	began     time.Time // of the attempt
	latency   time.Duration
	interims  int
	committed bool // the client has seen something of an answer
	final     bool // the final head has come
	done      bool
	opening   bool // the Backend has the request's texts in hand
	head      requestHead
	trail     trailers
	answer    responseHead
	downTrail trailers

	// What to do without the lock.
	release  *leg
	outcome  Outcome
	again    bool
	recorded bool
}

// leg is an attempt: a stream to an endpoint.
type leg struct {
	link.Stream
	x *Exchange
	u *Upstream
}

// UpstreamConfig is what an Upstream is.
type UpstreamConfig struct {
	Streams uint32 // most at once; zero: link's
	// Sidecar tells that a verified sidecar is at the other end: its
	// x-heddle-reason is believed.
	Sidecar bool
	Owner   any // belongs to whoever made it
}

// Upstream is a connection to an endpoint. It carries the requests of many
// clients.
type Upstream struct {
	*link.Conn
	UpstreamConfig
}

// passed are the codes that mean the same on the other hop; others speak of
// this one.
func passed(c frame.Code) frame.Code {
	switch c {
	case frame.NoError, frame.InternalError, frame.RefusedStream, frame.Cancel, frame.EnhanceYourCalm,
		frame.InadequateSecurity, frame.HTTP11Required:
		return c
	}
	return frame.InternalError
}
