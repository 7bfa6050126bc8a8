// Package http1 relays HTTP/1.x between two connections: heads are parsed where
// they were read (sidecar/http1/codec), edited as one block and forwarded with
// order and case as they came; bodies stream through in flat memory.
//
// It does not dial, balance, authorise or count: a Backend gives it a
// connection for each request and is told what became of it. Called by
// sidecar/outbound and sidecar/inbound; sidecar/pool keeps its Conns.
package http1

import (
	"time"

	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
)

// Head and Fault are the codec's.
type (
	Head  = codec.Head
	Fault = codec.Fault
)

// Bounds. docs/datapath.md lists them for users.
const (
	// joinLimit is up to how many bytes of body leave in one write with the
	// head; copying more costs more than a second write.
	joinLimit = 16 << 10
	// maxInformational bounds 1xx answers before the final one; a server that
	// sends more keeps us busy for nothing.
	maxInformational = 32
)

// Timeouts, counted by Sweep, which is called once in sweepEvery: coarse on
// purpose, since a deadline per request costs two timer operations.
const (
	// SweepEvery is how often Sweep wants to be called.
	SweepEvery = time.Second
	// headTimeout is for a head to come in whole once its first byte is there:
	// a slow-loris bound, far above any honest client.
	headTimeout = 30 * time.Second
	// idleTimeout closes a client's connection that asks nothing. Longer than
	// every pool's (sidecar/pool: 60 s between sidecars), so that the client
	// side closes first and no request meets a closing connection.
	idleTimeout = 10 * time.Minute
	// clientGoneAfter is how long an answer may be awaited before it is looked
	// whether the client is still there.
	clientGoneAfter = 2 * time.Second
	// lingerTimeout is how long what a client still sends is read and thrown
	// away after an early answer: closing at once would reset the connection and
	// could destroy the answer in flight (RFC 9112, 9.6).
	lingerTimeout = 2 * time.Second
	// earlyGrace is how long the rest of a request's body may still flow to an
	// endpoint that has already answered in full.
	earlyGrace = 10 * time.Second
)
