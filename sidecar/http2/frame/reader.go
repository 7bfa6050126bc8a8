package frame

// Reader finds the frames in what a connection has read. Its bytes need not be
// kept beyond what Next tells: DATA and unknown frames are taken in pieces, all
// else needs to be whole, so a buffer of HeaderLen + MaxSize is enough.
type Reader struct {
	preface int    // how many bytes of Preface are still to come
	began   bool   // the first SETTINGS frame was seen
	inFrame bool   // head is that of a frame whose payload is not all taken
	inData  bool   // its pad length is known
	head    header // of the present frame; length is what is left of it
	pad     uint32 // of the present DATA frame: padding still to come
	owed    uint32 // its pad length, as long as no piece has counted it

	block         []byte // fragments of a header block that spans frames
	open          bool   // a header block has begun and not ended
	blockOf       header // its HEADERS frame
	blockFault    *Fault // of its HEADERS frame
	continuations int
}

// NewReader reads what a server says, or, with preface, what a client says.
func NewReader(preface bool) *Reader {
	r := &Reader{}
	if preface {
		r.preface = len(Preface)
	}
	return r
}

func connFault(c Code, detail string) *Fault { return &Fault{Code: c, Detail: detail} }

var (
	faultPreface   = connFault(ProtocolError, "no HTTP/2 connection preface (RFC 9113, 3.4)")
	faultFirst     = connFault(ProtocolError, "the first frame is not SETTINGS (RFC 9113, 3.4)")
	faultSize      = connFault(FrameSizeError, "frame longer than 16 KiB (RFC 9113, 4.2)")
	faultShort     = connFault(FrameSizeError, "frame too short for its fields (RFC 9113, 4.2)")
	faultLength    = connFault(FrameSizeError, "frame not of its type's length (RFC 9113, 6)")
	faultPriLength = &Fault{FrameSizeError, true, "PRIORITY not 5 bytes long (RFC 9113, 6.3)"}
	faultZero      = connFault(ProtocolError, "frame of a stream without stream identifier (RFC 9113, 6)")
	faultNotZero   = connFault(ProtocolError, "frame of the connection with a stream identifier (RFC 9113, 6)")
	faultEven      = connFault(ProtocolError, "frame on a stream that only push could open (RFC 9113, 5.1.1)")
	faultPush      = connFault(ProtocolError, "PUSH_PROMISE, which was not allowed (RFC 9113, 8.4)")
	faultOrder     = connFault(ProtocolError, "a header block is interrupted (RFC 9113, 4.3)")
	faultContinue  = connFault(ProtocolError, "CONTINUATION without a header block (RFC 9113, 6.10)")
	faultPadding   = connFault(ProtocolError, "padding longer than the payload (RFC 9113, 6.1)")
	faultBlock     = connFault(EnhanceYourCalm, "header block longer than 64 KiB, or in more than 16 CONTINUATION frames")
	faultIncrement = connFault(ProtocolError, "WINDOW_UPDATE by 0 (RFC 9113, 6.9)")
	faultStreamInc = &Fault{ProtocolError, true, "WINDOW_UPDATE by 0 (RFC 9113, 6.9)"}
	faultSelf      = &Fault{ProtocolError, true, "a stream depends on itself (RFC 7540, 5.3.1)"}
)

// Next looks for a frame, or a piece of DATA, at the beginning of b and puts it
// in f. It has used n bytes of b, frame or not. Without a frame (ok is false)
// more has to be read behind b[n:].
//
// With a Fault of the stream f is a frame all the same, and is to be regarded
// as far as the connection goes: a header block has to be decoded. After any
// other Fault the Reader is not to be used again.
func (r *Reader) Next(b []byte, f *Frame) (n int, ok bool, fault *Fault) {
	if r.preface > 0 {
		k := min(r.preface, len(b))
		if at := len(Preface) - r.preface; string(b[:k]) != Preface[at:at+k] {
			return 0, false, faultPreface
		}
		r.preface -= k
		n = k
		if r.preface > 0 {
			return n, false, nil
		}
	}
	for {
		if !r.inFrame {
			if len(b)-n < HeaderLen {
				return n, false, nil
			}
			r.head = parseHeader(b[n:])
			if fault = r.check(); fault != nil {
				return n, false, fault
			}
			r.inFrame = true
			n += HeaderLen
		}
		switch {
		case r.head.typ == Data:
			k, ok, fault := r.data(b[n:], f)
			return n + k, ok, fault
		case r.head.typ > Continuation:
			k := min(len(b)-n, int(r.head.length))
			n += k
			r.head.length -= uint32(k)
			if r.head.length > 0 {
				return n, false, nil
			}
			r.inFrame = false
			continue
		case len(b)-n < int(r.head.length):
			return n, false, nil
		}
		payload := b[n : n+int(r.head.length)]
		n += len(payload)
		r.inFrame = false
		if ok, fault = r.whole(payload, f); ok || fault != nil {
			return n, ok, fault
		}
	}
}

// check judges a frame by its header, before its payload has come.
func (r *Reader) check() *Fault {
	h := &r.head
	if !r.began {
		if h.typ != SettingsType || h.flags&flagAck != 0 {
			return faultFirst
		}
		r.began = true
	}
	if h.length > MaxSize {
		return faultSize
	}
	if r.open && (h.typ != Continuation || h.stream != r.blockOf.stream) {
		return faultOrder
	}
	switch h.typ {
	case Data, Headers, Priority, RSTStream, Continuation, PushPromise:
		if h.stream == 0 {
			return faultZero
		}
	case SettingsType, Ping, GoAway:
		if h.stream != 0 {
			return faultNotZero
		}
	}
	// Nobody may push to us, so a stream of a server's number stays idle for ever,
	// and in that state only PRIORITY is not an error (RFC 9113, 5.1).
	if h.stream&1 == 0 && h.stream != 0 && h.typ != Priority && h.typ <= Continuation {
		return faultEven
	}
	switch h.typ {
	case PushPromise:
		return faultPush
	case Continuation:
		if !r.open {
			return faultContinue
		}
	}
	return checkLength(h)
}

