package detect

import "encoding/binary"

// MaxClientHello is how many bytes a caller ever needs to peek for a
// ClientHello. Browsers send about 2 KB with a post-quantum key share, and the
// largest seen in the wild stay under 8 KB; a peer of the mesh sends under 2.
const MaxClientHello = 16 << 10

const (
	recordHeader     = 5       // RFC 8446 §5.1: type, version, length
	maxRecord        = 1 << 14 // RFC 8446 §5.1, plaintext fragment
	typeHandshake    = 22
	handshakeHeader  = 4 // RFC 8446 §4: type, 24-bit length
	typeClientHello  = 1
	extServerName    = 0  // RFC 6066 §3
	extALPN          = 16 // RFC 7301 §3.1
	nameTypeHostName = 0
)

// Hello is what a ClientHello asks for. Values that mean nothing (GREASE, RFC
// 8701) are kept: the caller looks for those it knows.
type Hello struct {
	SNI  string   // empty: none sent
	ALPN []string // in the client's order
}

// ClientHelloALPN is ClientHello for callers that only route by ALPN.
func ClientHelloALPN(b []byte) ([]string, Verdict) {
	h, v := ClientHello(b)
	return h.ALPN, v
}

// ClientHello reads a ClientHello of any TLS version, split over records in
// any way: NeedMore, No, Malformed or TLS. It does not judge versions, ciphers
// or names; the handshake will.
func ClientHello(b []byte) (Hello, Verdict) {
	full := len(b) >= MaxClientHello
	if full {
		b = b[:MaxClientHello]
	}
	message, v := clientHelloMessage(b)
	if v == NeedMore && full {
		return Hello{}, Malformed
	}
	if v != TLS {
		return Hello{}, v
	}
	h, ok := parseClientHello(message)
	if !ok {
		return Hello{}, Malformed
	}
	return h, TLS
}

// clientHelloMessage gathers the body of the first handshake message from its
// records. The first record decides between No and all else: what begins like
// one and then breaks off is a broken TLS client, not another protocol.
func clientHelloMessage(b []byte) ([]byte, Verdict) {
	if v := firstRecord(b); v != TLS {
		return nil, v
	}
	var gathered []byte // more than one record: fragments put together
	for first := true; ; first = false {
		if v := header(b); v != TLS {
			return nil, v
		}
		length := int(binary.BigEndian.Uint16(b[3:]))
		fragment := b[recordHeader:min(recordHeader+length, len(b))]
		message := fragment
		if !first {
			gathered = append(gathered, fragment...)
			message = gathered
		}
		if len(message) >= handshakeHeader {
			size := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
			if size > MaxClientHello-recordHeader-handshakeHeader {
				return nil, Malformed
			}
			if len(message) >= handshakeHeader+size {
				return message[handshakeHeader : handshakeHeader+size], TLS
			}
		}
		if len(fragment) < length {
			return nil, NeedMore
		}
		if first {
			gathered = append(make([]byte, 0, len(b)), fragment...)
		}
		b = b[recordHeader+length:]
	}
}

// firstRecord says TLS once header and handshake type are those of a
// ClientHello.
func firstRecord(b []byte) Verdict {
	switch {
	case len(b) == 0:
		return NeedMore
	case b[0] != typeHandshake:
		return No
	}
	switch v := header(b); v {
	case Malformed:
		return No
	case NeedMore:
		return NeedMore
	}
	switch {
	case len(b) == recordHeader:
		return NeedMore
	case b[recordHeader] != typeClientHello:
		return No
	}
	return TLS
}

// header checks a handshake record's header byte by byte, so that a verdict
// falls with the first byte that is wrong.
func header(b []byte) Verdict {
	for i, c := range b[:min(len(b), recordHeader)] {
		switch {
		case i == 0 && c != typeHandshake:
			return Malformed
		case i == 1 && c != 3: // SSL 3.0 and all TLS versions
			return Malformed
		case i == 2 && c > 4:
			return Malformed
		}
	}
	if len(b) < recordHeader {
		return NeedMore
	}
	// Empty handshake fragments are forbidden (RFC 8446 §5.1).
	if n := binary.BigEndian.Uint16(b[3:]); n == 0 || n > maxRecord {
		return Malformed
	}
	return TLS
}

// cursor reads length-prefixed fields; it fails for good at the first that
// is not there.
type cursor struct {
	b      []byte
	failed bool
}

func (c *cursor) take(n int) []byte {
	if c.failed || n > len(c.b) {
		c.failed = true
		return nil
	}
	taken := c.b[:n]
	c.b = c.b[n:]
	return taken
}

func (c *cursor) number(size int) int {
	n := 0
	for _, v := range c.take(size) {
		n = n<<8 | int(v)
	}
	return n
}

// vector takes a field whose length stands before it in size bytes.
func (c *cursor) vector(size int) []byte { return c.take(c.number(size)) }

// parseClientHello reads RFC 8446 §4.1.2, or its forebear in RFC 5246 §7.4.1.2,
// which may end before the extensions.
func parseClientHello(b []byte) (Hello, bool) {
	c := cursor{b: b}
	c.take(2 + 32) // legacy_version, random
	session := c.vector(1)
	suites := c.vector(2)
	compression := c.vector(1)
	if c.failed || len(session) > 32 || len(suites) < 2 || len(suites)%2 != 0 || len(compression) == 0 {
		return Hello{}, false
	}
	if len(c.b) == 0 {
		return Hello{}, true
	}
	extensions := cursor{b: c.vector(2)}
	if c.failed || len(c.b) != 0 {
		return Hello{}, false
	}
	var h Hello
	var sawSNI, sawALPN bool
	for len(extensions.b) > 0 {
		kind, data := extensions.number(2), extensions.vector(2)
		ok := true
		switch {
		case extensions.failed:
			return Hello{}, false
		case kind == extServerName:
			ok = !sawSNI && h.readSNI(data)
			sawSNI = true
		case kind == extALPN:
			ok = !sawALPN && h.readALPN(data)
			sawALPN = true
		}
		if !ok {
			return Hello{}, false
		}
	}
	return h, true
}

func (h *Hello) readSNI(data []byte) bool {
	outer := cursor{b: data}
	names := cursor{b: outer.vector(2)}
	if outer.failed || len(outer.b) != 0 || len(names.b) == 0 {
		return false
	}
	for len(names.b) > 0 {
		kind, name := names.number(1), names.vector(2)
		switch {
		case names.failed || len(name) == 0:
			return false
		case kind != nameTypeHostName:
		case h.SNI != "":
			return false // RFC 6066: one name of each type
		default:
			h.SNI = string(name)
		}
	}
	return true
}

func (h *Hello) readALPN(data []byte) bool {
	outer := cursor{b: data}
	names := cursor{b: outer.vector(2)}
	if outer.failed || len(outer.b) != 0 || len(names.b) == 0 {
		return false
	}
	for len(names.b) > 0 {
		name := names.vector(1)
		if names.failed || len(name) == 0 {
			return false
		}
		h.ALPN = append(h.ALPN, string(name))
	}
	return true
}
