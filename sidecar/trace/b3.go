package trace

import (
	"bytes"

	"github.com/heddle-mesh/heddle/sidecar/http1"
)

// readB3 reads B3 propagation, the single field before the several. A zero
// trace means that there is none; decided may hold without one: "b3: 0" and
// "X-B3-Sampled: 0" alone say only that the request is not to be sampled.
func readB3(h *http1.Head) (c context, decided bool) {
	if v, next := h.Find("b3", 0); next >= 0 {
		if c, decided, ok := parseB3(v); ok {
			return c, decided
		}
	}
	trace, hasTrace := h.Find("x-b3-traceid", 0)
	span, hasSpan := h.Find("x-b3-spanid", 0)
	sampled, hasSampled := h.Find("x-b3-sampled", 0)
	flags, hasFlags := h.Find("x-b3-flags", 0)
	if hasTrace < 0 && hasSampled < 0 && hasFlags < 0 {
		return context{}, false
	}
	if hasTrace >= 0 || hasSpan >= 0 {
		ids, ok := b3IDs(trace, span)
		if !ok {
			return context{}, false
		}
		c = ids
	}
	switch {
	case hasFlags >= 0 && string(flags) == "1": // debug is sampled
		c.flags, decided = flagSampled, true
	case hasSampled < 0:
	case string(sampled) == "1", string(sampled) == "true":
		c.flags, decided = flagSampled, true
	case string(sampled) == "0", string(sampled) == "false":
		decided = true
	}
	return c, decided
}

// parseB3 reads the single field: TRACE-SPAN, TRACE-SPAN-SAMPLED,
// TRACE-SPAN-SAMPLED-PARENT, or SAMPLED alone.
func parseB3(v []byte) (c context, decided, ok bool) {
	trace, rest, hasIDs := bytes.Cut(v, []byte{'-'})
	if !hasIDs {
		c.flags, ok = b3Sampled(v)
		return c, ok, ok
	}
	span, rest, hasState := bytes.Cut(rest, []byte{'-'})
	if c, ok = b3IDs(trace, span); !ok || !hasState {
		return c, false, ok
	}
	state, parent, hasParent := bytes.Cut(rest, []byte{'-'})
	var up [8]byte
	if hasParent && (len(parent) != 16 || !unhex(up[:], parent)) {
		return context{}, false, false
	}
	if c.flags, ok = b3Sampled(state); !ok {
		return context{}, false, false
	}
	return c, true, true
}

func b3Sampled(v []byte) (flags byte, ok bool) {
	if len(v) != 1 {
		return 0, false
	}
	switch v[0] {
	case '1', 'd':
		return flagSampled, true
	case '0':
		return 0, true
	}
	return 0, false
}

// b3IDs reads IDs; a trace ID of 64 bits is the lower half of one.
func b3IDs(trace, span []byte) (c context, ok bool) {
	dst := c.trace[:]
	if len(trace) == 16 {
		dst = c.trace[8:]
	} else if len(trace) != 32 {
		return context{}, false
	}
	if len(span) != 16 || !unhex(dst, trace) || !unhex(c.parent[:], span) ||
		c.trace == [16]byte{} || c.parent == [8]byte{} {
		return context{}, false
	}
	return c, true
}
