package detect

import "bytes"

const (
	// MaxRequestLine is how many bytes a caller ever needs to peek for
	// Request. A line that is longer and so far right is taken for HTTP: RFC
	// 9112 §3 asks servers to take 8,000 bytes at least.
	MaxRequestLine = 8 << 10
	// maxMethod is twice the longest registered method
	// (UPDATEREDIRECTREF, 17 bytes), so that text without a space is not
	// waited for.
	maxMethod = 34
	// maxLeading: empty lines before a request are ignored (RFC 9112 §2.2);
	// old clients send one after a POST body.
	maxLeading = 4
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // RFC 9113 §3.4

// Request tells whether a client speaks HTTP: NeedMore, No, HTTP1 or HTTP2.
//
// HTTP1 needs a whole request line that ends in HTTP/1.x, since other text
// protocols also begin with words like GET. Whether the line is right in every
// detail is the codec's to judge: what names itself HTTP/1.x is HTTP, so that
// a bad request is refused as one and not let through as bytes.
func Request(b []byte) Verdict {
	if len(b) <= len(preface) && preface[:len(b)] == string(b) {
		if len(b) == len(preface) {
			return HTTP2
		}
		return NeedMore
	}
	if len(b) > len(preface) && string(b[:len(preface)]) == preface {
		return HTTP2
	}
	full := len(b) >= MaxRequestLine
	if full {
		b = b[:MaxRequestLine]
	}
	line := b
	for skipped := 0; skipped < maxLeading && bytes.HasPrefix(line, []byte("\r\n")); skipped += 2 {
		line = line[2:]
	}
	if len(line) == 0 || string(line) == "\r" && len(b)-len(line) < maxLeading {
		return NeedMore
	}
	end := bytes.IndexByte(line, '\n')
	ended := end >= 0
	if ended {
		line = line[:end]
	}
	method := methodLength(line)
	switch {
	case method < 0:
		return No
	case method == len(line) && ended:
		return No // a line of one word
	case method == len(line):
		return NeedMore
	}
	return requestTarget(line[method+1:], ended, full)
}

// methodLength counts the token (RFC 9110 §5.6.2) before the first space;
// all of line: no space yet; -1: it is no method.
func methodLength(line []byte) int {
	for i, c := range line {
		switch {
		case c == ' ' && i > 0:
			return i
		case i >= maxMethod || !token(c):
			return -1
		}
	}
	return len(line)
}

// requestTarget judges what follows the method's space.
func requestTarget(rest []byte, ended, full bool) Verdict {
	if ended {
		rest = bytes.TrimSuffix(rest, []byte("\r"))
	}
	for i, c := range rest {
		// A CR may be the one before a LF that has not come yet.
		if c < ' ' && !(c == '\r' && !ended && i == len(rest)-1) || c == 0x7f {
			return No
		}
	}
	switch {
	case ended && version(rest):
		return HTTP1
	case ended:
		return No
	case full && len(rest) > 0 && (rest[0] == '/' || bytes.HasPrefix(rest, []byte("http"))):
		return HTTP1
	case full:
		return No
	}
	return NeedMore
}

// version: the line ends in a target, a space and HTTP/1.x.
func version(rest []byte) bool {
	const want = " HTTP/1."
	at := len(rest) - len(want) - 1
	return at > 0 && string(rest[at:at+len(want)]) == want && '0' <= rest[len(rest)-1] && rest[len(rest)-1] <= '9'
}

func token(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0
}
