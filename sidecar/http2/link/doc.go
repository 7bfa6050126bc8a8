// Package link is one HTTP/2 connection, of either side (RFC 9113): preface,
// settings, the states of streams, flow control, what is sent when, floods, and
// the ways in which it ends. What comes on its streams goes to a Handler.
//
// It neither dials, nor judges what messages say, nor knows which stream belongs
// to which: sidecar/http2 does. One goroutine reads (Serve); whoever has
// something to send appends it under the connection's lock, and one of them
// writes all there is. No lock of a connection is held while the Handler, another
// connection or the kernel is called; a Handler may hold its own in calls here.
package link

import "time"

// Bounds, each for one connection.
const (
	// DefaultStreams is how many streams a peer may have open: what most servers
	// announce (RFC 9113, 6.5.2 asks for no fewer than 100).
	DefaultStreams = 100
	// clientStreams is how many streams we open to a server that lets us: others
	// go to another connection, or wait.
	clientStreams = 1000
	// maxWaiting bounds the streams that wait for a server to take more.
	maxWaiting = 100
	// StreamWindow is how many bytes a peer may send on a stream before any was
	// relayed: so much does one stalled stream keep in memory.
	StreamWindow = 128 << 10
	// growTo is the window of a stream whose bytes never had to wait: enough for
	// 500 MB/s at a round trip of 1 ms.
	growTo = 512 << 10
	// connWindow is the window of the connection. It is given back when bytes
	// come, so that stalled streams do not stall the others, until maxHeld is here.
	connWindow = 1 << 20
	// maxHeld is how many bytes that came may wait for others to take them, before
	// the connection's window is no more given back: with connWindow, 5 MiB are
	// the most that are kept of bodies.
	maxHeld = 4 << 20
	// fullOut is up to how many bytes of DATA and all else wait for one write;
	// more waits with its stream, for its turn.
	fullOut = 48 << 10
	// maxOut bounds what waits for a peer that does not read: heads and answers
	// to its frames. Sixty-four of the largest heads.
	maxOut = 4 << 20
	// quantum is how much one stream sends at its turn: a frame that all take.
	quantum = 16 << 10
	// keptClosed is of how many closed streams it is remembered how they closed,
	// for frames that were under way.
	keptClosed = 256
	// maxHead and maxFields bound a header block unpacked, as for HTTP/1.
	maxHead   = 64 << 10
	maxFields = 1000
)

// Floods: what costs us and moves nothing adds to an account, what moves
// something pays off, and so does time. Honest peers stay near zero: a PING or
// WINDOW_UPDATE accompanies data, requests that are cancelled are fewer than
// those that are answered.
const (
	maxNuisance = 2000
	// maxCredit is how much may be paid in advance: Go's client updates windows
	// twice for each 4 KiB it reads, long after we sent them.
	maxCredit = 5000
	// forgiven is how much is forgotten in each second.
	forgiven = 200
	// costReset is for a stream that ends for nothing: opening it cost us most.
	costReset = 4
	// costSettings is for a SETTINGS frame, which touches all streams.
	costSettings = 10
)

// Timeouts, counted by Sweep.
const (
	// sweepEvery is how often Sweep wants to be called: sidecar/http1's measure.
	sweepEvery = time.Second
	// ackTimeout is for the peer to send and to acknowledge SETTINGS.
	ackTimeout = 10 * time.Second
	// blockTimeout is for a header block to come in whole.
	blockTimeout = 30 * time.Second
	// idleTimeout ends a client's connection without streams; every pool's is
	// shorter.
	idleTimeout = 10 * time.Minute
	// lastWrite is for the GOAWAY to leave at the end.
	lastWrite = time.Second
)
