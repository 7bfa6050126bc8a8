package message

import "github.com/heddle-mesh/heddle/sidecar/http2/hpack"

// Kind is a field that somebody here or in the relay must look at.
type Kind uint8

// The kinds. Those up to Protocol are pseudo-fields.
const (
	Other Kind = iota
	Method
	Scheme
	Authority
	Path
	Status
	Protocol    // RFC 8441
	OtherPseudo // none that is known
	Hop         // Connection and its kin, which HTTP/2 has not (RFC 9113, 8.2.2)
	TE          // trailers, and nothing else
	Host
	Length // Content-Length
	Cookie // may be split (RFC 9113, 8.2.3)
	Expect
	ForwardedFor // X-Forwarded-For
	Heddle       // x-heddle-*, also with _ for -
	Idempotency  // Idempotency-Key
	GRPCStatus
	GRPCTimeout
	ContentType
)

const (
	kindBits = 0xff
	// bad marks a field that makes its message malformed, whatever is around it.
	bad = 0x100
)

// Marks is for all Decoders whose lists are judged here.
var Marks = hpack.NewMarks(mark)

// KindOf tells the kind of field i.
func KindOf(l *hpack.List, i int) Kind { return Kind(l.Mark(i) & kindBits) }

func mark(name, value []byte) uint16 {
	k, ok := kindOf(name)
	if !ok || !valid(k, value) {
		return uint16(k) | bad
	}
	return uint16(k)
}

// kinds are fields by their names.
var kinds = map[string]Kind{
	":method": Method, ":scheme": Scheme, ":authority": Authority, ":path": Path, ":status": Status, ":protocol": Protocol,
	"connection": Hop, "keep-alive": Hop, "proxy-connection": Hop, "transfer-encoding": Hop, "upgrade": Hop,
	"te": TE, "host": Host, "content-length": Length, "cookie": Cookie, "expect": Expect, "x-forwarded-for": ForwardedFor,
	"idempotency-key": Idempotency, "grpc-status": GRPCStatus, "grpc-timeout": GRPCTimeout, "content-type": ContentType,
}

func kindOf(name []byte) (Kind, bool) {
	if k, ok := kinds[string(name)]; ok {
		return k, true
	}
	if len(name) == 0 {
		return Other, false
	}
	if name[0] == ':' {
		return OtherPseudo, false
	}
	for _, c := range name {
		if !isName[c] {
			return Other, false
		}
	}
	// '_' counts as '-': CGI-like servers do not tell them apart.
	if len(name) > 9 && name[0] == 'x' && isDash(name[1]) && isDash(name[8]) && string(name[2:8]) == "heddle" {
		return Heddle, true
	}
	return Other, true
}

func isDash(c byte) bool { return c == '-' || c == '_' }

// valid judges a value by itself.
func valid(k Kind, v []byte) bool {
	switch k {
	case Method, Protocol:
		return len(v) > 0 && all(v, &isToken)
	case Scheme:
		return len(v) > 0 && 'a' <= v[0]|0x20 && v[0]|0x20 <= 'z' && all(v, &isScheme)
	case Authority, Host:
		return len(v) > 0 && all(v, &isHostText)
	case Path:
		return len(v) > 0 && (v[0] == '/' || len(v) == 1 && v[0] == '*') && all(v, &isTarget)
	case Status:
		return len(v) == 3 && '1' <= v[0] && v[0] <= '9' && isDigit(v[1]) && isDigit(v[2])
	case TE:
		return string(v) == "trailers"
	case Length:
		_, ok := length(v)
		return ok
	case Hop, OtherPseudo:
		return false
	}
	// RFC 9113, 8.2.1, and RFC 9110, 5.5 for the control characters that HTTP/1
	// would not take.
	if n := len(v); n > 0 && (isBlank(v[0]) || isBlank(v[n-1])) {
		return false
	}
	return all(v, &isFieldText)
}
