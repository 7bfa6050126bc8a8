// Package pipes gives tests in-memory connections that work inside a
// testing/synctest bubble. Only tests call it.
package pipes

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Listener is a net.Listener whose connections are net.Pipes: no buffer, so a
// reader that stops is felt by the writer at once. It can be taken down and
// brought up again.
type Listener struct {
	mu    sync.Mutex
	conns chan net.Conn
	done  chan struct{} // closed while down
	open  map[net.Conn]bool
}

// Listen gives a Listener that is up.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{}), open: map[net.Conn]bool{}}
}

// Dial connects, or fails at once while the listener is down.
func (l *Listener) Dial(ctx context.Context, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open[client] = true
		return client, nil
	case <-l.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

// Cut breaks all connections, as a killed process or a dead link would.
func (l *Listener) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		c.Close()
	}
	clear(l.open)
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "pipe" }
func (addr) String() string  { return "pipe" }
