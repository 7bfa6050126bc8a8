package codec

import (
	"bytes"
	"fmt"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// TooLarge is the fault of a head above MaxHead.
var TooLarge = &Fault{431, telemetry.ReasonHeaderTooLarge, "head larger than 64 KiB"}

// Fault is why a message or an exchange is refused: the status a client would
// be told, the reason, and a detail for people.
type Fault struct {
	Status int
	Reason telemetry.Reason
	Detail string
}

// Error gives detail, reason and status.
func (f *Fault) Error() string { return fmt.Sprintf("%s (%s, %d)", f.Detail, f.Reason, f.Status) }

func badRequest(detail string) *Fault { return &Fault{400, telemetry.ReasonBadRequest, detail} }

// Faults are made once, so that a flood of bad requests makes no garbage.
var (
	faultBareLF       = badRequest("a line of the head ends in LF without CR")
	faultLine         = badRequest("malformed start line")
	faultMethod       = badRequest("method is not a token")
	faultTarget       = badRequest("malformed request target")
	faultVersion      = &Fault{505, telemetry.ReasonBadRequest, "HTTP version other than 1.0 and 1.1"}
	faultField        = badRequest("malformed field line")
	faultFold         = badRequest("folded field line (RFC 9112, 5.2)")
	faultValue        = badRequest("control character in a field value")
	faultTooMany      = &Fault{431, telemetry.ReasonHeaderTooLarge, "more than 1000 field lines"}
	faultHost         = badRequest("Host missing, repeated or malformed (RFC 9112, 3.2)")
	faultHostMismatch = badRequest("Host differs from the request target's authority")
	faultLength       = badRequest("malformed or contradictory Content-Length")
	faultBothLengths  = badRequest("both Content-Length and Transfer-Encoding (RFC 9112, 6.1)")
	faultCoding       = &Fault{501, telemetry.ReasonBadRequest, "Transfer-Encoding other than chunked"}
	faultCodingOld    = badRequest("Transfer-Encoding in an HTTP/1.0 message")
	faultStatus       = badRequest("malformed status line")
)

// kind is a field that the codec itself must look at.
type kind uint8

const (
	kindOther kind = iota
	kindHost
	kindContentLength
	kindTransferEncoding
	kindConnection
	kindKeepAlive
	kindProxyConnection
	kindTE
	kindUpgrade
	kindExpect
	kindForwardedFor
	kindHeddle // x-heddle-*
	kindIdempotencyKey
)

// field is one field line, as offsets into the head.
type field struct {
	line, nameEnd, value, valueEnd, next uint32
	kind                                 kind
	drop                                 bool
}

// Head is a parsed request or response head. Offsets are into the bytes given
// to Parse…; texts are valid as long as those. Its scalars stay valid.
type Head struct {
	b      []byte
	fields []field
	next   uint32 // where the next line starts
	scan   uint32 // up to where no LF was found
	start  uint32 // of the start line: a stray CRLF before it is skipped
	first  uint32 // of the first field line

	methodEnd, targetEnd uint32 // request
	Status               int    // response
	Minor                int    // HTTP/1.Minor

	length      int64 // Content-Length; -1: none
	chunked     bool
	hosts       int
	host        field
	close       bool // Connection: close
	keepAlive   bool // Connection: keep-alive
	upgradeTok  bool // Connection: upgrade
	upgrade     bool // with an Upgrade field too
	expect      bool // Expect: 100-continue
	otherTokens bool // Connection names further fields
	isHead      bool
	isConnect   bool
	keyed       bool // has an Idempotency-Key
	replayable  bool // RFC 9110, 9.2.1 safe methods, or an Idempotency-Key
	lastXFF     int  // index of the last X-Forwarded-For; -1: none
}

// Reset makes h ready for another message.
func (h *Head) Reset() {
	*h = Head{fields: h.fields[:0], length: -1, lastXFF: -1}
}

// Method is the request's method.
func (h *Head) Method() []byte { return h.b[h.start:h.methodEnd] }

// Target is the request's target as it came.
func (h *Head) Target() []byte { return h.b[h.methodEnd+1 : h.targetEnd] }

// Host is the value of the Host field; nil: none.
func (h *Head) Host() []byte {
	if h.hosts == 0 {
		return nil
	}
	return h.b[h.host.value:h.host.valueEnd]
}

// ParseRequest goes on parsing a request head of which b is what was read so
// far (always from its first byte) and tells whether it is whole. Its length
// is then Len.
func (h *Head) ParseRequest(b []byte) (bool, error) { return h.parse(b, true) }

// ParseResponse is ParseRequest for a response.
func (h *Head) ParseResponse(b []byte) (bool, error) { return h.parse(b, false) }

// Len is how many bytes a whole head takes.
func (h *Head) Len() int { return int(h.next) }

func (h *Head) parse(b []byte, request bool) (bool, error) {
	for {
		i := bytes.IndexByte(b[h.scan:], '\n')
		if i < 0 {
			if len(b) >= MaxHead {
				return false, TooLarge
			}
			h.scan = uint32(len(b))
			return false, nil
		}
		lf := h.scan + uint32(i)
		if lf >= MaxHead {
			return false, TooLarge
		}
		if lf == h.next || b[lf-1] != '\r' {
			return false, faultBareLF
		}
		line, end := h.next, lf-1
		h.scan, h.next = lf+1, lf+1
		done, err := h.line(b, line, end, request)
		if done || err != nil {
			return done, err
		}
	}
}

// line takes the line b[line:end]; true: it was the empty one that ends a head.
func (h *Head) line(b []byte, line, end uint32, request bool) (bool, error) {
	if h.first == 0 {
		if line == end {
			// One empty line before a request is to be ignored (RFC 9112, 2.2).
			if request && line == 0 {
				h.start = h.next
				return false, nil
			}
			return false, faultLine
		}
		h.first = h.next
		if request {
			return false, h.requestLine(b, line, end)
		}
		return false, h.statusLine(b, line, end)
	}
	if line == end {
		h.b = b[:h.next]
		if request {
			return true, h.finishRequest()
		}
		return true, h.finishResponse()
	}
	return false, h.fieldLine(b, line, end)
}

func (h *Head) requestLine(b []byte, line, end uint32) error {
	i := line
	for i < end && isToken[b[i]] {
		i++
	}
	if i == line || i == end || b[i] != ' ' {
		return faultMethod
	}
	h.methodEnd = i
	method := b[line:i]
	i++
	for i < end && b[i] > ' ' && b[i] != 0x7f {
		i++
	}
	if i == h.methodEnd+1 || i == end || b[i] != ' ' {
		return faultTarget
	}
	h.targetEnd = i
	if err := h.version(b[i+1 : end]); err != nil {
		return err
	}
	h.isHead = string(method) == "HEAD"
	h.isConnect = string(method) == "CONNECT"
	switch string(method) {
	case "GET", "HEAD", "OPTIONS", "TRACE":
		h.replayable = true
	}
	target := b[h.methodEnd+1 : i]
	switch {
	case h.isConnect: // authority-form, RFC 9112, 3.2.3
		if !isAuthority(target) || bytes.IndexByte(target, ':') < 0 {
			return faultTarget
		}
	case target[0] == '/', len(target) == 1 && target[0] == '*' && string(method) == "OPTIONS":
	default:
		if _, ok := authorityOf(target); !ok {
			return faultTarget
		}
	}
	return nil
}

func (h *Head) version(v []byte) error {
	if len(v) != 8 || string(v[:5]) != "HTTP/" || v[6] != '.' || !isDigit(v[5]) || !isDigit(v[7]) {
		return faultLine
	}
	if v[5] != '1' || v[7] > '1' {
		return faultVersion
	}
	h.Minor = int(v[7] - '0')
	return nil
}

func (h *Head) statusLine(b []byte, line, end uint32) error {
	l := b[line:end]
	if len(l) < 12 || l[8] != ' ' {
		return faultStatus
	}
	if err := h.version(l[:8]); err != nil {
		return err
	}
	if l[9] == '0' || !isDigit(l[9]) || !isDigit(l[10]) || !isDigit(l[11]) {
		return faultStatus
	}
	// The space before an empty reason is often forgotten.
	if len(l) > 12 && (l[12] != ' ' || !isText(l[13:])) {
		return faultStatus
	}
	h.Status = int(l[9]-'0')*100 + int(l[10]-'0')*10 + int(l[11]-'0')
	return nil
}

func (h *Head) fieldLine(b []byte, line, end uint32) error {
	if b[line] == ' ' || b[line] == '\t' {
		return faultFold
	}
	if len(h.fields) == maxFields {
		return faultTooMany
	}
	i := line
	for i < end && isToken[b[i]] {
		i++
	}
	// A space before the colon is refused as well (RFC 9112, 5.1).
	if i == line || i == end || b[i] != ':' {
		return faultField
	}
	f := field{line: line, nameEnd: i, next: h.next}
	v, e := i+1, end
	for v < e && (b[v] == ' ' || b[v] == '\t') {
		v++
	}
	for e > v && (b[e-1] == ' ' || b[e-1] == '\t') {
		e--
	}
	if !isText(b[v:e]) {
		return faultValue
	}
	f.value, f.valueEnd = v, e
	f.kind = kindOf(b[line:i])
	if f.kind != kindOther {
		if err := h.known(b, &f); err != nil {
			return err
		}
	}
	h.fields = append(h.fields, f)
	return nil
}

// known takes in a field that the codec must look at.
func (h *Head) known(b []byte, f *field) error {
	value := b[f.value:f.valueEnd]
	switch f.kind {
	case kindHost:
		h.hosts++
		h.host = *f
	case kindContentLength:
		n, ok := parseLength(value)
		if !ok || h.length >= 0 && h.length != n {
			return faultLength
		}
		f.drop = h.length >= 0 // the same said twice is said once
		h.length = n
	case kindTransferEncoding:
		if h.chunked || !equalFold(value, "chunked") {
			return faultCoding
		}
		h.chunked = true
	case kindConnection, kindProxyConnection:
		f.drop = true
		if f.kind == kindConnection {
			h.connection(value)
		}
	case kindKeepAlive:
		f.drop = true
	case kindTE:
		// Trailers pass through us; other codings would be ours to undo.
		f.drop = !equalFold(value, "trailers")
	case kindExpect:
		h.expect = equalFold(value, "100-continue")
	case kindForwardedFor:
		h.lastXFF = len(h.fields)
	case kindIdempotencyKey:
		h.replayable, h.keyed = true, true
	}
	return nil
}

// connection takes in the tokens of a Connection field.
func (h *Head) connection(value []byte) {
	for len(value) > 0 {
		var token []byte
		token, value = nextToken(value)
		switch {
		case len(token) == 0:
		case equalFold(token, "close"):
			h.close = true
		case equalFold(token, "keep-alive"):
			h.keepAlive = true
		case equalFold(token, "upgrade"):
			h.upgradeTok = true
		default:
			h.otherTokens = true
		}
	}
}
