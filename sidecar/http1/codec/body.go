package codec

import (
	"math"
)

type framing uint8

const (
	noBody framing = iota
	byLength
	chunked
	untilClose
)

// Body follows a message's body through the bytes of its connection. Chunked
// bodies are checked and passed on as they are, extensions and trailers too.
type Body struct {
	framing framing
	left    int64 // of the body, or of the present chunk
	state   chunkState
	line    int // bytes of the present size line, or of the trailers
	digits  int
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkExtension
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerStart
	trailerName
	trailerValue
	trailerLF
	chunkedLF // of the empty line that ends it all
	chunkedDone
)

var (
	faultChunk    = badRequest("malformed chunk (RFC 9112, 7.1)")
	faultTrailers = badRequest("malformed or too many trailer fields")
)

// Done tells whether the body has ended; one that lasts until close never has.
func (b *Body) Done() bool {
	switch b.framing {
	case noBody:
		return true
	case byLength:
		return b.left == 0
	case chunked:
		return b.state == chunkedDone
	}
	return false
}

// Take tells how many bytes of p belong to the body and counts them as read.
func (b *Body) Take(p []byte) (int, error) {
	switch b.framing {
	case noBody:
		return 0, nil
	case byLength:
		n := int(min(int64(len(p)), b.left))
		b.left -= int64(n)
		return n, nil
	case untilClose:
		return len(p), nil
	}
	i := 0
	for i < len(p) && b.state != chunkedDone {
		if b.state == chunkData {
			n := int(min(int64(len(p)-i), b.left))
			b.left -= int64(n)
			i += n
			if b.left == 0 {
				b.state = chunkDataCR
			}
			continue
		}
		if err := b.step(p[i]); err != nil {
			return i, err
		}
		i++
	}
	return i, nil
}

// UntilClose tells whether the body lasts until its connection is closed.
func (b *Body) UntilClose() bool { return b.framing == untilClose }

// step takes one byte that is not chunk data.
func (b *Body) step(c byte) error {
	switch b.state {
	case chunkSize, chunkExtension, chunkSizeLF:
		return b.sizeLine(c)
	case chunkDataCR:
		if c != '\r' {
			return faultChunk
		}
		b.state = chunkDataLF
	case chunkDataLF:
		if c != '\n' {
			return faultChunk
		}
		b.state, b.line, b.digits = chunkSize, 0, 0
	default:
		return b.trailer(c)
	}
	return nil
}

func (b *Body) sizeLine(c byte) error {
	if b.line++; b.line > maxChunkLine {
		return faultChunk
	}
	switch b.state {
	case chunkSize:
		if d, ok := hexDigit(c); ok {
			if b.left > (math.MaxInt64-d)/16 {
				return faultChunk
			}
			b.left = b.left*16 + d
			b.digits++
			return nil
		}
		if b.digits == 0 {
			return faultChunk
		}
		switch c {
		case ';':
			b.state = chunkExtension
		case '\r':
			b.state = chunkSizeLF
		default:
			return faultChunk
		}
	case chunkExtension:
		if c == '\r' {
			b.state = chunkSizeLF
		} else if !isFieldText[c] {
			return faultChunk
		}
	case chunkSizeLF:
		if c != '\n' {
			return faultChunk
		}
		b.state = chunkData
		if b.left == 0 {
			b.state, b.line = trailerStart, 0
		}
	}
	return nil
}

func (b *Body) trailer(c byte) error {
	if b.line++; b.line > maxTrailers {
		return faultTrailers
	}
	switch b.state {
	case trailerStart:
		switch {
		case c == '\r':
			b.state = chunkedLF
		case isToken[c]:
			b.state = trailerName
		default:
			return faultTrailers
		}
	case trailerName:
		if c == ':' {
			b.state = trailerValue
		} else if !isToken[c] {
			return faultTrailers
		}
	case trailerValue:
		if c == '\r' {
			b.state = trailerLF
		} else if !isFieldText[c] {
			return faultTrailers
		}
	case trailerLF:
		if c != '\n' {
			return faultTrailers
		}
		b.state = trailerStart
	case chunkedLF:
		if c != '\n' {
			return faultTrailers
		}
		b.state = chunkedDone
	}
	return nil
}

func hexDigit(c byte) (int64, bool) {
	switch {
	case isDigit(c):
		return int64(c - '0'), true
	case 'a' <= c && c <= 'f':
		return int64(c-'a') + 10, true
	case 'A' <= c && c <= 'F':
		return int64(c-'A') + 10, true
	}
	return 0, false
}
