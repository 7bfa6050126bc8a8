// Package flow keeps account of the connections that a sidecar has accepted:
// how many there may be, which wait too long, which must end, and the numbers
// about them. One Server per direction.
//
// What is done with a connection is the handler's: sidecar/outbound and
// sidecar/inbound. sidecar.Run drives the draining.
package flow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http1"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// The directions, as metrics call them.
const (
	Inbound  = "inbound"
	Outbound = "outbound"
)

const (
	// DefaultMax bounds the open connections of one direction: with 64 KiB of
	// kernel and user memory each, about what a sidecar may use at most.
	DefaultMax = 16384
	// acceptBackoff is waited when the process is out of descriptors: accepting
	// at full speed would only burn CPU until some close.
	acceptBackoff = 50 * time.Millisecond
)

// Sweeper is what runs on a connection, seen from outside its goroutine.
type Sweeper interface {
	Sweep()     // called once in http1.SweepEvery: end what has waited too long
	Busy() bool // something is under way
}

// Config of a Server.
type Config struct {
	Direction string
	Max       int // open connections; zero: DefaultMax
	Metrics   *Metrics
	Log       *slog.Logger
	// Handle serves one connection until it ends.
	Handle func(ctx context.Context, f *Flow)
}

// Server accepts connections and owns them until they end.
type Server struct {
	c Config

	mu    sync.Mutex
	flows map[*Flow]struct{}
	wg    sync.WaitGroup
}

// Flow is one accepted connection.
type Flow struct {
	Conn *net.TCPConn
	s    *Server

	mu      sync.Mutex
	sweeper Sweeper
}

// New gives a Server that accepts nothing yet.
func New(c Config) *Server {
	if c.Max == 0 {
		c.Max = DefaultMax
	}
	c.Log = telemetry.Discard(c.Log)
	return &Server{c: c, flows: map[*Flow]struct{}{}}
}

// Serve accepts from all listeners until they are closed or ctx ends; then it
// resets what is still open and returns once every handler has.
func (s *Server) Serve(ctx context.Context, listeners []*net.TCPListener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		for _, l := range listeners {
			l.Close()
		}
		s.ResetAll()
	})
	defer stop()
	var accepting sync.WaitGroup
	errs := make([]error, len(listeners))
	for i, l := range listeners {
		accepting.Go(func() { errs[i] = s.accept(ctx, l) })
	}
	sweeping := make(chan struct{})
	go func() { s.sweep(ctx); close(sweeping) }()
	accepting.Wait()
	s.wg.Wait()
	cancel()
	<-sweeping
	return errors.Join(errs...)
}

func (s *Server) accept(ctx context.Context, l *net.TCPListener) error {
	for {
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS):
			s.c.Log.Warn("out of file descriptors", "direction", s.c.Direction, "err", err)
			t := time.NewTimer(acceptBackoff)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
			continue
		case errors.Is(err, syscall.ECONNABORTED):
			continue // the client has gone already
		default:
			return fmt.Errorf("accept %s connections: %w", s.c.Direction, err)
		}
		f := s.add(c)
		if f == nil {
			s.c.Metrics.Refused(s.c.Direction, telemetry.ReasonTooManyConnections)
			tunnel.Reset(c)
			continue
		}
		s.wg.Go(func() {
			defer s.remove(f)
			s.c.Handle(ctx, f)
		})
	}
}

func (s *Server) add(c *net.TCPConn) *Flow {
	f := &Flow{Conn: c, s: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.flows) >= s.c.Max {
		return nil
	}
	s.flows[f] = struct{}{}
	return f
}

func (s *Server) remove(f *Flow) {
	f.Conn.Close()
	s.mu.Lock()
	delete(s.flows, f)
	s.mu.Unlock()
}

// Watch names what runs on the connection from now on.
func (f *Flow) Watch(w Sweeper) {
	f.mu.Lock()
	f.sweeper = w
	f.mu.Unlock()
}

func (f *Flow) watched() Sweeper {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sweeper
}

// Refuse resets the connection, counts and logs why.
func (f *Flow) Refuse(reason telemetry.Reason, attrs ...any) {
	f.s.c.Metrics.Refused(f.s.c.Direction, reason)
	f.s.c.Log.Info("connection refused", append([]any{"direction", f.s.c.Direction,
		"reason", string(reason), "client", f.Conn.RemoteAddr().String()}, attrs...)...)
	tunnel.Reset(f.Conn)
}

func (s *Server) sweep(ctx context.Context) {
	t := time.NewTicker(http1.SweepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.Sweep()
		}
	}
}

// Sweep sweeps every connection once. Serve calls it.
func (s *Server) Sweep() {
	for _, f := range s.snapshot() {
		if w := f.watched(); w != nil {
			w.Sweep()
		}
	}
}

// Count tells how many connections are open and on how many of them something
// is under way.
func (s *Server) Count() (open, busy int) {
	all := s.snapshot()
	for _, f := range all {
		if w := f.watched(); w == nil || w.Busy() {
			busy++
		}
	}
	return len(all), busy
}

// ResetAll breaks off every connection.
func (s *Server) ResetAll() {
	for _, f := range s.snapshot() {
		tunnel.Reset(f.Conn)
	}
}

func (s *Server) snapshot() []*Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Flow, 0, len(s.flows))
	for f := range s.flows {
		all = append(all, f)
	}
	return all
}
