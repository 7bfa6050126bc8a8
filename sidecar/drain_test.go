package sidecar

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/flow"
)

// draining gives a sidecar of two servers whose connections do nothing until
// they are closed, and a way to connect to the inbound one.
func draining(t *testing.T, lameDuck, timeout time.Duration) (*sidecar, func() net.Conn) {
	t.Helper()
	s := &sidecar{c: Config{LameDuck: lameDuck, DrainTimeout: timeout}, log: telemetry.Discard(nil)}
	hold := func(_ context.Context, f *flow.Flow) { f.Conn.Read(make([]byte, 1)) }
	s.outFlows = flow.New(flow.Config{Direction: flow.Outbound, Metrics: flow.NewMetrics(), Handle: hold})
	s.inFlows = flow.New(flow.Config{Direction: flow.Inbound, Metrics: flow.NewMetrics(), Handle: hold})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		s.serveInbound(ctx, []*net.TCPListener{l.(*net.TCPListener)})
		close(done)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s, func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func open(s *sidecar) int {
	n, _ := s.inFlows.Count()
	return n
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// A native sidecar is asked to end when nothing is open: it does, at once,
// whatever the windows are.
func TestDrainNothing(t *testing.T) {
	s, _ := draining(t, time.Hour, time.Hour)
	s.drain(context.Background())
	if ok, why := s.ready(); ok || why != "going away" {
		t.Errorf("ready %v %q", ok, why)
	}
}

// New connections are taken in the lame-duck window and refused after it; what
// is open may end by itself.
func TestDrainWaits(t *testing.T) {
	s, dial := draining(t, 150*time.Millisecond, time.Hour)
	first := dial()
	until(t, "the connection is there", func() bool { return open(s) == 1 })
	done := make(chan struct{})
	go func() { s.drain(context.Background()); close(done) }()
	until(t, "the sidecar says that it drains", s.draining.Load)
	second := dial()
	until(t, "a connection of a lame duck is taken", func() bool { return open(s) == 2 })
	until(t, "the listeners close", func() bool {
		c, err := net.Dial("tcp", second.RemoteAddr().String())
		if err == nil {
			c.Close()
		}
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	select {
	case <-done:
		t.Fatal("drained with connections in use")
	default:
	}
	first.Close()
	second.Close()
	<-done
}

// What does not end is broken off in the end.
func TestDrainTimeout(t *testing.T) {
	s, dial := draining(t, 10*time.Millisecond, 100*time.Millisecond)
	dial()
	until(t, "the connection is there", func() bool { return open(s) == 1 })
	s.drain(context.Background())
}
