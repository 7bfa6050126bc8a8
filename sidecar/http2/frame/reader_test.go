package frame

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// raw is a frame's bytes.
func raw(t Type, flags uint8, stream uint32, payload string) string {
	return string(appendHeader(nil, header{uint32(len(payload)), t, flags, stream})) + payload
}

// start is what every client says first.
var start = Preface + raw(SettingsType, 0, 0, "")

// heard is all that a Reader finds in b, told in words; DATA is joined, since
// its pieces depend on how it comes.
func heard(b string, cut func(left int) int) (all []string) {
	r := NewReader(true)
	var buf []byte
	var data string
	var flow uint32
	for {
		var f Frame
		n, ok, fault := r.Next(buf, &f)
		if n > len(buf) || ok && fault == nil && f.Type == Data && int(f.Flow) < len(f.Payload) {
			panic("uses what is not there")
		}
		switch {
		case ok && f.Type == Data:
			data += string(f.Payload)
			flow += f.Flow
			if r.inFrame {
				break
			}
			all = append(all, fmt.Sprintf("data %d %q flow %d%s", f.Stream, data, flow, ending(f)))
			data, flow = "", 0
		case ok:
			all = append(all, tell(f))
		}
		if fault != nil {
			all = append(all, fault.Error())
			if !fault.Stream {
				return all
			}
		}
		buf = append([]byte(nil), buf[n:]...) // not where it was
		if !ok {
			if b == "" {
				return all
			}
			k := cut(len(b))
			buf = append(buf, b[:k]...)
			b = b[k:]
		}
	}
}

func ending(f Frame) string {
	if f.EndStream {
		return " end"
	}
	return ""
}

func tell(f Frame) string {
	switch f.Type {
	case Headers:
		return fmt.Sprintf("headers %d %q%s", f.Stream, f.Payload, ending(f))
	case Priority:
		return fmt.Sprintf("priority %d", f.Stream)
	case RSTStream:
		return fmt.Sprintf("rst %d %s", f.Stream, f.Code)
	case SettingsType:
		return fmt.Sprintf("settings %q %v", f.Payload, f.Ack)
	case Ping:
		return fmt.Sprintf("ping %q %v", f.Payload, f.Ack)
	case GoAway:
		return fmt.Sprintf("goaway %d %s %q", f.LastStream, f.Code, f.Payload)
	case WindowUpdate:
		return fmt.Sprintf("window %d %d", f.Stream, f.Increment)
	}
	return fmt.Sprintf("unexpected %d", f.Type)
}

func atOnce(left int) int { return left }
func byteWise(int) int    { return 1 }

var long = strings.Repeat("x", MaxSize)

