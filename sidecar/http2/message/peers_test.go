package message

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	xhpack "golang.org/x/net/http2/hpack"

	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
)

var limits = hpack.Limits{Table: 4096, Size: 64 << 10, Fields: 1000}

// FuzzBlock takes a header block; what we call a request, x/net calls one too.
func FuzzBlock(f *testing.F) {
	for _, tt := range requests {
		e := hpack.NewEncoder()
		var b []byte
		for _, s := range tt.lines {
			if i := strings.Index(s[1:], ": ") + 1; i > 0 { // else it has no name
				b = e.Append(b, s[:i], []byte(s[i+2:]), false)
			}
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, block []byte) {
		var l hpack.List
		if err := hpack.NewDecoder(limits, Marks).Decode(block, &l); err != nil {
			return
		}
		var r Request
		if r.Parse(&l) != nil || l.TooLarge || len(block) > frame.MaxSize {
			return
		}
		b := frame.CloseBlock(append(frame.OpenBlock(nil), block...), frame.Block{Stream: 1, Max: frame.MaxSize})
		theirs := http2.NewFramer(nil, bytes.NewReader(b))
		theirs.ReadMetaHeaders = xhpack.NewDecoder(4096, nil)
		got, err := theirs.ReadFrame()
		if err != nil {
			t.Fatalf("%x is a request, but x/net says %v", block, err)
		}
		m := got.(*http2.MetaHeadersFrame)
		if m.PseudoValue("method") != string(r.Method) || m.PseudoValue("path") != string(r.Path) ||
			m.PseudoValue("scheme") != string(r.Scheme) || m.PseudoValue("protocol") != string(r.Protocol) || len(m.Fields) != l.Len() {
			t.Fatalf("%x: %+v, x/net %v", block, r, m.Fields)
		}
	})
}

// talk reads frames from c until it ends, and does with each what its side does.
func talk(c net.Conn, preface bool, do func(f *frame.Frame) error) error {
	r, buf, n := frame.NewReader(preface), make([]byte, frame.HeaderLen+frame.MaxSize), 0
	for {
		k, err := c.Read(buf[n:])
		n += k
		for at := 0; ; {
			var f frame.Frame
			used, ok, fault := r.Next(buf[at:n], &f)
			if fault != nil {
				return fault
			}
			at += used
			if !ok {
				n = copy(buf, buf[at:n])
				break
			}
			if err := do(&f); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// serve is a server of our codec: it answers each request with what it heard,
// and with a trailer.
func serve(c net.Conn) error {
	d, e := hpack.NewDecoder(limits, Marks), hpack.NewEncoder()
	peer := frame.DefaultSettings()
	var l hpack.List
	var out []byte
	heard := map[uint32]string{}
	bodies, counts := map[uint32]*Body{}, map[uint32]int{}
	out = frame.AppendSettings(out, frame.Setting{ID: frame.MaxConcurrentStreams, Value: 10})
	return talk(c, true, func(f *frame.Frame) error {
		switch f.Type {
		case frame.SettingsType:
			if !f.Ack {
				if fault := peer.Apply(f.Payload, false); fault != nil {
					return fault
				}
				e.SetLimit(peer.HeaderTableSize)
				out = frame.AppendSettingsAck(out)
			}
		case frame.Ping:
			out = frame.AppendPong(out, f.Payload)
		case frame.Headers:
			if err := d.Decode(f.Payload, &l); err != nil {
				return err
			}
			if body := bodies[f.Stream]; body != nil {
				if fault := Trailers(&l); fault != nil {
					return fault
				}
				heard[f.Stream] += fmt.Sprintf(" trailers %d", l.Len())
				break
			}
			var r Request
			if fault := r.Parse(&l); fault != nil {
				return fault
			}
			body := r.Body()
			bodies[f.Stream] = &body
			heard[f.Stream] = fmt.Sprintf("%s %s %s", r.Method, r.Authority, r.Path)
		case frame.Data:
			if fault := bodies[f.Stream].Take(len(f.Payload)); fault != nil {
				return fault
			}
			counts[f.Stream] += len(f.Payload)
			if f.Flow > 0 {
				out = frame.AppendWindowUpdate(out, 0, f.Flow)
				if !f.EndStream {
					out = frame.AppendWindowUpdate(out, f.Stream, f.Flow)
				}
			}
		}
		if f.EndStream {
			if fault := bodies[f.Stream].End(); fault != nil {
				return fault
			}
			at := len(out)
			out = e.Append(e.Begin(frame.OpenBlock(out)), ":status", []byte("200"), false)
			out = e.Append(out, "x-long", bytes.Repeat([]byte("~"), 20000), false)
			out = frame.CloseBlock(out, frame.Block{At: at, Stream: f.Stream, Max: int(peer.MaxFrameSize)})
			text := fmt.Sprintf("%s, %d bytes", heard[f.Stream], counts[f.Stream])
			out = append(frame.AppendDataHeader(out, f.Stream, len(text), false), text...)
			at = len(out)
			out = e.Append(e.Begin(frame.OpenBlock(out)), "grpc-status", []byte("0"), false)
			out = frame.CloseBlock(out, frame.Block{At: at, Stream: f.Stream, End: true, Max: int(peer.MaxFrameSize)})
		}
		_, err := c.Write(out)
		out = out[:0]
		return err
	})
}

// net/http speaks HTTP/2 with a server of our codec.
func TestNetHTTPClient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served, accepted := make(chan error, 1), make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
			err = serve(c)
			c.Close() // whatever the client still waits for, it ends
		}
		served <- err
	}()
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	for i, body := range []string{"", "short", strings.Repeat("x", 50000), "", "again"} {
		req, err := http.NewRequest("POST", "http://"+l.Addr().String()+fmt.Sprint("/", i), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Long", strings.Repeat("~", 20000)) // in two frames
		want := "POST " + l.Addr().String() + " /" + fmt.Sprint(i)
		if i == 4 {
			req.ContentLength = -1
			req.Trailer = http.Header{"X-Sum": {"1"}}
			want += " trailers 1"
		}
		want += fmt.Sprintf(", %d bytes", len(body))
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(i, err)
		}
		got, err := io.ReadAll(res.Body)
		if err != nil || string(got) != want || res.Trailer.Get("Grpc-Status") != "0" || len(res.Header.Get("X-Long")) != 20000 {
			t.Fatalf("%d: %v %q, %v, %v", i, err, got, res.Trailer, res.Status)
		}
	}
	// Not by the client: it may take the last stream for open a little longer, and
	// its connection for one in use.
	(<-accepted).Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	tr.CloseIdleConnections()
	l.Close()
}

