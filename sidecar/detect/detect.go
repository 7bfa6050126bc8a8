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
	Malformed                // it began as a ClientHello but breaks its rules or our bounds
	TLS                      // a whole ClientHello
	HTTP1                    // an HTTP/1.x request line
	HTTP2                    // the HTTP/2 connection preface
)

// String names the verdict for logs.
func (v Verdict) String() string {
	switch v {
	case NeedMore:
		return "need more"
	case No:
		return "no"
	case Malformed:
		return "malformed"
	case TLS:
		return "tls"
	case HTTP1:
		return "http/1"
	case HTTP2:
		return "http/2"
	}
	return "unknown"
}
