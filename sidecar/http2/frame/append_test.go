package frame

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// What we write, x/net writes in the same way.
func TestAppend(t *testing.T) {
	for _, tt := range []struct {
		name string
		ours []byte
		do   func(fr *http2.Framer) error
	}{
		{"data", append(AppendDataHeader(nil, 5, 3, true), "abc"...), func(fr *http2.Framer) error { return fr.WriteData(5, true, []byte("abc")) }},
		{"settings", AppendSettings(nil, Setting{InitialWindowSize, 1 << 20}, Setting{EnableConnectProtocol, 1}), func(fr *http2.Framer) error {
			return fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}, http2.Setting{ID: 8, Val: 1})
		}},
		{"settings, acknowledged", AppendSettingsAck(nil), func(fr *http2.Framer) error { return fr.WriteSettingsAck() }},
		{"ping", AppendPing(nil, 0x0102030405060708), func(fr *http2.Framer) error { return fr.WritePing(false, [8]byte{1, 2, 3, 4, 5, 6, 7, 8}) }},
		{"pong", AppendPong(nil, []byte("12345678")), func(fr *http2.Framer) error { return fr.WritePing(true, [8]byte([]byte("12345678"))) }},
		{"goaway", AppendGoAway(nil, 7, EnhanceYourCalm, "why"), func(fr *http2.Framer) error { return fr.WriteGoAway(7, http2.ErrCodeEnhanceYourCalm, []byte("why")) }},
		{"rst", AppendRST(nil, 7, Cancel), func(fr *http2.Framer) error { return fr.WriteRSTStream(7, http2.ErrCodeCancel) }},
		{"window", AppendWindowUpdate(nil, 7, 1<<20), func(fr *http2.Framer) error { return fr.WriteWindowUpdate(7, 1<<20) }},
		{"headers", CloseBlock(append(OpenBlock(nil), "block"...), Block{0, 7, true, MaxSize}), func(fr *http2.Framer) error {
			return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 7, BlockFragment: []byte("block"), EndStream: true, EndHeaders: true})
		}},
	} {
		var want bytes.Buffer
		if err := tt.do(http2.NewFramer(&want, nil)); err != nil || !bytes.Equal(want.Bytes(), tt.ours) {
			t.Errorf("%s: %q, not %q %v", tt.name, tt.ours, want.Bytes(), err)
		}
	}
}

// A block comes back as it was, however many frames it took, behind whatever is
// to be sent before it.
func TestBlocks(t *testing.T) {
	text := strings.Repeat("0123456789", 5)
	for size := range len(text) + 1 {
		for limit := 5; limit < 20; limit++ {
			out := []byte(raw(SettingsType, 0, 0, ""))
			at := len(out)
			out = append(OpenBlock(out), text[:size]...)
			out = CloseBlock(out, Block{At: at, Stream: 9, End: size%2 == 0, Max: limit})
			r, f := NewReader(false), Frame{}
			n, _, _ := r.Next(out, &f)
			for b := out[n:]; len(b) >= HeaderLen; {
				length := int(parseHeader(b).length)
				if length > limit {
					t.Fatalf("%d bytes: frame of %d, the limit is %d", size, length, limit)
				}
				b = b[HeaderLen+length:]
			}
			m, ok, fault := r.Next(out[n:], &f)
			if n+m != len(out) || !ok || fault != nil || string(f.Payload) != text[:size] || f.EndStream != (size%2 == 0) || f.Stream != 9 {
				t.Fatalf("%d bytes in frames of %d: %v %v %q", size, limit, ok, fault, out)
			}
		}
	}
}

