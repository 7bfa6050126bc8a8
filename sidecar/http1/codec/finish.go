package codec

import "bytes"

// finishRequest checks what only the whole head tells.
func (h *Head) finishRequest() error {
	if h.hosts > 1 || h.hosts == 0 && h.Minor == 1 {
		return faultHost
	}
	if h.hosts == 1 {
		host := h.Host()
		if len(host) > 0 && !isAuthority(host) {
			return faultHost
		}
		// Two names for one request would let it be authorised by one and served
		// by the other.
		if t := h.Target(); !h.isConnect && t[0] != '/' && t[0] != '*' {
			if a, _ := authorityOf(t); !sameAuthority(a, host) {
				return faultHostMismatch
			}
		}
	}
	return h.finish()
}

func (h *Head) finishResponse() error { return h.finish() }

func (h *Head) finish() error {
	if h.chunked {
		if h.length >= 0 {
			return faultBothLengths
		}
		if h.Minor == 0 {
			return faultCodingOld
		}
	}
	for i := range h.fields {
		f := &h.fields[i]
		switch {
		case f.kind == kindUpgrade:
			h.upgrade = h.upgrade || h.upgradeTok && h.Minor == 1
			f.drop = !h.upgradeTok || h.Minor == 0
		case h.otherTokens && f.kind == kindOther:
			f.drop = h.namedByConnection(h.b[f.line:f.nameEnd])
		}
	}
	return nil
}

// namedByConnection tells whether a field is declared hop-by-hop. What the
// codec or the mesh relies on is not asked: naming Host or X-Forwarded-For in
// Connection is a known trick to have a proxy remove them. Nor are fields that
// no hop owns.
func (h *Head) namedByConnection(name []byte) bool {
	for _, keep := range endToEnd {
		if equalFold(name, keep) {
			return false
		}
	}
	for i := range h.fields {
		f := &h.fields[i]
		if f.kind != kindConnection {
			continue
		}
		for v := h.b[f.value:f.valueEnd]; len(v) > 0; {
			var token []byte
			if token, v = nextToken(v); bytes.EqualFold(token, name) {
				return true
			}
		}
	}
	return false
}

var endToEnd = []string{"authorization", "cookie", "forwarded", "cache-control", "content-type",
	"x-forwarded-proto", "x-forwarded-host", "x-request-id", "traceparent", "set-cookie", "trailer"}

// RequestBody tells how a request's body is framed (RFC 9112, 6.3).
func (h *Head) RequestBody() Body {
	switch {
	case h.chunked:
		return Body{framing: chunked}
	case h.length > 0:
		return Body{framing: byLength, left: h.length}
	}
	return Body{}
}

// ResponseBody is RequestBody for the answer to req.
func (h *Head) ResponseBody(req *Head) Body {
	switch {
	case req.isHead, h.Bodiless():
		return Body{}
	case h.chunked:
		return Body{framing: chunked}
	case h.length == 0:
		return Body{}
	case h.length > 0:
		return Body{framing: byLength, left: h.length}
	}
	return Body{framing: untilClose}
}

// Bodiless tells whether the status forbids a body.
func (h *Head) Bodiless() bool { return h.Status < 200 || h.Status == 204 || h.Status == 304 }

// Persistent tells whether the sender keeps the connection open (RFC 9112, 9.3).
func (h *Head) Persistent() bool {
	if h.close {
		return false
	}
	return h.Minor == 1 || h.keepAlive
}

// Edit is what a head gets besides what the codec itself removes and adds.
type Edit struct {
	Extra []byte // whole field lines
	// Instead are whole field lines that take the place of the head's own of the
	// same names.
	Instead   []byte
	Client    []byte // appended to X-Forwarded-For
	NoHeddle  bool   // remove x-heddle-* fields
	NoLengths bool   // remove Content-Length and Transfer-Encoding
	AsMinor1  bool   // say HTTP/1.1: for status lines only
	Upgrade   bool   // say Connection: Upgrade whatever the head said
}

// AppendTo appends the head, edited, to dst, without the empty line at its end.
func (h *Head) AppendTo(dst []byte, e *Edit) []byte {
	b, from := h.b, h.start
	if e.AsMinor1 && h.Minor == 0 {
		dst = append(dst, "HTTP/1.1"...) // only asked for a status line
		from += uint32(len("HTTP/1.1"))
	}
	for i := range h.fields {
		f := &h.fields[i]
		if i == h.lastXFF && e.Client != nil {
			dst = append(dst, b[from:f.valueEnd]...)
			if f.valueEnd > f.value {
				dst = append(dst, ", "...)
			}
			dst = append(append(dst, e.Client...), "\r\n"...)
			from = f.next
			continue
		}
		if f.drop || e.NoHeddle && f.kind == kindHeddle ||
			e.NoLengths && (f.kind == kindContentLength || f.kind == kindTransferEncoding) ||
			len(e.Instead) > 0 && named(e.Instead, b[f.line:f.nameEnd]) {
			dst = append(dst, b[from:f.line]...)
			from = f.next
		}
	}
	dst = append(dst, b[from:len(b)-2]...)
	if e.Client != nil && h.lastXFF < 0 {
		dst = append(append(append(dst, "X-Forwarded-For: "...), e.Client...), "\r\n"...)
	}
	dst = append(append(dst, e.Extra...), e.Instead...)
	if h.upgrade || e.Upgrade {
		return append(dst, "Connection: Upgrade\r\n"...)
	}
	return dst
}

// named tells whether one of the field lines has the name.
func named(lines, name []byte) bool {
	for len(lines) > len(name) {
		if lines[len(name)] == ':' && bytes.EqualFold(lines[:len(name)], name) {
			return true
		}
		i := bytes.IndexByte(lines, '\n')
		if i < 0 {
			return false
		}
		lines = lines[i+1:]
	}
	return false
}

// Bytes are the head's as they came.
func (h *Head) Bytes() []byte { return h.b }

// Move tells that the head's bytes are in b now, which begins with a copy of
// them.
func (h *Head) Move(b []byte) { h.b = b[:h.next] }

// KeepAlive tells whether Connection says keep-alive.
func (h *Head) KeepAlive() bool { return h.keepAlive }

// Chunked tells whether the body is framed by chunks.
func (h *Head) Chunked() bool { return h.chunked }

// IsHead tells whether the method is HEAD.
func (h *Head) IsHead() bool { return h.isHead }

// IsConnect tells whether the method is CONNECT.
func (h *Head) IsConnect() bool { return h.isConnect }

// Upgrade tells whether another protocol is asked for, or agreed to.
func (h *Head) Upgrade() bool { return h.upgrade }

// Replayable tells whether the request may be sent again although it may have
// been served: its method is safe (RFC 9110, 9.2.1), or it says so itself.
func (h *Head) Replayable() bool { return h.replayable }

// Keyed tells whether the request carries an Idempotency-Key: its sender says
// that it may be repeated.
func (h *Head) Keyed() bool { return h.keyed }

// Says tells whether a sidecar has written a field with exactly this value;
// name is an x-heddle- name in lower case.
func (h *Head) Says(name, value string) bool {
	for i := range h.fields {
		f := &h.fields[i]
		if f.kind == kindHeddle && equalFold(h.b[f.line:f.nameEnd], name) && string(h.b[f.value:f.valueEnd]) == value {
			return true
		}
	}
	return false
}
