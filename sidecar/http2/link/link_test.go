package link

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
)

// sink takes what comes and keeps it.
type sink struct{ headers, data, ended int }

func (s *sink) Headers(*Stream, *hpack.List, bool) *frame.Fault { s.headers++; return nil }
func (s *sink) Data(st *Stream, p []byte, _ bool) *frame.Fault  { s.data += len(p); return nil }
func (s *sink) Ended(*Stream, End)                              { s.ended++ }

// sweep calls Sweep once a second until the connection has ended, and gives what
// Serve said, and after how long.
func sweep(t *testing.T, c *Conn) (time.Duration, error) {
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- c.Serve(t.Context()) }()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return time.Since(began), err
		case <-tick.C:
			c.Sweep()
		}
	}
}

// Whoever keeps us waiting is told why and let go.
func TestWaits(t *testing.T) {
	hello := string(frame.AppendSettingsAck(frame.AppendSettings([]byte(frame.Preface))))
	for _, tt := range []struct {
		name, say string
		code      frame.Code
		after     time.Duration
	}{
		{"silent", "", frame.SettingsTimeout, ackTimeout},
		{"no ack", hello[:len(hello)-frame.HeaderLen], frame.SettingsTimeout, ackTimeout},
		{"idle", hello, frame.NoError, idleTimeout},
		{"half a block", hello + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82", frame.EnhanceYourCalm, blockTimeout},
		{"half a frame", hello + "\x00\x00\x09\x01\x04\x00\x00\x00\x01\x82", frame.EnhanceYourCalm, blockTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				h := &sink{}
				heard := make(chan string, 1)
				go func() {
					b, _ := io.ReadAll(theirs)
					heard <- string(b)
				}()
				if tt.say != "" {
					go io.WriteString(theirs, tt.say)
				}
				took, err := sweep(t, New(Config{Conn: ours, Server: true, Handler: h}))
				var f *frame.Fault
				if tt.code == frame.NoError && err != nil || tt.code != frame.NoError && (!errors.As(err, &f) || f.Code != tt.code) {
					t.Error(err)
				}
				if took < tt.after || took > tt.after+2*time.Second {
					t.Errorf("after %v", took)
				}
				if s := <-heard; !strings.Contains(s, string([]byte{0, 0, 0, byte(tt.code)})) {
					t.Errorf("%x", s)
				}
				theirs.Close()
			})
		})
	}
}

// A stream whose bytes nobody takes gets its window and no more, and others go
// on, until maxHeld bytes are here.
func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		h := &sink{}
		c := New(Config{Conn: ours, Server: true, Handler: h})
		done := make(chan error, 1)
		go func() { done <- c.Serve(t.Context()) }()
		go io.Copy(io.Discard, theirs)
		out := frame.AppendSettingsAck(frame.AppendSettings([]byte(frame.Preface)))
		e := hpack.NewEncoder()
		sent := 0
		for id := uint32(1); id < 200; id += 2 {
			at := len(out)
			out = frame.OpenBlock(out)
			for _, f := range [][2]string{{":method", "PUT"}, {":scheme", "http"}, {":path", "/"}, {":authority", "a"}} {
				out = e.Append(out, f[0], []byte(f[1]), false)
			}
			out = frame.CloseBlock(out, frame.Block{At: at, Stream: id, Max: frame.MaxSize})
			for range StreamWindow / frame.MaxSize {
				out = append(frame.AppendDataHeader(out, id, frame.MaxSize, false), make([]byte, frame.MaxSize)...)
			}
			if sent += StreamWindow; sent > maxHeld+connWindow {
				break
			}
		}
		theirs.Write(out) // the last of it breaks the connection's window
		var f *frame.Fault
		if err := <-done; !errors.As(err, &f) || f.Code != frame.FlowControlError {
			t.Error(err)
		}
		if h.data < maxHeld || h.data > maxHeld+connWindow {
			t.Errorf("%d bytes were taken", h.data)
		}
		if h.ended != h.headers || h.headers < 30 {
			t.Errorf("%d of %d streams ended", h.ended, h.headers)
		}
		theirs.Close()
	})
}

// A client of ours waits with its streams until the server has spoken, opens no
// more than it lets, and hears of those that were never sent.
func TestOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		h := &sink{}
		c := New(Config{Conn: ours, Handler: h})
		done := make(chan error, 1)
		go func() { done <- c.Serve(t.Context()) }()
		heads := 0
		go func() {
			r, b := frame.NewReader(true), make([]byte, 1<<16)
			for n := 0; ; {
				k, err := theirs.Read(b[n:])
				if err != nil {
					return
				}
				n += k
				for at := 0; ; {
					var f frame.Frame
					used, ok, fault := r.Next(b[at:n], &f)
					if fault != nil {
						t.Error(fault)
					}
					if at += used; !ok {
						n = copy(b, b[at:n])
						break
					}
					if f.Type == frame.Headers {
						heads++
					}
				}
			}
		}()
		for range maxWaiting {
			if err := c.Open(&Stream{}, block{}, true); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Open(&Stream{}, block{}, true); err != ErrFull {
			t.Error(err)
		}
		c.Flush()
		synctest.Wait()
		if heads != 0 {
			t.Errorf("%d streams before the settings", heads)
		}
		theirs.Write(frame.AppendSettings(nil, frame.Setting{ID: frame.MaxConcurrentStreams, Value: 7}))
		synctest.Wait()
		if heads != 7 || c.Count() != maxWaiting {
			t.Errorf("%d streams", heads)
		}
		theirs.Write(frame.AppendRST(nil, 3, frame.Cancel))
		synctest.Wait()
		if heads != 8 {
			t.Errorf("%d streams", heads)
		}
		theirs.Close()
		<-done
		if h.ended != maxWaiting {
			t.Errorf("%d streams ended", h.ended)
		}
		if err := c.Open(&Stream{}, block{}, true); err != ErrGone {
			t.Error(err)
		}
	})
}

type block struct{}

func (block) AppendTo(dst []byte, e *hpack.Encoder) []byte {
	return e.Append(dst, ":method", []byte("GET"), false)
}
