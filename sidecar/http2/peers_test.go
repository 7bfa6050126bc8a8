package http2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/heddle-mesh/heddle/sidecar/http2/link"
)

// peer is one end of a connection, frame by frame.
type peer struct {
	t   *testing.T
	c   net.Conn
	f   *http2.Framer
	enc *hpack.Encoder
	buf bytes.Buffer
}

func newPeer(t *testing.T, c net.Conn, client bool, settings ...http2.Setting) *peer {
	p := &peer{t: t, c: c, f: http2.NewFramer(c, c)}
	p.f.AllowIllegalWrites = true
	p.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.enc = hpack.NewEncoder(&p.buf)
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if client {
		io.WriteString(c, http2.ClientPreface)
	} else if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Error(err)
	}
	p.f.WriteSettings(settings...)
	return p
}

func dialPeer(t *testing.T, addr string) *peer {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return newPeer(t, c, true)
}

// head gives a block of "name: value" lines.
func (p *peer) head(lines ...string) []byte {
	p.buf.Reset()
	for _, l := range lines {
		i := strings.Index(l[1:], ": ") + 1
		p.enc.WriteField(hpack.HeaderField{Name: l[:i], Value: l[i+2:]})
	}
	return p.buf.Bytes()
}

var get = []string{":method: GET", ":scheme: http", ":path: /", ":authority: shop"}

func (p *peer) ask(id uint32, end bool, more ...string) {
	p.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.head(append(get[:4:4], more...)...), EndHeaders: true, EndStream: end})
}

func (p *peer) respond(id uint32, end bool, lines ...string) {
	p.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.head(lines...), EndHeaders: true, EndStream: end})
}

// next gives the next frame that is not of the connection's housekeeping.
func (p *peer) next() (http2.Frame, error) {
	for {
		f, err := p.f.ReadFrame()
		if err != nil {
			return nil, err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				p.f.WriteSettingsAck()
			}
			continue
		case *http2.WindowUpdateFrame, *http2.PingFrame:
			continue
		}
		return f, nil
	}
}

// say tells the next frame in words.
func (p *peer) say() string {
	f, err := p.next()
	if err != nil {
		if errors.Is(err, io.EOF) || strings.Contains(err.Error(), "reset by peer") {
			return "end"
		}
		return "error: " + err.Error()
	}
	switch f := f.(type) {
	case *http2.GoAwayFrame:
		return fmt.Sprint("GOAWAY ", f.LastStreamID, " ", f.ErrCode)
	case *http2.RSTStreamFrame:
		return fmt.Sprint("RST ", f.StreamID, " ", f.ErrCode)
	case *http2.MetaHeadersFrame:
		return fmt.Sprint("HEADERS ", f.StreamID, " ", f.PseudoValue("status"), f.StreamEnded())
	case *http2.DataFrame:
		return fmt.Sprint("DATA ", f.StreamID, " ", len(f.Data()), f.StreamEnded())
	}
	return f.Header().String()
}

