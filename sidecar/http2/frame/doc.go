// Package frame reads and writes HTTP/2 frames (RFC 9113, 4 and 6) strictly:
// in place, from the bytes a connection has read so far. It joins the fragments
// of header blocks, hands out DATA in whatever pieces are there, and tells for
// each broken MUST whether it ends the stream or the connection, and with which
// code.
//
// It is pure: no connection, no streams, no flow control, no HPACK, no priority
// (parsed and dropped). sidecar/http2 relays with it.
package frame

// Preface is what a client sends before its first frame (RFC 9113, 3.4).
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// HeaderLen is the length of a frame's header in bytes (RFC 9113, 4.1).
const HeaderLen = 9

// Bounds.
const (
	// MaxSize is the longest payload we take, in bytes: the least that may be
	// announced and what every peer starts with (RFC 9113, 6.5.2). Longer frames
	// would save 9 bytes in 16 KiB and let one stream hold up the others longer.
	MaxSize = 16 << 10
	// maxBlock bounds a header block before decompression, in bytes: as much as
	// HTTP/1's head may be, which no honest block of that many fields exceeds.
	maxBlock = 64 << 10
	// maxContinuations bounds the CONTINUATION frames of one block: with frames
	// filled, four are enough for maxBlock. Each may be empty, so that bytes
	// alone would bound nothing (CVE-2024-27316 and its kin).
	maxContinuations = 16
	// maxSettings bounds the entries of one SETTINGS frame: fewer than ten exist,
	// and 2,730 fit (CVE-2020-11080).
	maxSettings = 64
)
