package message

import (
	"bytes"
	"math"
)

func charset(in func(c byte) bool) (t [256]bool) {
	for c := range t {
		t[c] = in(byte(c))
	}
	return t
}

var (
	// isToken holds the characters of a token (RFC 9110, 5.6.2), isName those of
	// them that a field name may have (RFC 9113, 8.2.1).
	isToken = charset(func(c byte) bool { return isAlnum(c) || oneOf(c, "!#$%&'*+-.^_`|~") })
	isName  = charset(func(c byte) bool { return isToken[c] && !('A' <= c && c <= 'Z') })
	// isFieldText holds the characters of a field value (RFC 9110, 5.5).
	isFieldText = charset(func(c byte) bool { return c == '\t' || c >= ' ' && c != 0x7f })
	// isHostText holds those of uri-host and port (RFC 3986, 3.2.2): no userinfo.
	isHostText = charset(func(c byte) bool { return isAlnum(c) || oneOf(c, "-._~!$&'()*+,;=%:[]") })
	isScheme   = charset(func(c byte) bool { return isAlnum(c) || oneOf(c, "+-.") })
	// isTarget holds what may stand in a request line of HTTP/1; a fragment is not
	// sent.
	isTarget = charset(func(c byte) bool { return c > ' ' && c != 0x7f && c != '#' })
)

func isAlnum(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

func oneOf(c byte, set string) bool { return c < 0x80 && bytes.IndexByte([]byte(set), c) >= 0 }

func all(v []byte, set *[256]bool) bool {
	for _, c := range v {
		if !set[c] {
			return false
		}
	}
	return true
}

// length reads a Content-Length: digits only, below 2^63.
func length(v []byte) (int64, bool) {
	var n int64
	for _, c := range v {
		if !isDigit(c) || n > (math.MaxInt64-int64(c-'0'))/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, len(v) > 0
}

// sameAuthority compares without regard to case and to the scheme's default
// port.
func sameAuthority(a, b, scheme []byte) bool {
	port := []byte(":80")
	if string(scheme) == "https" {
		port = []byte(":443")
	}
	return bytes.EqualFold(bytes.TrimSuffix(a, port), bytes.TrimSuffix(b, port))
}
