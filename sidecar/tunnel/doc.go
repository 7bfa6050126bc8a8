// Package tunnel carries opaque bytes between two connections: by splice where
// both are plain TCP, else through buffers that grow with the traffic and, over
// TLS, in batches of records. Each direction ends by itself (half-close), and a
// reset on one side becomes a reset on the other: neither side can tell an end
// from a break wrongly.
//
// It dials nothing, decides nothing about who may talk and has no timeouts: an
// idle connection is the application's business. Called by sidecar/outbound,
// sidecar/inbound and, after an upgrade, sidecar/http1.
package tunnel

import (
	"net"
	"sync"
)

// Buffers grow through these sizes as long as reads fill them. The first is
// what a chatty protocol needs; the last is where larger no longer pays.
const (
	smallBuffer  = 4 << 10
	mediumBuffer = 32 << 10
	largeBuffer  = 256 << 10
	// spliceAfter is how much is copied before a plain direction switches to
	// splice: a pipe costs two file descriptors and, for small messages, more
	// than it saves.
	spliceAfter = 128 << 10
	// spliceChunk is after how many spliced bytes the counters are brought up to
	// date.
	spliceChunk = 64 << 20
)

var (
	smallBuffers  = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	mediumBuffers = sync.Pool{New: func() any { return new([mediumBuffer]byte) }}
	largeBuffers  = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

func takeBuffer(size int) []byte {
	switch {
	case size <= smallBuffer:
		return smallBuffers.Get().(*[smallBuffer]byte)[:]
	case size <= mediumBuffer:
		return mediumBuffers.Get().(*[mediumBuffer]byte)[:]
	}
	return largeBuffers.Get().(*[largeBuffer]byte)[:]
}

func giveBuffer(b []byte) {
	switch cap(b) {
	case smallBuffer:
		smallBuffers.Put((*[smallBuffer]byte)(b[:smallBuffer]))
	case mediumBuffer:
		mediumBuffers.Put((*[mediumBuffer]byte)(b[:mediumBuffer]))
	case largeBuffer:
		largeBuffers.Put((*[largeBuffer]byte)(b[:largeBuffer]))
	}
}

// TCP finds the TCP connection under c; nil: there is none.
func TCP(c net.Conn) *net.TCPConn {
	for {
		switch t := c.(type) {
		case *net.TCPConn:
			return t
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil
		}
	}
}

// Reset closes c with RST where it stands on TCP, so that the other side sees
// a failure and not an end.
func Reset(c net.Conn) {
	if t := TCP(c); t != nil {
		t.SetLinger(0)
		t.Close() // before TLS could say goodbye
	}
	c.Close()
}
