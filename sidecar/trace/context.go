package trace

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/heddle-mesh/heddle/sidecar/http1"
)

// The fields that carry a trace; lower case.
const (
	fieldParent = "traceparent"
	fieldState  = "tracestate"
)

const (
	flagSampled = 1
	flagRandom  = 2 // W3C Trace Context level 2: the trace ID is random
	// parentLen is the length of a version 00 traceparent.
	parentLen = 55
	// maxState bounds tracestate: what the specification says one should at
	// least pass on, and no more, since each hop pays for it. A longer one is
	// removed whole: cut off, it would be wrong.
	maxState = 512
	// maxMembers is the specification's bound (W3C Trace Context, 3.3.1.1).
	maxMembers = 32
)

// context is where a request stands: its trace, who sent it, and whether it is
// sampled.
type context struct {
	trace  [16]byte
	parent [8]byte // zero: nobody; the trace begins here
	flags  byte
}

func (c *context) sampled() bool { return c.flags&flagSampled != 0 }

// parseParent reads a traceparent (W3C Trace Context level 1 and 2, 3.2): of a
// later version only what version 00 has.
func parseParent(v []byte) (context, bool) {
	var c context
	var version, flags [1]byte
	if len(v) < parentLen || v[2] != '-' || v[35] != '-' || v[52] != '-' ||
		!unhex(version[:], v[:2]) || !unhex(c.trace[:], v[3:35]) ||
		!unhex(c.parent[:], v[36:52]) || !unhex(flags[:], v[53:55]) {
		return context{}, false
	}
	switch {
	case version[0] == 0xff, version[0] == 0 && len(v) != parentLen, len(v) > parentLen && v[parentLen] != '-':
		return context{}, false
	case c.trace == [16]byte{}, c.parent == [8]byte{}:
		return context{}, false
	}
	c.flags = flags[0] & (flagSampled | flagRandom)
	return c, true
}

// unhex reads lower-case hexadecimal digits, twice as many as dst is long.
func unhex(dst, src []byte) bool {
	for i := range dst {
		hi, lo := digits[src[2*i]], digits[src[2*i+1]]
		if hi|lo > 15 {
			return false
		}
		dst[i] = hi<<4 | lo
	}
	return true
}

var digits = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = byte(i)
	}
	return t
}()

// appendParent appends the field line of c, as sent by the span id.
func (c *context) appendParent(dst []byte, id [8]byte) []byte {
	dst = append(dst, fieldParent+": 00-"...)
	dst = hex.AppendEncode(dst, c.trace[:])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, id[:])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, []byte{c.flags})
	return append(dst, "\r\n"...)
}

// read finds the context in a request: W3C's before B3's. decided: whoever sent
// it has said whether it is sampled. w3c: it came as a good traceparent.
func read(h *http1.Head) (c context, decided, w3c bool) {
	v, next := h.Find(fieldParent, 0)
	if next >= 0 {
		// Two of them are as none: which is right cannot be known.
		if _, more := h.Find(fieldParent, next); more < 0 {
			if c, ok := parseParent(v); ok {
				return c, true, true
			}
		}
	}
	c, decided = readB3(h)
	return c, decided, false
}

// states gives the tracestate of a request, its lines joined. bad: there is one
// that must not be passed on.
func states(h *http1.Head) (joined []byte, bad bool) {
	for v, next := h.Find(fieldState, 0); next >= 0; v, next = h.Find(fieldState, next) {
		switch {
		case len(v) == 0:
		case len(joined) == 0:
			joined = v
		default:
			joined = append(append(append(make([]byte, 0, len(joined)+len(v)+1), joined...), ','), v...)
		}
		if len(joined) > maxState {
			return nil, true
		}
	}
	if len(joined) > 0 && !validState(joined) {
		return nil, true
	}
	return joined, false
}

// newTrace gives a trace ID, newSpan a span ID: random, never all zeros, from
// the runtime's ChaCha8 of the thread, which has no lock.
func newTrace() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], rand.Uint64())
	copy8 := newSpan()
	copy(id[8:], copy8[:])
	return id
}

func newSpan() (id [8]byte) {
	var n uint64
	for n == 0 {
		n = rand.Uint64()
	}
	binary.BigEndian.PutUint64(id[:], n)
	return id
}