// servePeers runs a server of frames: each connection is a call of do.
func servePeers(t *testing.T, do func(p *peer), settings ...http2.Setting) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				do(newPeer(t, c, false, settings...))
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// A request that no application has seen goes to another; one that may have been
// seen does not.
func TestRepeats(t *testing.T) {
	good := serve(t, echo)
	for _, tt := range []struct {
		name    string
		sidecar bool
		do      func(p *peer, id uint32)
		want    string
	}{
		{"refused", false, func(p *peer, id uint32) { p.f.WriteRSTStream(id, http2.ErrCodeRefusedStream) }, "200 POST / body"},
		{"away", false, func(p *peer, id uint32) { p.f.WriteGoAway(0, http2.ErrCodeNo, nil); p.say() }, "200 POST / body"},
		{"unreached", true, func(p *peer, id uint32) {
			p.respond(id, true, ":status: 503", "x-heddle-reason: connect_failed")
			p.say()
		}, "200 POST / body"},
		{"not believed", false, func(p *peer, id uint32) {
			p.respond(id, true, ":status: 503", "x-heddle-reason: connect_failed")
			p.say()
		}, "503 "},
		{"seen", false, func(p *peer, id uint32) { p.f.WriteGoAway(id, http2.ErrCodeNo, nil) }, "502 endpoint closed the connection without an answer\n"},
		{"reset", false, func(p *peer, id uint32) { p.f.WriteRSTStream(id, http2.ErrCodeInternal); p.say() }, "INTERNAL_ERROR"},
		{"begun", false, func(p *peer, id uint32) {
			p.respond(id, false, ":status: 200")
			p.f.WriteRSTStream(id, http2.ErrCodeRefusedStream)
			p.say()
		}, "REFUSED_STREAM"},
		{"malformed", false, func(p *peer, id uint32) { p.respond(id, true, ":status: 200", "connection: close"); p.say() }, "502 endpoint's answer is not HTTP/2\n"},
		{"too long", false, func(p *peer, id uint32) {
			p.respond(id, false, ":status: 200", "content-length: 3")
			p.f.WriteData(id, true, []byte("four"))
			p.say()
		}, "INTERNAL_ERROR"},
	} {
		for _, trailers := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, trailers), func(t *testing.T) {
				bad := servePeers(t, func(p *peer) {
					for {
						f, err := p.next()
						if err != nil {
							return
						}
						if f.Header().Flags.Has(http2.FlagDataEndStream) {
							tt.do(p, f.Header().StreamID)
							return
						}
					}
				})
				m := newMesh(t, func(m *mesh) { m.sidecar = tt.sidecar; m.config.Guarded = true }, bad, good)
				p := dialPeer(t, m.addr)
				p.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.head(":method: POST", ":scheme: http", ":path: /", ":authority: shop"), EndHeaders: true})
				p.f.WriteData(1, !trailers, []byte("body"))
				if trailers {
					p.respond(1, true, "x-end: 1")
				}
				got := ""
				for end := false; !end; {
					f, err := p.next()
					if err != nil {
						t.Fatal(err)
					}
					switch f := f.(type) {
					case *http2.MetaHeadersFrame:
						if s := f.PseudoValue("status"); s != "" {
							got += s + " "
						}
						end = f.StreamEnded()
					case *http2.DataFrame:
						got += string(f.Data())
						end = f.StreamEnded()
					case *http2.RSTStreamFrame:
						got = f.ErrCode.String()
						end = true
					}
				}
				if got != tt.want {
					t.Errorf("%q, want %q; %+v", got, tt.want, m.outcomes)
				}
				m.recorded(1)
			})
		}
	}
}

// What breaks the protocol ends the stream or the connection, with its code.
func TestStates(t *testing.T) {
	m := newMesh(t, nil, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && r.Header.Get("Wait") != "" {
			<-r.Context().Done()
			return
		}
		io.Copy(io.Discard, r.Body)
	}))
	for _, tt := range []struct {
		name string
		do   func(p *peer)
		want []string
	}{
		{"data on idle", func(p *peer) { p.f.WriteData(1, true, nil) }, []string{"GOAWAY 0 PROTOCOL_ERROR", "end"}},
		{"rst on idle", func(p *peer) { p.f.WriteRSTStream(1, 0) }, []string{"GOAWAY 0 PROTOCOL_ERROR", "end"}},
		{"window on idle", func(p *peer) { p.f.WriteWindowUpdate(1, 1) }, []string{"GOAWAY 0 PROTOCOL_ERROR", "end"}},
		{"data after end", func(p *peer) {
			p.ask(1, true, "wait: 1")
			p.f.WriteData(1, true, []byte("x"))
		}, []string{"RST 1 STREAM_CLOSED"}},
		{"headers after end", func(p *peer) {
			p.ask(1, true, "wait: 1")
			p.ask(1, true)
		}, []string{"RST 1 STREAM_CLOSED"}},
		{"lower id", func(p *peer) {
			p.ask(5, true, "wait: 1")
			p.ask(3, true)
		}, []string{"GOAWAY 5 PROTOCOL_ERROR", "end"}},
		{"closed by rst, then headers", func(p *peer) {
			p.ask(1, true, "wait: 1")
			p.f.WriteRSTStream(1, http2.ErrCodeCancel)
			p.ask(1, true)
		}, []string{"GOAWAY 1 STREAM_CLOSED", "end"}},
		{"zero window", func(p *peer) {
			p.ask(1, true, "wait: 1")
			p.f.WriteWindowUpdate(1, 0)
		}, []string{"RST 1 PROTOCOL_ERROR"}},
		{"large window", func(p *peer) {
			p.ask(1, true, "wait: 1")
			p.f.WriteWindowUpdate(1, 1<<31-1)
		}, []string{"RST 1 FLOW_CONTROL_ERROR"}},
		{"large window of the connection", func(p *peer) { p.f.WriteWindowUpdate(0, 1<<31-1) }, []string{"GOAWAY 0 FLOW_CONTROL_ERROR", "end"}},
		{"self-dependent", func(p *peer) { p.f.WritePriority(1, http2.PriorityParam{StreamDep: 1}) }, []string{"GOAWAY 0 PROTOCOL_ERROR", "end"}},
		{"trailers without end", func(p *peer) {
			p.ask(1, false)
			p.respond(1, false, "a: b")
		}, []string{"RST 1 PROTOCOL_ERROR"}},
		{"length", func(p *peer) {
			p.ask(1, false, "content-length: 2")
			p.f.WriteData(1, true, []byte("x"))
		}, []string{"RST 1 PROTOCOL_ERROR"}},
		{"connect", func(p *peer) {
			p.respond(1, false, ":method: CONNECT", ":authority: x:1")
		}, []string{"HEADERS 1 501false", "DATA 1 27 true", "RST 1 NO_ERROR"}},
		{"protocol", func(p *peer) { p.ask(1, true, ":protocol: websocket") }, []string{"RST 1 PROTOCOL_ERROR"}},
		{"too large", func(p *peer) {
			var many []string
			for range 40 {
				many = append(many, "x: "+strings.Repeat("a", 2000))
			}
			p.ask(1, true, many...)
		}, []string{"HEADERS 1 431false", "DATA 1 53 true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := dialPeer(t, m.addr)
			tt.do(p)
			for _, want := range tt.want {
				if got := p.say(); got != want {
					t.Fatalf("%s, want %s", got, want)
				}
			}
		})
	}
}

