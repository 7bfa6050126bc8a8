package frame

import "fmt"

// Type is a frame's type (RFC 9113, 6).
type Type uint8

// The types of RFC 9113; others are skipped.
const (
	Data Type = iota
	Headers
	Priority
	RSTStream
	SettingsType
	PushPromise
	Ping
	GoAway
	WindowUpdate
	Continuation
)

// The flags of RFC 9113. Undefined ones are ignored (4.1).
const (
	flagAck        = 0x1 // SETTINGS, PING
	flagEndStream  = 0x1 // DATA, HEADERS
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Code is an error code of RST_STREAM and GOAWAY (RFC 9113, 7). Unknown ones
// are as good as InternalError.
type Code uint32

// The codes of RFC 9113.
const (
	NoError Code = iota
	ProtocolError
	InternalError
	FlowControlError
	SettingsTimeout
	StreamClosed
	FrameSizeError
	RefusedStream
	Cancel
	CompressionError
	ConnectError
	EnhanceYourCalm
	InadequateSecurity
	HTTP11Required
)

var codeNames = [...]string{"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
	"STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR",
	"ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"}

// String gives the code's name in the RFC.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint32(c))
}

// Fault is a rule that the peer broke. Faults are made once, so that a flood of
// them makes no garbage; which stream is meant stands in the frame.
type Fault struct {
	Code   Code
	Stream bool // only the frame's stream ends, not the connection (RFC 9113, 5.4)
	Detail string
}

// Error gives detail and code.
func (f *Fault) Error() string {
	what := "connection"
	if f.Stream {
		what = "stream"
	}
	return fmt.Sprintf("%s (%s error %s)", f.Detail, what, f.Code)
}

// Frame is what a Reader found. Payload is valid until the Reader's next step
// or until the bytes read are overwritten.
type Frame struct {
	Type   Type
	Stream uint32
	// EndStream: nothing of the stream follows. On DATA only with the last piece.
	EndStream bool
	Ack       bool // of SETTINGS or PING
	// Payload is a piece of DATA without padding, a whole header block (HEADERS),
	// the entries of SETTINGS (for Settings.Apply), the 8 bytes of PING, or the
	// debug data of GOAWAY.
	Payload []byte
	// Flow is how many bytes flow control counts for this piece of DATA: padding
	// too (RFC 9113, 6.9.1).
	Flow uint32
	// Left is how many bytes of data, without padding, the DATA frame still has
	// after this piece.
	Left       uint32
	Code       Code   // RST_STREAM, GOAWAY
	LastStream uint32 // GOAWAY
	Increment  uint32 // WINDOW_UPDATE; above 0 unless a Fault came with it
}

// header is a frame's header as it came.
type header struct {
	length uint32
	typ    Type
	flags  uint8
	stream uint32
}

func parseHeader(b []byte) header {
	return header{
		length: uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]),
		typ:    Type(b[3]),
		flags:  b[4],
		stream: number(b[5:]) & maxStream, // the reserved bit is ignored (RFC 9113, 4.1)
	}
}

const maxStream = 1<<31 - 1

func number(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}
