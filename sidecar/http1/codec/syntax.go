package codec

import (
	"bytes"
	"math"
)

// isToken holds the characters of a token (RFC 9110, 5.6.2).
var isToken = func() (t [256]bool) {
	for c := range t {
		t[c] = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' ||
			c < 0x80 && bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0
	}
	return t
}()

// isFieldText holds the characters of a field value (RFC 9110, 5.5).
var isFieldText = func() (t [256]bool) {
	for c := range t {
		t[c] = c == '\t' || c >= ' ' && c != 0x7f
	}
	return t
}()

// isHostText holds the characters of uri-host and port (RFC 3986, 3.2.2).
var isHostText = func() (t [256]bool) {
	for c := range t {
		t[c] = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' ||
			c < 0x80 && bytes.IndexByte([]byte("-._~!$&'()*+,;=%:[]"), byte(c)) >= 0
	}
	return t
}()

func isText(b []byte) bool {
	for _, c := range b {
		if !isFieldText[c] {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// equalFold compares with an ASCII text in lower case.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i := range b {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// kindOf classifies a field by its name; the length rules most out at once.
func kindOf(name []byte) kind {
	var want string
	var k kind
	switch len(name) {
	case 2:
		want, k = "te", kindTE
	case 4:
		want, k = "host", kindHost
	case 6:
		want, k = "expect", kindExpect
	case 7:
		want, k = "upgrade", kindUpgrade
	case 10:
		if equalFold(name, "keep-alive") {
			return kindKeepAlive
		}
		want, k = "connection", kindConnection
	case 14:
		want, k = "content-length", kindContentLength
	case 15:
		if equalFold(name, "idempotency-key") {
			return kindIdempotencyKey
		}
		want, k = "x-forwarded-for", kindForwardedFor
	case 16:
		want, k = "proxy-connection", kindProxyConnection
	case 17:
		want, k = "transfer-encoding", kindTransferEncoding
	}
	if want != "" && equalFold(name, want) {
		return k
	}
	// '_' counts as '-': CGI-like servers do not tell them apart, so a client
	// could speak with our voice by it.
	if len(name) > 9 && (name[0] == 'x' || name[0] == 'X') && isDash(name[1]) &&
		isDash(name[8]) && equalFold(name[2:8], "heddle") {
		return kindHeddle
	}
	return kindOther
}

func isDash(c byte) bool { return c == '-' || c == '_' }

// nextToken cuts the first element off a comma-separated list.
func nextToken(v []byte) (token, rest []byte) {
	if i := bytes.IndexByte(v, ','); i >= 0 {
		v, rest = v[:i], v[i+1:]
	}
	return bytes.Trim(v, " \t"), rest
}

// parseLength reads a Content-Length: digits only, below 2^63.
func parseLength(v []byte) (int64, bool) {
	if len(v) == 0 {
		return 0, false
	}
	var n int64
	for _, c := range v {
		if !isDigit(c) || n > (math.MaxInt64-int64(c-'0'))/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

func isAuthority(b []byte) bool {
	for _, c := range b {
		if !isHostText[c] {
			return false
		}
	}
	return len(b) > 0
}

// authorityOf gives the authority of an absolute-form target.
func authorityOf(target []byte) ([]byte, bool) {
	i := bytes.Index(target, []byte("://"))
	if i < 1 {
		return nil, false
	}
	if !equalFold(target[:i], "http") && !equalFold(target[:i], "https") {
		return nil, false
	}
	a := target[i+3:]
	if j := bytes.IndexAny(a, "/?#"); j >= 0 {
		a = a[:j]
	}
	return a, isAuthority(a)
}

// sameAuthority compares without regard to case and to the default port.
func sameAuthority(a, b []byte) bool {
	return bytes.EqualFold(bytes.TrimSuffix(a, []byte(":80")), bytes.TrimSuffix(b, []byte(":80")))
}