// More streams than were announced are refused, the others served.
func TestTooManyStreams(t *testing.T) {
	m := newMesh(t, func(m *mesh) { m.config.Streams = 3 }, serve(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	p := dialPeer(t, m.addr)
	for id := uint32(1); id <= 9; id += 2 {
		p.ask(id, true)
	}
	for _, want := range []string{"RST 7 REFUSED_STREAM", "RST 9 REFUSED_STREAM"} {
		if got := p.say(); got != want {
			t.Error(got)
		}
	}
}

// An endpoint that takes few streams gets few at once, and all in the end.
func TestWaitsForStreams(t *testing.T) {
	m := newMesh(t, nil, servePeers(t, func(p *peer) {
		var open []uint32
		for {
			f, err := p.next()
			if err != nil {
				return
			}
			if open = append(open, f.Header().StreamID); len(open) == 2 {
				p.respond(open[1], true, ":status: 200")
				p.respond(open[0], true, ":status: 200")
				open = nil
			}
		}
	}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2}))
	c := newClient(t)
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			res, err := c.Get("http://" + m.addr)
			if err != nil {
				t.Error(err)
				return
			}
			if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 {
				t.Errorf("%s %s", res.Status, b)
			}
		})
	}
	wg.Wait()
}

// Floods end the connection.
func TestFloods(t *testing.T) {
	m := newMesh(t, nil, serve(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	for _, tt := range []struct {
		name string
		do   func(p *peer, i uint32) error
	}{
		{"rapid reset", func(p *peer, i uint32) error {
			p.ask(2*i+1, true)
			return p.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}},
		{"reset by us", func(p *peer, i uint32) error {
			p.ask(2*i+1, true)
			return p.f.WriteWindowUpdate(2*i+1, 0)
		}},
		{"malformed", func(p *peer, i uint32) error { p.ask(2*i+1, true, "connection: x"); return nil }},
		{"ping", func(p *peer, i uint32) error { return p.f.WritePing(false, [8]byte{}) }},
		{"settings", func(p *peer, i uint32) error { return p.f.WriteSettings() }},
		{"priority", func(p *peer, i uint32) error { return p.f.WritePriority(2*i+1, http2.PriorityParam{}) }},
		{"window", func(p *peer, i uint32) error { return p.f.WriteWindowUpdate(0, 1) }},
		{"empty data", func(p *peer, i uint32) error {
			if i == 0 {
				p.ask(1, false)
			}
			return p.f.WriteData(1, false, nil)
		}},
		{"padding", func(p *peer, i uint32) error {
			if i == 0 {
				p.ask(1, false)
			}
			return p.f.WriteDataPadded(1, false, nil, make([]byte, 10))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := dialPeer(t, m.addr)
			got := make(chan string, 1)
			go func() {
				for {
					f, err := p.f.ReadFrame()
					if err != nil {
						got <- err.Error()
						return
					}
					if f, ok := f.(*http2.GoAwayFrame); ok {
						got <- f.ErrCode.String()
						return
					}
				}
			}()
			n := uint32(0)
			for ; n < 10000; n++ {
				if tt.do(p, n) != nil {
					break
				}
			}
			if s := <-got; !strings.Contains(s, "ENHANCE_YOUR_CALM") {
				t.Errorf("%s after %d", s, n)
			}
		})
	}
}

// A client that reads nothing and grants everything has bounded memory here, and
// an endpoint of it goes on for others.
func TestDeaf(t *testing.T) {
	m := newMesh(t, nil, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Big") != "" {
			w.Write(make([]byte, 4<<20))
		}
	}))
	p := dialPeer(t, m.addr)
	p.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	p.f.WriteWindowUpdate(0, 1<<30)
	for id := uint32(1); id < 60; id += 2 {
		p.ask(id, true, "big: 1")
	}
	c := newClient(t)
	for range 50 {
		res, err := c.Get("http://" + m.addr)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	// And when it reads after all, everything is there.
	got, ends := 0, 0
	for ends < 30 {
		f, err := p.next()
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := f.(*http2.DataFrame); ok {
			if got += len(d.Data()); d.StreamEnded() {
				ends++
			}
		}
	}
	if got != 30*4<<20 {
		t.Error(got)
	}
}

