package http2

import (
	"strconv"
	"strings"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
	"github.com/heddle-mesh/heddle/sidecar/http2/message"
)

// Field is a header field to be added; Name is in lower case.
type Field struct{ Name, Value string }

// requestHead is the head of an attempt.
type requestHead struct{ x *Exchange }

// AppendTo packs it.
func (h *requestHead) AppendTo(dst []byte, e *hpack.Encoder) []byte {
	x := h.x
	c, l := &x.r.c, x.list
	pseudo, authority := true, false
	forwarded := false
	for i := range l.Len() {
		k := message.KindOf(l, i)
		if pseudo && (k == message.Other || k > message.OtherPseudo) {
			pseudo = false
			if !authority && x.Request.Authority != nil {
				dst = e.Append(dst, ":authority", x.Request.Authority, false)
			}
		}
		switch {
		case k == message.Authority:
			authority = true
		case k == message.Host: // :authority says it
			continue
		case k == message.Heddle && c.Guarded:
			continue
		case k == message.ForwardedFor && c.Client != "":
			if !forwarded {
				forwarded = true
				dst = e.Append(dst, "x-forwarded-for", x.forwarded(), false)
			}
			continue
		case replaced(c.Fields, l.Name(i)) || replaced(x.Fields, l.Name(i)):
			continue
		}
		dst = e.AppendField(dst, l, i)
	}
	if pseudo && !authority && x.Request.Authority != nil {
		dst = e.Append(dst, ":authority", x.Request.Authority, false)
	}
	if c.Client != "" && !forwarded {
		dst = e.Append(dst, "x-forwarded-for", []byte(c.Client), false)
	}
	for _, f := range c.Fields {
		dst = e.Append(dst, f.Name, []byte(f.Value), false)
	}
	for _, f := range x.Fields {
		dst = e.Append(dst, f.Name, []byte(f.Value), false)
	}
	return dst
}

// forwarded joins what X-Forwarded-For says with the client's address.
func (x *Exchange) forwarded() (v []byte) {
	for i := range x.list.Len() {
		if message.KindOf(x.list, i) == message.ForwardedFor && len(x.list.Value(i)) > 0 {
			v = append(append(v, x.list.Value(i)...), ", "...)
		}
	}
	return append(v, x.r.c.Client...)
}

func replaced(by []Field, name []byte) bool {
	for i := range by {
		if by[i].Name == string(name) {
			return true
		}
	}
	return false
}

// trailers are those of either side.
type trailers struct {
	l       *hpack.List
	guarded bool
}

// AppendTo packs them.
func (t *trailers) AppendTo(dst []byte, e *hpack.Encoder) []byte {
	for i := range t.l.Len() {
		if !t.guarded || message.KindOf(t.l, i) != message.Heddle {
			dst = e.AppendField(dst, t.l, i)
		}
	}
	return dst
}

// responseHead is a head from an endpoint, or, without a list, one of ours.
type responseHead struct {
	trailers
	fault *Fault
	x     *Exchange
}

// AppendTo packs it.
func (h *responseHead) AppendTo(dst []byte, e *hpack.Encoder) []byte {
	if h.l != nil {
		return h.trailers.AppendTo(dst, e)
	}
	status, f := h.fault.Status, h.fault
	if h.x.grpc {
		status = 200
	}
	dst = e.Append(dst, ":status", strconv.AppendInt(nil, int64(status), 10), false)
	if !h.x.r.c.Quiet && f.Reason != telemetry.ReasonOK {
		dst = e.Append(dst, codec.ReasonField, []byte(f.Reason), false)
	}
	if h.x.grpc {
		dst = e.Append(dst, "content-type", []byte("application/grpc"), false)
		dst = e.Append(dst, "grpc-status", strconv.AppendInt(nil, int64(grpcCode(f.Status)), 10), false)
		return e.Append(dst, "grpc-message", []byte(percent(f.Detail)), false)
	}
	dst = e.Append(dst, "content-type", []byte("text/plain; charset=utf-8"), false)
	return e.Append(dst, "content-length", strconv.AppendInt(nil, int64(len(f.Detail)+1), 10), false)
}

// grpcCode is the status of gRPC for one of HTTP (grpc/doc/http-grpc-status-mapping.md),
// but 504, which is ours for a time that was up.
func grpcCode(status int) int {
	switch status {
	case 400, 431:
		return 13 // INTERNAL
	case 401:
		return 16 // UNAUTHENTICATED
	case 403:
		return 7 // PERMISSION_DENIED
	case 404, 501:
		return 12 // UNIMPLEMENTED
	case 504:
		return 4 // DEADLINE_EXCEEDED
	case 429, 502, 503:
		return 14 // UNAVAILABLE
	}
	return 2 // UNKNOWN
}

// percent encodes a text for grpc-message (grpc/doc/PROTOCOL-HTTP2.md).
func percent(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			b.WriteByte('%')
			b.WriteByte("0123456789ABCDEF"[c>>4])
			b.WriteByte("0123456789ABCDEF"[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// isGRPC tells whether the request is a call of gRPC.
func isGRPC(l *hpack.List) bool {
	for i := range l.Len() {
		if message.KindOf(l, i) == message.ContentType {
			v := l.Value(i)
			return len(v) >= 16 && string(v[:16]) == "application/grpc"
		}
	}
	return false
}

// says tells whether a field of the mesh's has that value.
func says(l *hpack.List, name string, value telemetry.Reason) bool {
	for i := range l.Len() {
		if message.KindOf(l, i) == message.Heddle && string(l.Name(i)) == name && string(l.Value(i)) == string(value) {
			return true
		}
	}
	return false
}
