package message

import (
	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
)

// Request is what a request's fields say. Its texts are the list's, valid as
// long as those.
type Request struct {
	Method, Scheme, Path []byte // Scheme and Path are nil in a plain CONNECT
	// Authority is :authority's, or, without one, Host's: never nil. A relay has to
	// send it as :authority (RFC 9113, 8.3.1).
	Authority []byte
	Protocol  []byte // of extended CONNECT (RFC 8441); nil: none
	Length    int64  // Content-Length; -1: none
	IsHead    bool
	IsConnect bool
	Trailers  bool // TE: trailers
	Expect    bool // Expect is there
	hosts     int  // Host fields
}

// Response is what a response's fields say.
type Response struct {
	Status int
	Length int64 // Content-Length; -1: none
}

func malformed(detail string) *frame.Fault {
	return &frame.Fault{Code: frame.ProtocolError, Stream: true, Detail: detail}
}

// A malformed message is an error of its stream (RFC 9113, 8.1.1).
var (
	faultField     = malformed("malformed field name or value (RFC 9113, 8.2.1)")
	faultHop       = malformed("a field of HTTP/1's connections (RFC 9113, 8.2.2)")
	faultOrder     = malformed("pseudo-field after other fields (RFC 9113, 8.3)")
	faultTwice     = malformed("pseudo-field or Host twice (RFC 9113, 8.3)")
	faultPseudo    = malformed("pseudo-field unknown or not for this message (RFC 9113, 8.3)")
	faultMissing   = malformed("pseudo-field missing or not for this method (RFC 9113, 8.3)")
	faultAuthority = malformed(":authority and Host both missing, or different (RFC 9113, 8.3.1)")
	faultPath      = malformed(":path * for another method than OPTIONS (RFC 9113, 8.3.1)")
	faultStatus    = malformed(":status 101 (RFC 9113, 8.6)")
	faultInterim   = malformed("a response ends with a status of 1xx (RFC 9113, 8.1)")
	faultLength    = malformed("Content-Length twice, with different values")
	faultBody      = malformed("the body is not as long as Content-Length says (RFC 9113, 8.1.1)")
	faultTrailer   = malformed("pseudo-field or framing field among trailers (RFC 9113, 8.1)")
)

// Parse judges the fields of a request and notes in r what they say. Extended
// CONNECT is taken: whoever has not announced it has to look at Protocol.
func (r *Request) Parse(l *hpack.List) *frame.Fault {
	*r = Request{Length: -1}
	var host []byte
	regular := false
	for i := range l.Len() {
		m := l.Mark(i)
		k := Kind(m & kindBits)
		if m&bad != 0 {
			return faultOf(k)
		}
		if k == Other {
			regular = true
			continue
		}
		if k <= Protocol && k != Other {
			if regular {
				return faultOrder
			}
			if fault := r.pseudo(k, l.Value(i)); fault != nil {
				return fault
			}
			continue
		}
		regular = true
		switch k {
		case Host:
			host = l.Value(i)
			r.hosts++
		case Length:
			if !agree(&r.Length, l.Value(i)) {
				return faultLength
			}
		case TE:
			r.Trailers = true
		case Expect:
			r.Expect = true
		}
	}
	return r.finish(host)
}

func faultOf(k Kind) *frame.Fault {
	switch k {
	case Hop, TE:
		return faultHop
	case OtherPseudo:
		return faultPseudo
	}
	return faultField
}

func (r *Request) pseudo(k Kind, v []byte) *frame.Fault {
	var at *[]byte
	switch k {
	case Method:
		at = &r.Method
		r.IsHead, r.IsConnect = string(v) == "HEAD", string(v) == "CONNECT"
	case Scheme:
		at = &r.Scheme
	case Authority:
		at = &r.Authority
	case Path:
		at = &r.Path
	case Protocol:
		at = &r.Protocol
	default:
		return faultPseudo
	}
	if *at != nil {
		return faultTwice
	}
	*at = v // none is empty, see valid
	return nil
}

// finish checks what only all the fields tell.
func (r *Request) finish(host []byte) *frame.Fault {
	plain := r.IsConnect && r.Protocol == nil
	switch {
	case r.Method == nil, (r.Scheme == nil) != plain, (r.Path == nil) != plain, r.Protocol != nil && !r.IsConnect:
		return faultMissing
	case r.IsConnect && r.Authority == nil:
		return faultMissing
	case len(r.Path) == 1 && r.Path[0] == '*' && string(r.Method) != "OPTIONS":
		return faultPath
	case r.hosts > 1:
		return faultTwice
	case r.Authority == nil:
		r.Authority = host
	case host != nil && !sameAuthority(r.Authority, host, r.Scheme):
		return faultAuthority
	}
	if r.Authority == nil {
		return faultAuthority
	}
	return nil
}

// Parse judges the fields of a response, interim or final; end: the stream ends
// with them.
func (r *Response) Parse(l *hpack.List, end bool) *frame.Fault {
	*r = Response{Length: -1}
	regular := false
	for i := range l.Len() {
		m := l.Mark(i)
		k := Kind(m & kindBits)
		switch {
		case m&bad != 0:
			return faultOf(k)
		case k == Status:
			if regular {
				return faultOrder
			}
			if r.Status != 0 {
				return faultTwice
			}
			v := l.Value(i)
			r.Status = int(v[0]-'0')*100 + int(v[1]-'0')*10 + int(v[2]-'0')
			continue
		case k != Other && k <= Protocol:
			return faultPseudo
		case k == Length:
			if !agree(&r.Length, l.Value(i)) {
				return faultLength
			}
		}
		regular = true
	}
	switch {
	case r.Status == 0:
		return faultMissing
	case r.Status == 101:
		return faultStatus
	case r.Status < 200 && end:
		return faultInterim
	}
	return nil
}

// Interim tells whether another response follows (1xx).
func (r *Response) Interim() bool { return r.Status < 200 }

// Trailers judges trailer fields. What ends no stream is no trailer: that is for
// the caller to see.
func Trailers(l *hpack.List) *frame.Fault {
	for i := range l.Len() {
		m := l.Mark(i)
		switch k := Kind(m & kindBits); {
		case k != Other && k <= OtherPseudo, k == Length, k == Host:
			return faultTrailer
		case m&bad != 0:
			return faultOf(k)
		}
	}
	return nil
}

// agree notes a Content-Length, which has to be as one before.
func agree(at *int64, v []byte) bool {
	n, _ := length(v) // valid has seen to it
	if *at >= 0 && *at != n {
		return false
	}
	*at = n
	return true
}

// Body counts a body against the length that was declared.
type Body struct{ left int64 } // -1: none was declared

// Body is that of the request.
func (r *Request) Body() Body {
	if r.IsConnect { // what follows is no body (RFC 9110, 9.3.6)
		return Body{-1}
	}
	return Body{r.Length}
}

// Body is that of the response to req. Where none may follow, Content-Length
// tells of another response's (RFC 9110, 8.6).
func (r *Response) Body(req *Request) Body {
	switch {
	case req.IsHead, r.Status == 204, r.Status == 304:
		return Body{0}
	case req.IsConnect && r.Status < 300:
		return Body{-1}
	}
	return Body{r.Length}
}

// Take counts n bytes of DATA, without padding.
func (b *Body) Take(n int) *frame.Fault {
	if b.left < 0 {
		return nil
	}
	if int64(n) > b.left {
		return faultBody
	}
	b.left -= int64(n)
	return nil
}

// End tells whether the stream may end here.
func (b *Body) End() *frame.Fault {
	if b.left > 0 {
		return faultBody
	}
	return nil
}