// readings are frames after the preface and the first SETTINGS, and what is
// heard; a fault ends with its class and code.
var readings = []struct {
	name, in string
	want     []string
}{
	{"data", raw(Data, 0, 1, "abc") + raw(Data, flagEndStream, 1, ""), []string{`data 1 "abc" flow 3`, `data 1 "" flow 0 end`}},
	{"data, padded", raw(Data, flagPadded|flagEndStream, 1, "\x02abc\x00\x00"), []string{`data 1 "abc" flow 6 end`}},
	{"data, padding only", raw(Data, flagPadded, 1, "\x02\x00\x00"), []string{`data 1 "" flow 3`}},
	{"data, no padding after all", raw(Data, flagPadded, 1, "\x00"), []string{`data 1 "" flow 1`}},
	{"data, longest", raw(Data, 0, 1, long), []string{fmt.Sprintf("data 1 %q flow 16384", long)}},
	{"data, reserved bit and unknown flags", raw(Data, 0xf6, 1|1<<31, "a"), []string{`data 1 "a" flow 1`}},
	{"data, too long", raw(Data, 0, 1, long+"x"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"data, stream 0", raw(Data, 0, 0, "a"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"data, server's stream", raw(Data, 0, 2, "a"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"data, as much padding as may be", raw(Data, flagPadded, 1, "\x03abc"), []string{`data 1 "" flow 4`}},
	{"data, padding longer than the payload", raw(Data, flagPadded, 1, "\x04abc"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"data, no room for pad length", raw(Data, flagPadded, 1, ""), []string{"(connection error FRAME_SIZE_ERROR)"}},

	{"headers", raw(Headers, flagEndHeaders|flagEndStream, 3, "block"), []string{`headers 3 "block" end`}},
	{"headers, empty", raw(Headers, flagEndHeaders, 3, ""), []string{`headers 3 ""`}},
	{"headers, padded, priority", raw(Headers, flagEndHeaders|flagPadded|flagPriority, 3, "\x01\x80\x00\x00\x01\xffblock\x00"), []string{`headers 3 "block"`}},
	{"headers, all padding", raw(Headers, flagEndHeaders|flagPadded, 3, "\x01\x00"), []string{`headers 3 ""`}},
	{"headers, continued", raw(Headers, flagEndStream, 3, "bl") + raw(Continuation, 0, 3, "") + raw(Continuation, flagEndHeaders, 3, "ock"), []string{`headers 3 "block" end`}},
	{"headers, padded, continued", raw(Headers, flagPadded, 3, "\x01blo\x00") + raw(Continuation, flagEndHeaders, 3, "ck"), []string{`headers 3 "block"`}},
	{"headers, depends on itself", raw(Headers, flagEndHeaders|flagPriority, 3, "\x80\x00\x00\x03\xffblock") + raw(Data, 0, 3, ""), []string{`headers 3 "block"`, "(stream error PROTOCOL_ERROR)", `data 3 "" flow 0`}},
	{"headers, depends on itself, continued", raw(Headers, flagPriority, 3, "\x80\x00\x00\x03\xffbl") + raw(Continuation, flagEndHeaders, 3, "ock"), []string{`headers 3 "block"`, "(stream error PROTOCOL_ERROR)"}},
	{"headers, stream 0", raw(Headers, flagEndHeaders, 0, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"headers, even stream", raw(Headers, flagEndHeaders, 2, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"headers, too long", raw(Headers, flagEndHeaders, 1, long+"x"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"headers, padding too long", raw(Headers, flagEndHeaders|flagPadded, 1, "\x06block"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"headers, padding reaches into priority", raw(Headers, flagEndHeaders|flagPadded|flagPriority, 1, "\x01\x00\x00\x00\x00\x00"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"headers, no room for pad length", raw(Headers, flagEndHeaders|flagPadded, 1, ""), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"headers, no room for priority", raw(Headers, flagEndHeaders|flagPriority, 1, "1234"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"headers, no room for both", raw(Headers, flagEndHeaders|flagPadded|flagPriority, 1, "\x0012341"[:5]), []string{"(connection error FRAME_SIZE_ERROR)"}},

	{"block, data inside", raw(Headers, 0, 1, "bl") + raw(Data, 0, 1, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"block, other headers inside", raw(Headers, 0, 1, "bl") + raw(Headers, flagEndHeaders, 3, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"block, ping inside", raw(Headers, 0, 1, "bl") + raw(Ping, 0, 0, "12345678"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"block, unknown frame inside", raw(Headers, 0, 1, "bl") + raw(99, 0, 1, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"block, continued on another stream", raw(Headers, 0, 1, "bl") + raw(Continuation, flagEndHeaders, 3, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"continuation of nothing", raw(Continuation, flagEndHeaders, 1, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"continuation after the end", raw(Headers, flagEndHeaders, 1, "") + raw(Continuation, flagEndHeaders, 1, ""), []string{`headers 1 ""`, "(connection error PROTOCOL_ERROR)"}},
	{"continuation, stream 0", raw(Continuation, flagEndHeaders, 0, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"continuation, too long", raw(Headers, 0, 1, "") + raw(Continuation, flagEndHeaders, 1, long+"x"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"block, as long as may be", raw(Headers, 0, 1, long) + strings.Repeat(raw(Continuation, 0, 1, long), 3) + raw(Continuation, flagEndHeaders, 1, ""), []string{fmt.Sprintf("headers 1 %q", long+long+long+long)}},
	{"block, longer", raw(Headers, 0, 1, long) + strings.Repeat(raw(Continuation, 0, 1, long), 3) + raw(Continuation, flagEndHeaders, 1, "x"), []string{"(connection error ENHANCE_YOUR_CALM)"}},
	{"block, as many frames as may be", raw(Headers, 0, 1, "") + strings.Repeat(raw(Continuation, 0, 1, ""), 15) + raw(Continuation, flagEndHeaders, 1, ""), []string{`headers 1 ""`}},
	{"block, flood of empty frames", raw(Headers, 0, 1, "") + strings.Repeat(raw(Continuation, 0, 1, ""), 17), []string{"(connection error ENHANCE_YOUR_CALM)"}},

	{"priority", raw(Priority, 0, 2, "\x80\x00\x00\x01\xff"), []string{"priority 2"}},
	{"priority, on itself", raw(Priority, 0, 5, "\x80\x00\x00\x05\xff"), []string{"priority 5", "(stream error PROTOCOL_ERROR)"}},
	{"priority, stream 0", raw(Priority, 0, 0, "\x80\x00\x00\x01\xff"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"priority, short", raw(Priority, 0, 5, "1234") + raw(Data, 0, 5, ""), []string{"priority 5", "(stream error FRAME_SIZE_ERROR)", `data 5 "" flow 0`}},
	{"priority, long", raw(Priority, 0, 5, "123456"), []string{"priority 5", "(stream error FRAME_SIZE_ERROR)"}},

	{"rst", raw(RSTStream, 0, 7, "\x00\x00\x00\x08"), []string{"rst 7 CANCEL"}},
	{"rst, unknown code", raw(RSTStream, 0, 7, "\x00\x00\x01\x00"), []string{"rst 7 code 256"}},
	{"rst, stream 0", raw(RSTStream, 0, 0, "\x00\x00\x00\x08"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"rst, even stream", raw(RSTStream, 0, 2, "\x00\x00\x00\x08"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"rst, short", raw(RSTStream, 0, 7, "\x00\x00\x08"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"rst, long", raw(RSTStream, 0, 7, "\x00\x00\x00\x08\x00"), []string{"(connection error FRAME_SIZE_ERROR)"}},

	{"settings", raw(SettingsType, 0, 0, "\x00\x04\x00\x01\x00\x00"), []string{`settings "\x00\x04\x00\x01\x00\x00" false`}},
	{"settings, acknowledged", raw(SettingsType, flagAck, 0, ""), []string{`settings "" true`}},
	{"settings, acknowledged with entries", raw(SettingsType, flagAck, 0, "\x00\x04\x00\x01\x00\x00"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"settings, with a stream", raw(SettingsType, 0, 1, ""), []string{"(connection error PROTOCOL_ERROR)"}},
	{"settings, not of 6", raw(SettingsType, 0, 0, "1234567"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"settings, too long", raw(SettingsType, 0, 0, long+"12"), []string{"(connection error FRAME_SIZE_ERROR)"}},

	{"push", raw(PushPromise, flagEndHeaders, 1, "\x00\x00\x00\x02"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"push, stream 0", raw(PushPromise, flagEndHeaders, 0, "\x00\x00\x00\x02"), []string{"(connection error PROTOCOL_ERROR)"}},

	{"ping", raw(Ping, 0, 0, "12345678"), []string{`ping "12345678" false`}},
	{"ping, answered", raw(Ping, flagAck, 0, "12345678"), []string{`ping "12345678" true`}},
	{"ping, with a stream", raw(Ping, 0, 1, "12345678"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"ping, short", raw(Ping, 0, 0, "1234567"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"ping, long", raw(Ping, 0, 0, "123456789"), []string{"(connection error FRAME_SIZE_ERROR)"}},

	{"goaway", raw(GoAway, 0, 0, "\x80\x00\x00\x05\x00\x00\x00\x0bwhy"), []string{`goaway 5 ENHANCE_YOUR_CALM "why"`}},
	{"goaway, with a stream", raw(GoAway, 0, 1, "\x00\x00\x00\x05\x00\x00\x00\x0b"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"goaway, short", raw(GoAway, 0, 0, "1234567"), []string{"(connection error FRAME_SIZE_ERROR)"}},

	{"window", raw(WindowUpdate, 0, 0, "\x80\x00\x00\x01") + raw(WindowUpdate, 0, 1, "\x7f\xff\xff\xff"), []string{"window 0 1", "window 1 2147483647"}},
	{"window, by 0", raw(WindowUpdate, 0, 0, "\x80\x00\x00\x00"), []string{"(connection error PROTOCOL_ERROR)"}},
	{"window, by 0 of a stream", raw(WindowUpdate, 0, 1, "\x00\x00\x00\x00") + raw(Data, 0, 1, ""), []string{"window 1 0", "(stream error PROTOCOL_ERROR)", `data 1 "" flow 0`}},
	{"window, short", raw(WindowUpdate, 0, 1, "\x00\x00\x01"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"window, long", raw(WindowUpdate, 0, 0, "\x00\x00\x00\x01\x00"), []string{"(connection error FRAME_SIZE_ERROR)"}},
	{"window, even stream", raw(WindowUpdate, 0, 2, "\x00\x00\x00\x01"), []string{"(connection error PROTOCOL_ERROR)"}},

	{"unknown", raw(99, 0xff, 2, "anything") + raw(10, 0, 0, "") + raw(255, 0, 9, long) + raw(Ping, 0, 0, "12345678"), []string{`ping "12345678" false`}},
	{"unknown, too long", raw(99, 0, 0, long+"x"), []string{"(connection error FRAME_SIZE_ERROR)"}},
}

func TestReader(t *testing.T) {
	for _, tt := range readings {
		in := start + tt.in
		got := heard(in, atOnce)
		if len(got) != len(tt.want)+1 || got[0] != `settings "" false` {
			t.Errorf("%s: heard %.200q", tt.name, got)
			continue
		}
		for i, w := range tt.want {
			if !strings.HasSuffix(got[i+1], w) {
				t.Errorf("%s: heard %.200q, not %.200q", tt.name, got[i+1], w)
			}
		}
		if slow := heard(in, byteWise); strings.Join(slow, "\n") != strings.Join(got, "\n") {
			t.Errorf("%s: byte by byte %.200q, at once %.200q", tt.name, slow, got)
		}
	}
}

func TestBeginning(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"as it should", start, `settings "" false`},
		{"no preface", raw(SettingsType, 0, 0, ""), "connection error PROTOCOL_ERROR"},
		{"wrong at the end", Preface[:23] + "x" + raw(SettingsType, 0, 0, ""), "connection error PROTOCOL_ERROR"},
		{"HTTP/1", "GET / HTTP/1.1\r\n", "connection error PROTOCOL_ERROR"},
		{"headers first", Preface + raw(Headers, flagEndHeaders, 1, ""), "connection error PROTOCOL_ERROR"},
		{"acknowledgement first", Preface + raw(SettingsType, flagAck, 0, ""), "connection error PROTOCOL_ERROR"},
		{"unknown first", Preface + raw(99, 0, 0, ""), "connection error PROTOCOL_ERROR"},
		{"only a part", Preface[:7], ""},
	} {
		for _, cut := range []func(int) int{atOnce, byteWise} {
			if got := strings.Join(heard(tt.in, cut), "; "); !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("%s: %q", tt.name, got)
			}
		}
	}
	// A server has no preface but SETTINGS.
	var f Frame
	if n, ok, fault := NewReader(false).Next([]byte(raw(SettingsType, 0, 0, "")), &f); n != 9 || !ok || fault != nil {
		t.Error(n, ok, fault)
	}
}

// However the bytes are cut, the same is heard.
func TestSegmentation(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 2))
	for round := range 300 {
		in := start
		for range 1 + rng.IntN(12) {
			s := readings[rng.IntN(len(readings))]
			if last := s.want[len(s.want)-1]; strings.Contains(last, "connection error") && rng.IntN(4) > 0 || len(s.in) > 1000 && rng.IntN(8) > 0 {
				continue
			}
			in += s.in
		}
		want := strings.Join(heard(in, atOnce), "\n")
		for range 3 {
			most := 1 + rng.IntN(64)
			if len(in) > 5000 {
				most = 1 + rng.IntN(20000)
			}
			got := strings.Join(heard(in, func(left int) int { return min(left, 1+rng.IntN(most)) }), "\n")
			if got != want {
				t.Fatalf("round %d: %.300q becomes\n%.500s\nand cut\n%.500s", round, in, want, got)
			}
		}
	}
}

// A long DATA frame needs not be in the buffer as a whole.
func TestDataInPieces(t *testing.T) {
	r, f := NewReader(false), Frame{}
	in := []byte(raw(SettingsType, 0, 0, ""))
	if _, ok, _ := r.Next(in, &f); !ok {
		t.Fatal("no settings")
	}
	in = []byte(raw(Data, flagPadded|flagEndStream, 1, "\x03"+strings.Repeat("x", 1000)+"\x00\x00\x00"))
	for i, want := range []struct {
		give      int
		n         int
		payload   int
		flow      uint32
		left      uint32
		endStream bool
	}{
		{10 + 100, 110, 100, 101, 900, false},
		{400, 400, 400, 400, 500, false},
		{501, 501, 500, 501, 0, false}, // one byte of padding with it
		{2, 2, 0, 2, 0, true},
	} {
		n, ok, fault := r.Next(in[:want.give], &f)
		if n != want.n || !ok || fault != nil || len(f.Payload) != want.payload || f.Flow != want.flow || f.Left != want.left || f.EndStream != want.endStream {
			t.Errorf("%d: %d %v %v, %d bytes, flow %d, left %d, end %v", i, n, ok, fault, len(f.Payload), f.Flow, f.Left, f.EndStream)
		}
		in = in[n:]
	}
}

func TestInBlock(t *testing.T) {
	r, f := NewReader(false), Frame{}
	in := raw(SettingsType, 0, 0, "") + raw(Headers, 0, 1, "bl") + raw(Continuation, flagEndHeaders, 1, "ock")
	var b []byte
	for i := range in {
		b = append(b, in[i])
		n, _, fault := r.Next(b, &f)
		if fault != nil {
			t.Fatal(fault)
		}
		b = b[n:]
		if want := i >= 9+9-1 && i < len(in)-1; r.InBlock() != want {
			t.Errorf("after %d of %d bytes: %v", i+1, len(in), r.InBlock())
		}
	}
	r.Shrink()
	if r.block != nil {
		t.Error("keeps its memory")
	}
}

func FuzzReader(f *testing.F) {
	for _, tt := range readings {
		if len(tt.in) < 1000 {
			f.Add([]byte(tt.in), uint64(7))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		in := start + string(b)
		got := heard(in, atOnce)
		cut := heard(in, func(left int) int { return 1 + rng.IntN(left) })
		if strings.Join(got, "\n") != strings.Join(cut, "\n") {
			t.Fatalf("%q: at once %q, cut %q", b, got, cut)
		}
		// What we take, x/net takes in the same way; it knows no streams either.
		theirs := theirHearing(string(b))
		got = got[1:]
		for i, s := range got {
			if strings.HasSuffix(s, ")") || i+1 < len(got) && strings.HasSuffix(got[i+1], ")") {
				return // we may be stricter
			}
			if i >= len(theirs) || theirs[i] != s {
				t.Fatalf("%q: we hear %q, x/net %q", b, got, theirs)
			}
		}
		if len(theirs) > len(got) {
			t.Fatalf("%q: x/net hears more: %q, we %q", b, theirs, got)
		}
	})
}

// theirHearing is what x/net finds, in our words, up to its first error.
func theirHearing(b string) (all []string) {
	fr := http2.NewFramer(nil, strings.NewReader(b))
	fr.SetMaxReadFrameSize(MaxSize)
	var block bytes.Buffer
	var first *http2.HeadersFrame
	for {
		head, err := fr.ReadFrameHeader()
		if err != nil {
			return all
		}
		frame, err := fr.ReadFrameForHeader(head)
		switch {
		case head.Type > http2.FrameContinuation && err != io.ErrUnexpectedEOF:
			continue // it knows some that RFC 9113 does not
		case err != nil:
			return all
		}
		f := Frame{Type: Type(frame.Header().Type), Stream: frame.Header().StreamID}
		switch x := frame.(type) {
		case *http2.DataFrame:
			f.Payload, f.EndStream = x.Data(), x.StreamEnded()
			all = append(all, fmt.Sprintf("data %d %q flow %d%s", f.Stream, f.Payload, x.Length, ending(f)))
			continue
		case *http2.HeadersFrame:
			block.Reset()
			block.Write(x.HeaderBlockFragment())
			first = x
			if !x.HeadersEnded() {
				continue
			}
			f.Payload, f.EndStream = block.Bytes(), x.StreamEnded()
		case *http2.ContinuationFrame:
			block.Write(x.HeaderBlockFragment())
			if !x.HeadersEnded() {
				continue
			}
			f.Type, f.Payload, f.EndStream = Headers, block.Bytes(), first.StreamEnded()
		case *http2.RSTStreamFrame:
			f.Code = Code(x.ErrCode)
		case *http2.SettingsFrame:
			f.Ack = x.IsAck()
			for i := range x.NumSettings() {
				s := x.Setting(i)
				f.Payload = append(f.Payload, byte(s.ID>>8), byte(s.ID), byte(s.Val>>24), byte(s.Val>>16), byte(s.Val>>8), byte(s.Val))
			}
		case *http2.PingFrame:
			f.Ack, f.Payload = x.IsAck(), x.Data[:]
		case *http2.GoAwayFrame:
			f.LastStream, f.Code, f.Payload = x.LastStreamID, Code(x.ErrCode), x.DebugData()
		case *http2.WindowUpdateFrame:
			f.Increment = x.Increment
		case *http2.PriorityFrame:
		}
		all = append(all, tell(f))
	}
}