func checkLength(h *header) *Fault {
	wrong, short := false, false
	switch h.typ {
	case RSTStream, WindowUpdate:
		wrong = h.length != 4
	case Ping:
		wrong = h.length != 8
	case SettingsType:
		wrong = h.length%6 != 0 || h.flags&flagAck != 0 && h.length != 0
	case GoAway:
		short = h.length < 8
	case Data:
		short = h.flags&flagPadded != 0 && h.length < 1
	case Headers:
		short = h.length < prefixLen(h.flags)
	}
	switch {
	case wrong:
		return faultLength
	case short:
		return faultShort
	}
	return nil
}

// prefixLen is how long the fields before a block's first fragment are.
func prefixLen(flags uint8) (n uint32) {
	if flags&flagPadded != 0 {
		n++
	}
	if flags&flagPriority != 0 {
		n += 5
	}
	return n
}

// data hands out what is there of a DATA frame's payload.
func (r *Reader) data(b []byte, f *Frame) (n int, ok bool, fault *Fault) {
	h := &r.head
	if !r.inData {
		r.pad, r.owed = 0, 0
		if h.flags&flagPadded != 0 {
			if len(b) == 0 {
				return 0, false, nil
			}
			r.pad, r.owed, n = uint32(b[0]), 1, 1
			if r.pad >= h.length {
				return 0, false, faultPadding
			}
			h.length--
		}
		r.inData = true
	}
	if n == len(b) && h.length > 0 {
		return n, false, nil
	}
	*f = Frame{Type: Data, Stream: h.stream, Flow: r.owed}
	r.owed = 0
	left := h.length - min(h.length, r.pad)
	k := min(int(left), len(b)-n)
	f.Payload = b[n : n+k : n+k]
	f.Left = left - uint32(k)
	n += k
	if f.Left == 0 {
		p := min(int(h.length)-k, len(b)-n) // padding
		n += p
		k += p
	}
	h.length -= uint32(k)
	f.Flow += uint32(k)
	r.pad = min(r.pad, h.length)
	if h.length == 0 {
		r.inFrame, r.inData = false, false
		f.EndStream = h.flags&flagEndStream != 0
	}
	return n, true, nil
}

// whole takes a frame that has come as a whole.
func (r *Reader) whole(p []byte, f *Frame) (ok bool, fault *Fault) {
	h := &r.head
	*f = Frame{Type: h.typ, Stream: h.stream}
	switch h.typ {
	case Headers:
		return r.headers(p, f)
	case Continuation:
		return r.continuation(p, f)
	case Priority:
		if len(p) != 5 {
			return true, faultPriLength
		}
		if number(p)&maxStream == h.stream {
			return true, faultSelf
		}
	case RSTStream:
		f.Code = Code(number(p))
	case SettingsType, Ping:
		f.Ack = h.flags&flagAck != 0
		f.Payload = p
	case GoAway:
		f.LastStream = number(p) & maxStream
		f.Code = Code(number(p[4:]))
		f.Payload = p[8:]
	case WindowUpdate:
		f.Increment = number(p) & maxStream
		switch {
		case f.Increment == 0 && h.stream == 0:
			return false, faultIncrement
		case f.Increment == 0:
			return true, faultStreamInc
		}
	}
	return true, nil
}

func (r *Reader) headers(p []byte, f *Frame) (ok bool, fault *Fault) {
	h := &r.head
	pad := 0
	if h.flags&flagPadded != 0 {
		pad = int(p[0])
		p = p[1:]
	}
	if h.flags&flagPriority != 0 {
		if number(p)&maxStream == h.stream {
			fault = faultSelf
		}
		p = p[5:]
	}
	if pad > len(p) {
		return false, faultPadding
	}
	p = p[:len(p)-pad]
	if h.flags&flagEndHeaders != 0 {
		f.Payload = p
		f.EndStream = h.flags&flagEndStream != 0
		return true, fault
	}
	r.open, r.blockOf, r.blockFault, r.continuations = true, *h, fault, 0
	r.block = append(r.block[:0], p...)
	return false, nil
}

func (r *Reader) continuation(p []byte, f *Frame) (ok bool, fault *Fault) {
	r.continuations++
	if r.continuations > maxContinuations || len(r.block)+len(p) > maxBlock {
		return false, faultBlock
	}
	r.block = append(r.block, p...)
	if r.head.flags&flagEndHeaders == 0 {
		return false, nil
	}
	r.open = false
	*f = Frame{Type: Headers, Stream: r.head.stream, Payload: r.block, EndStream: r.blockOf.flags&flagEndStream != 0}
	return true, r.blockFault
}

// InBlock tells whether a header block has begun and is not whole: its sender
// owes the rest, and may be given a time for it.
func (r *Reader) InBlock() bool { return r.open || r.inFrame && r.head.typ == Headers }

// Shrink gives up the memory of joined header blocks, for a connection at rest.
func (r *Reader) Shrink() {
	if !r.open {
		r.block = nil
	}
}
