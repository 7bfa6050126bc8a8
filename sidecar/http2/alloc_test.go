package http2

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
)

// plain is a Backend that has one connection and takes no notes.
type plain struct{ u *Upstream }

func (p *plain) Open(*Exchange) (*Upstream, error)                   { return p.u, nil }
func (p *plain) Await(context.Context, *Exchange) (*Upstream, error) { return p.u, nil }
func (p *plain) Release(*Exchange, *Upstream, Outcome)               {}
func (p *plain) Record(*Exchange)                                    {}

// answer answers each request on c with a head and some bytes; ask makes n
// requests, one after the other.
func answer(c net.Conn) {
	r, b, n := frame.NewReader(true), make([]byte, 32<<10), 0
	out := frame.AppendSettings(nil)
	e := hpack.NewEncoder()
	for {
		if _, err := c.Write(out); err != nil {
			return
		}
		out = out[:0]
		k, err := c.Read(b[n:])
		if err != nil {
			return
		}
		n += k
		at := 0
		for {
			var f frame.Frame
			used, ok, _ := r.Next(b[at:n], &f)
			if at += used; !ok {
				break
			}
			if f.EndStream {
				from := len(out)
				out = e.Append(e.Begin(frame.OpenBlock(out)), ":status", ok200, false)
				out = frame.CloseBlock(out, frame.Block{At: from, Stream: f.Stream, Max: frame.MaxSize})
				out = append(frame.AppendDataHeader(out, f.Stream, len(ok200), true), ok200...)
			} else if f.Type == frame.SettingsType && !f.Ack {
				out = frame.AppendSettingsAck(out)
			}
		}
		n = copy(b, b[at:n])
	}
}

var ok200 = []byte("200")

type asker struct {
	c      net.Conn
	r      *frame.Reader
	e      *hpack.Encoder
	b, out []byte
	n      int
	id     uint32
}

func (a *asker) ask() error {
	a.out = a.out[:0]
	a.id += 2
	a.out = a.e.Begin(frame.OpenBlock(a.out))
	for _, f := range [...][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", "/"}} {
		a.out = a.e.Append(a.out, f[0], append(a.b[:0:0], f[1]...), false)
	}
	a.out = a.e.Append(a.out, ":authority", ok200, false)
	a.out = frame.CloseBlock(a.out, frame.Block{Stream: a.id, End: true, Max: frame.MaxSize})
	if a.id == 1 {
		a.out = append(frame.AppendSettings([]byte(frame.Preface)), a.out...)
	}
	if _, err := a.c.Write(a.out); err != nil {
		return err
	}
	for {
		k, err := a.c.Read(a.b[a.n:])
		if err != nil {
			return err
		}
		a.n += k
		at, end := 0, false
		for {
			var f frame.Frame
			used, ok, fault := a.r.Next(a.b[at:a.n], &f)
			if fault != nil {
				return fault
			}
			if at += used; !ok {
				break
			}
			end = end || f.EndStream
			if f.Type == frame.GoAway {
				return io.EOF
			}
			if f.Type == frame.SettingsType && !f.Ack {
				a.c.Write(frame.AppendSettingsAck(nil))
			}
		}
		if a.n = copy(a.b, a.b[at:a.n]); end {
			return nil
		}
	}
}

// A request costs the relay few allocations.
func TestAllocations(t *testing.T) {
	downA, downB := pair(t)
	upA, upB := pair(t)
	go answer(upB)
	u := NewUpstream(upA, UpstreamConfig{})
	r := NewRelay(downB, nil, Config{Backend: &plain{u}})
	done := make(chan struct{}, 2)
	go func() { u.Serve(t.Context()); done <- struct{}{} }()
	go func() { r.Serve(t.Context()); done <- struct{}{} }()
	a := &asker{c: downA, r: frame.NewReader(false), e: hpack.NewEncoder(), b: make([]byte, 32<<10), id: 1<<32 - 1}
	for range 100 {
		if err := a.ask(); err != nil {
			t.Fatal(err)
		}
	}
	got := testing.AllocsPerRun(2000, func() { a.ask() })
	// Three are the test's own: values of fields.
	if t.Logf("%.1f allocations", got); got > 3+maxAllocations {
		t.Errorf("%.1f allocations for a request", got-3)
	}
	downA.Close()
	upB.Close()
	<-done
	<-done
}

func pair(t *testing.T) (a, b net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err == nil {
		b, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}
