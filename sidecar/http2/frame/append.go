package frame

import "encoding/binary"

func appendHeader(dst []byte, h header) []byte {
	return append(dst, byte(h.length>>16), byte(h.length>>8), byte(h.length), byte(h.typ), h.flags,
		byte(h.stream>>24), byte(h.stream>>16), byte(h.stream>>8), byte(h.stream))
}

// AppendDataHeader appends the header of a DATA frame; its data are the next
// length bytes that the caller sends, from wherever they lie.
func AppendDataHeader(dst []byte, stream uint32, length int, end bool) []byte {
	return appendHeader(dst, header{uint32(length), Data, endFlag(end), stream})
}

func endFlag(end bool) uint8 {
	if end {
		return flagEndStream
	}
	return 0
}

// OpenBlock leaves room for the header of a HEADERS frame at the end of dst. The
// block is to be encoded right behind it; CloseBlock completes it. So a block is
// written where it is sent from.
func OpenBlock(dst []byte) []byte {
	return append(dst, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// Block tells CloseBlock what to complete.
type Block struct {
	At     int // length of dst before OpenBlock
	Stream uint32
	End    bool // of the stream
	Max    int  // Settings.MaxFrameSize of the peer
}

// CloseBlock completes the HEADERS frame; what is longer than the peer takes
// goes on in CONTINUATION frames.
func CloseBlock(dst []byte, o Block) []byte {
	n := len(dst) - o.At - HeaderLen
	if n <= o.Max {
		appendHeader(dst[:o.At], header{uint32(n), Headers, flagEndHeaders | endFlag(o.End), o.Stream})
		return dst
	}
	more := (n - 1) / o.Max // CONTINUATION frames
	for range more * HeaderLen {
		dst = append(dst, 0)
	}
	// From behind, so that nothing is overwritten before it has moved.
	for i := more; i > 0; i-- {
		from := o.At + HeaderLen + i*o.Max
		length := min(o.Max, n-i*o.Max)
		to := from + i*HeaderLen
		copy(dst[to:to+length], dst[from:from+length])
		flags := uint8(0)
		if i == more {
			flags = flagEndHeaders
		}
		appendHeader(dst[:to-HeaderLen], header{uint32(length), Continuation, flags, o.Stream})
	}
	appendHeader(dst[:o.At], header{uint32(o.Max), Headers, endFlag(o.End), o.Stream})
	return dst
}

// AppendSettings appends a SETTINGS frame.
func AppendSettings(dst []byte, settings ...Setting) []byte {
	dst = appendHeader(dst, header{uint32(6 * len(settings)), SettingsType, 0, 0})
	for _, s := range settings {
		dst = binary.BigEndian.AppendUint16(dst, s.ID)
		dst = binary.BigEndian.AppendUint32(dst, s.Value)
	}
	return dst
}

// AppendSettingsAck appends the acknowledgement of a SETTINGS frame.
func AppendSettingsAck(dst []byte) []byte {
	return appendHeader(dst, header{uint32(0), SettingsType, flagAck, 0})
}

// AppendPing appends a PING with the 8 bytes of data.
func AppendPing(dst []byte, data uint64) []byte {
	return binary.BigEndian.AppendUint64(appendHeader(dst, header{uint32(8), Ping, 0, 0}), data)
}

// AppendPong appends the answer to a PING of that payload.
func AppendPong(dst, payload []byte) []byte {
	return append(appendHeader(dst, header{uint32(len(payload)), Ping, flagAck, 0}), payload...)
}

// AppendGoAway appends a GOAWAY: streams above last were not and will not be
// served; detail is for people.
func AppendGoAway(dst []byte, last uint32, code Code, detail string) []byte {
	dst = appendHeader(dst, header{uint32(8 + len(detail)), GoAway, 0, 0})
	dst = binary.BigEndian.AppendUint32(dst, last)
	dst = binary.BigEndian.AppendUint32(dst, uint32(code))
	return append(dst, detail...)
}

// AppendRST appends a RST_STREAM.
func AppendRST(dst []byte, stream uint32, code Code) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(dst, header{uint32(4), RSTStream, 0, stream}), uint32(code))
}

// AppendWindowUpdate appends a WINDOW_UPDATE; increment is 1 to MaxWindow.
func AppendWindowUpdate(dst []byte, stream, increment uint32) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(dst, header{uint32(4), WindowUpdate, 0, stream}), increment)
}