// Draining lets what is under way end, tells the client, and ends.
func TestDrain(t *testing.T) {
	release := make(chan struct{})
	m := newMesh(t, nil, serve(t, func(w http.ResponseWriter, r *http.Request) { <-release }))
	p := dialPeer(t, m.addr)
	p.ask(1, true)
	until(t, "the request is under way", func() bool { return m.served() != nil && m.served().Busy() })
	r := m.served()
	r.Drain()
	if got := p.say(); got != "GOAWAY 2147483647 NO_ERROR" {
		t.Error(got)
	}
	p.ask(3, true) // was under way
	until(t, "both requests are under way", func() bool { return r.conn.Count() >= 2 })
	r.Sweep()
	if got := p.say(); got != "GOAWAY 3 NO_ERROR" {
		t.Error(got)
	}
	p.ask(5, true)
	close(release)
	for range 2 {
		if got := p.say(); !strings.HasSuffix(got, "200true") {
			t.Error(got)
		}
	}
	r.Sweep()
	for _, want := range []string{"GOAWAY 3 NO_ERROR", "end"} {
		if got := p.say(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func (m *mesh) served() *Relay {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.relays) == 0 {
		return nil
	}
	return m.relays[0]
}

// Two relays, one behind the other, carry streams in both directions at once, as
// gRPC does.
func TestStreaming(t *testing.T) {
	app := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		b := make([]byte, 100)
		for {
			n, err := r.Body.Read(b)
			w.Write(b[:n])
			w.(http.Flusher).Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("Grpc-Status", "0")
	})
	m := newMesh(t, nil, newMesh(t, nil, app).addr)
	c := newClient(t)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			r, w := io.Pipe()
			req, _ := http.NewRequestWithContext(context.Background(), "POST", "http://"+m.addr+"/svc/Chat", r)
			req.Header.Set("Te", "trailers")
			res, err := c.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			b := make([]byte, 64)
			for k := range 50 {
				msg := fmt.Sprintf("message %d of %d", k, i)
				w.Write([]byte(msg))
				if _, err := io.ReadFull(res.Body, b[:len(msg)]); err != nil || string(b[:len(msg)]) != msg {
					t.Errorf("%v %q", err, b)
					return
				}
			}
			w.Close()
			if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 || res.Trailer.Get("Grpc-Status") != "0" {
				t.Error(err, rest, res.Trailer)
			}
		})
	}
	wg.Wait()
}

// What may be sent is shared among the streams that wait.
func TestFair(t *testing.T) {
	m := newMesh(t, nil, serve(t, func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, 500_000)) }))
	p := dialPeer(t, m.addr)
	p.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	for id := uint32(1); id <= 5; id += 2 {
		p.ask(id, true)
	}
	got := map[uint32]int{}
	read := func(n int) {
		for n > 0 {
			f, err := p.next()
			if err != nil {
				t.Fatal(err)
			}
			if d, ok := f.(*http2.DataFrame); ok {
				got[d.StreamID] += len(d.Data())
				n -= len(d.Data())
			}
		}
	}
	read(65535)
	u := m.first()
	until(t, "all three wait here", func() bool {
		n := 0
		u.Each(func(*link.Stream) { n++ })
		return n >= 3
	})
	<-time.After(20 * time.Millisecond) // and the servers have written what they may: nothing outside tells
	clear(got)
	p.f.WriteWindowUpdate(0, 150_000)
	read(150_000)
	for id, n := range got {
		if n < 33_000 || n > 67_000 {
			t.Errorf("stream %d: %d bytes of 150,000", id, n)
		}
	}
	p.f.WriteWindowUpdate(0, 1<<30)
	read(3*500_000 - 215_535)
}
