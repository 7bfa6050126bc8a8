// Package codec reads HTTP/1.x messages strictly (RFC 9112) and writes them
// edited: heads in place, as offsets, bodies as they stream by. What two parsers
// could read in two ways is refused, never repaired.
//
// It is pure: no connection, no allocation once a Head has grown, and no buffer
// held; those of its sizes are lent to sidecar/http1, which relays with it.
package codec

// Bounds. docs/datapath.md lists them for users.
const (
	// MaxHead bounds a head, request or response, in bytes: more than any
	// server's own default (8 to 60 KiB), so that it is not we who refuse first.
	MaxHead = 64 << 10
	// maxFields bounds the field lines of a head: offsets cost 24 bytes each.
	maxFields = 1000
	// maxChunkLine bounds a chunk's size line with its extensions, which nobody
	// uses but to waste a server's time (CVE-2023-39326).
	maxChunkLine = 1 << 10
	// maxTrailers bounds a trailer section, in bytes.
	maxTrailers = 16 << 10
)