// A client of our codec speaks HTTP/2 with net/http.
func TestNetHTTPServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "Sum")
		w.Header().Set("Seen", r.Header.Get("x-once")+r.Header.Get("cookie"))
		fmt.Fprintf(w, "%s %s %s%s", r.Method, r.Host, r.URL, b)
		w.Header().Set("Sum", fmt.Sprint(len(b)))
	})}
	s.Protocols.SetUnencryptedHTTP2(true)
	go s.Serve(l)
	defer s.Shutdown(context.Background())
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, e := hpack.NewDecoder(limits, Marks), hpack.NewEncoder()
	out := frame.AppendSettings([]byte(frame.Preface), frame.Setting{ID: frame.EnablePush})
	ask := func(stream uint32) {
		at := len(out)
		out = e.Begin(frame.OpenBlock(out))
		for _, f := range [][2]string{{":method", "PUT"}, {":scheme", "http"}, {":path", "/x"}, {":authority", "shop"},
			{"x-once", fmt.Sprint(stream)}, {"cookie", "a=b"}, {"user-agent", "heddle"}} {
			out = e.Append(out, f[0], []byte(f[1]), false)
		}
		out = frame.CloseBlock(out, frame.Block{At: at, Stream: stream, Max: 5}) // in many frames
		out = append(frame.AppendDataHeader(out, stream, 4, true), "data"...)
	}
	ask(1)
	if _, err := c.Write(out); err != nil {
		t.Fatal(err)
	}
	const streams = 12
	var list hpack.List
	var text string
	var req Request
	headers, done := 0, errors.New("done")
	err = talk(c, false, func(f *frame.Frame) error {
		out = out[:0]
		switch f.Type {
		case frame.SettingsType:
			if !f.Ack {
				out = frame.AppendSettingsAck(out)
			}
		case frame.Headers:
			headers++
			if err := d.Decode(f.Payload, &list); err != nil {
				return err
			}
			if f.EndStream {
				if fault := Trailers(&list); fault != nil || list.Len() != 1 || string(list.Value(0)) != "4" {
					return fmt.Errorf("trailers: %v, %d", fault, list.Len())
				}
				break
			}
			var r Response
			if fault := r.Parse(&list, false); fault != nil || r.Status != 200 || r.Body(&req) != (Body{r.Length}) {
				return fmt.Errorf("%v %d", fault, r.Status)
			}
		case frame.Data:
			text += string(f.Payload)
		}
		if f.EndStream {
			if f.Stream == streams*2-1 {
				return done
			}
			ask(f.Stream + 2)
		}
		_, err := c.Write(out)
		return err
	})
	c.Close()
	if err != done || text != strings.Repeat("PUT shop /xdata", streams) || headers != 2*streams {
		t.Errorf("%v, %q, %d blocks", err, text, headers)
	}
}
