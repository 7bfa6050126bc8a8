package http1

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

// requestBody tells how a request's body is framed (RFC 9112, 6.3).
func (h *Head) requestBody() body {
	switch {
	case h.chunked:
		return body{framing: chunked}
	case h.length > 0:
		return body{framing: byLength, left: h.length}
	}
	return body{}
}

// responseBody is requestBody for the answer to req.
func (h *Head) responseBody(req *Head) body {
	switch {
	case req.isHead, h.bodiless():
		return body{}
	case h.chunked:
		return body{framing: chunked}
	case h.length == 0:
		return body{}
	case h.length > 0:
		return body{framing: byLength, left: h.length}
	}
	return body{framing: untilClose}
}

// bodiless tells whether the status forbids a body.
func (h *Head) bodiless() bool { return h.Status < 200 || h.Status == 204 || h.Status == 304 }

// persistent tells whether the sender keeps the connection open (RFC 9112, 9.3).
func (h *Head) persistent() bool {
	if h.close {
		return false
	}
	return h.Minor == 1 || h.keepAlive
}

// edit is what a head gets besides what the codec itself removes and adds.
type edit struct {
	extra     []byte // whole field lines
	client    []byte // appended to X-Forwarded-For
	noHeddle  bool   // remove x-heddle-* fields
	noLengths bool   // remove Content-Length and Transfer-Encoding
	asMinor1  bool   // say HTTP/1.1
}

// appendTo appends the head, edited, to dst.
func (h *Head) appendTo(dst []byte, e *edit) []byte {
	b, from := h.b, h.start
	if e.asMinor1 && h.Minor == 0 {
		dst = append(dst, "HTTP/1.1"...) // only asked for a status line
		from += uint32(len("HTTP/1.1"))
	}
	for i := range h.fields {
		f := &h.fields[i]
		if i == h.lastXFF && e.client != nil {
			dst = append(dst, b[from:f.valueEnd]...)
			if f.valueEnd > f.value {
				dst = append(dst, ", "...)
			}
			dst = append(append(dst, e.client...), "\r\n"...)
			from = f.next
			continue
		}
		if f.drop || e.noHeddle && f.kind == kindHeddle ||
			e.noLengths && (f.kind == kindContentLength || f.kind == kindTransferEncoding) {
			dst = append(dst, b[from:f.line]...)
			from = f.next
		}
	}
	dst = append(dst, b[from:len(b)-2]...)
	if e.client != nil && h.lastXFF < 0 {
		dst = append(append(append(dst, "X-Forwarded-For: "...), e.client...), "\r\n"...)
	}
	dst = append(dst, e.extra...)
	if h.upgrade {
		return append(dst, "Connection: Upgrade\r\n"...)
	}
	return dst
}