func TestSettings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		e      []Setting
		server bool
		want   string
		check  func(s *Settings) bool
	}{
		{"all", []Setting{{1, 0}, {2, 0}, {3, 7}, {4, MaxWindow}, {5, 1<<24 - 1}, {6, 99}, {8, 1}, {9, 1}}, true, "", func(s *Settings) bool {
			return *s == Settings{0, 7, MaxWindow, 1<<24 - 1, 99, true}
		}},
		{"unknown", []Setting{{7, 1}, {99, 1 << 31}}, false, "", func(s *Settings) bool { return *s == DefaultSettings() }},
		{"the last counts", []Setting{{3, 7}, {3, 8}}, false, "", func(s *Settings) bool { return s.MaxConcurrentStreams == 8 }},
		{"push by a client", []Setting{{2, 1}}, false, "", nil},
		{"push by a server", []Setting{{2, 1}}, true, "PROTOCOL_ERROR", nil},
		{"push 2", []Setting{{2, 2}}, false, "PROTOCOL_ERROR", nil},
		{"window", []Setting{{4, 1 << 31}}, false, "FLOW_CONTROL_ERROR", nil},
		{"frames too short", []Setting{{5, MaxSize - 1}}, false, "PROTOCOL_ERROR", nil},
		{"frames too long", []Setting{{5, 1 << 24}}, false, "PROTOCOL_ERROR", nil},
		{"connect 2", []Setting{{8, 2}}, false, "PROTOCOL_ERROR", nil},
		{"connect taken back", []Setting{{8, 1}, {8, 0}}, false, "PROTOCOL_ERROR", nil},
		{"priorities 2", []Setting{{9, 2}}, false, "PROTOCOL_ERROR", nil},
		{"as many as may be", make([]Setting, maxSettings), false, "", nil},
		{"flood", make([]Setting, maxSettings+1), false, "ENHANCE_YOUR_CALM", nil},
	} {
		s := DefaultSettings()
		fault := s.Apply(AppendSettings(nil, tt.e...)[HeaderLen:], tt.server)
		got := ""
		if fault != nil {
			got = fault.Code.String()
		}
		if got != tt.want || fault != nil && fault.Stream {
			t.Errorf("%s: %q, not %q", tt.name, got, tt.want)
		}
		if tt.check != nil && !tt.check(&s) {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	in := []byte(raw(Headers, flagEndHeaders, 1, "block") + raw(Data, 0, 1, "0123456789") + raw(WindowUpdate, 0, 0, "\x00\x00\x00\x01") +
		raw(Ping, 0, 0, "12345678") + raw(Data, flagEndStream, 1, ""))
	r, f := NewReader(false), Frame{}
	if _, ok, _ := r.Next([]byte(raw(SettingsType, 0, 0, "")), &f); !ok {
		t.Fatal("no settings")
	}
	out := make([]byte, 0, 4096)
	n := testing.AllocsPerRun(100, func() {
		out = out[:0]
		for b := in; len(b) > 0; {
			n, ok, fault := r.Next(b, &f)
			if !ok || fault != nil {
				t.Fatal(ok, fault)
			}
			b = b[n:]
			switch f.Type {
			case Headers:
				at := len(out)
				out = CloseBlock(append(OpenBlock(out), f.Payload...), Block{at, f.Stream, f.EndStream, MaxSize})
			case Data:
				out = append(AppendDataHeader(out, f.Stream, len(f.Payload), f.EndStream), f.Payload...)
			case Ping:
				out = AppendPong(out, f.Payload)
			case WindowUpdate:
				out = AppendWindowUpdate(out, f.Stream, f.Increment)
			}
		}
	})
	if n != 0 || len(out) != len(in) {
		t.Errorf("%v allocations, %d of %d bytes", n, len(out), len(in))
	}
}

func BenchmarkReader(b *testing.B) {
	in := []byte(raw(Headers, flagEndHeaders, 1, strings.Repeat("x", 60)) + raw(Data, flagEndStream, 1, strings.Repeat("x", 1000)))
	r, f := NewReader(false), Frame{}
	r.Next([]byte(raw(SettingsType, 0, 0, "")), &f)
	b.ReportAllocs()
	for b.Loop() {
		n, _, _ := r.Next(in, &f)
		r.Next(in[n:], &f)
	}
}
