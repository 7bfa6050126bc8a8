// Package http2 relays HTTP/2 between a client's connection and those to
// endpoints: each request goes, as one stream, to the connection that a Backend
// gives for it, so that the requests of one connection are balanced one by one.
// Heads are judged (sidecar/http2/message), edited and packed anew for the other
// hop; bodies pass frame by frame under each hop's own flow control
// (sidecar/http2/link).
//
// It does not dial, balance, authorise or count. Called by sidecar/outbound and
// sidecar/inbound.
package http2

import "errors"

// Bounds.
const (
	// maxTries bounds the connections that one request is offered to.
	maxTries = 6
	// keepMost is how many bytes of a body are kept until the answer begins, so
	// that a request no application has seen can be sent to another: what most
	// unary calls have.
	keepMost = 16 << 10
	// maxHeads bounds what the heads of a client's unanswered requests take, in
	// bytes as hpack.List.Size counts: more requests are refused till some are
	// answered. A hundred usual ones take a tenth.
	maxHeads = 1 << 20
	// maxInterim bounds the 1xx answers before the final one, as for HTTP/1.
	maxInterim = 32
)

// ErrWait is what Backend.Open gives if it would have to wait.
var ErrWait = errors.New("no connection is at hand")
