// Package detect tells from the first bytes of a connection what is spoken on
// it: a TLS ClientHello, an HTTP/1.x request line, the HTTP/2 preface. It is
// pure: callers (sidecar/inbound, sidecar/outbound) peek and wait.
//
// Every function takes the prefix read so far and may be asked again with more.
// A verdict other than NeedMore is final: no further byte changes it.
package detect

// Verdict is what a prefix proves.
type Verdict uint8

// The verdicts.
const (
	NeedMore  Verdict = iota // the prefix proves nothing yet
	No                       // it is not what was asked for
	Malformed                // it began as TLS but breaks its rules or our bounds
	TLS                      // a whole ClientHello
	HTTP1                    // an HTTP/1.x request line
	HTTP2                    // the HTTP/2 connection preface
)

// MaxClientHello bounds how much a caller ever needs to peek, in bytes.
const MaxClientHello = 16 << 10

// Hello is what a ClientHello asks for.
type Hello struct {
	SNI  string
	ALPN []string
}

// ClientHello reads a ClientHello: NeedMore, No, Malformed or TLS.
func ClientHello(b []byte) (Hello, Verdict) { return Hello{}, No }

// ClientHelloALPN is ClientHello for callers that only route by ALPN.
func ClientHelloALPN(b []byte) ([]string, Verdict) {
	h, v := ClientHello(b)
	return h.ALPN, v
}

// Request tells whether a client speaks HTTP: NeedMore, No, HTTP1 or HTTP2.
func Request(b []byte) Verdict { return No }
