// Package pool keeps HTTP/1.1 connections to endpoints for the next request:
// one Pool per endpoint, capped, newest first so that spare ones can expire. A
// Set expires them.
//
// It neither chooses endpoints (sidecar/balance) nor knows how one is reached:
// a Pool is given a dial function. Called by sidecar/outbound and
// sidecar/inbound.
package pool

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/sidecar/http1"
)

// Bounds of one endpoint.
const (
	// MaxOpen bounds connections to one endpoint, busy ones included. HTTP/1.1
	// needs one for each request under way; more than this at one endpoint is an
	// endpoint that does not answer.
	MaxOpen = 4096
	// maxIdle bounds the spare ones.
	maxIdle = 512
	// IdleBetweenSidecars is how long a connection to another sidecar is kept:
	// that side waits longer (http1's idle timeout), so we always close first.
	IdleBetweenSidecars = 60 * time.Second
	// IdleToApp is how long one to an application is kept: below the shortest
	// common server default (5 s in Node.js), since a request that meets a closing
	// connection can often not be sent again.
	IdleToApp = 4 * time.Second
	// sweepEvery is how often a Set looks for what has expired.
	sweepEvery = time.Second
)

// ErrFull says that an endpoint has MaxOpen connections.
var ErrFull = errors.New("too many connections to one endpoint")

// Config is how an endpoint is reached.
type Config struct {
	Dial func(ctx context.Context) (net.Conn, error)
	Idle time.Duration
	// Gone tells that the endpoint is no more: what is idle is closed, nothing is
	// kept. Nil: never.
	Gone <-chan struct{}
	// Closed is told of each connection that the Pool closes; nil: nobody is.
	Closed func(*http1.Conn)
}

// Pool holds the connections to one endpoint.
type Pool struct {
	c Config

	mu     sync.Mutex
	idle   []*http1.Conn // oldest first
	open   int
	closed bool
}

// Get gives an idle connection, or a new one; fresh asks for a new one.
func (p *Pool) Get(ctx context.Context, fresh bool) (*http1.Conn, error) {
	if !fresh {
		if c := p.Take(); c != nil {
			return c, nil
		}
	}
	return p.Dial(ctx)
}

// Take gives the connection that became idle last; nil: there is none.
func (p *Pool) Take() *http1.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	c := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return c
}

// Dial gives a new connection.
func (p *Pool) Dial(ctx context.Context) (*http1.Conn, error) {
	p.mu.Lock()
	if p.open >= MaxOpen {
		p.mu.Unlock()
		return nil, ErrFull
	}
	p.open++
	p.mu.Unlock()
	nc, err := p.c.Dial(ctx)
	if err != nil {
		p.mu.Lock()
		p.open--
		p.mu.Unlock()
		return nil, err
	}
	return http1.NewConn(nc, nil), nil
}

// Put takes a connection back: to keep it, or to close it.
func (p *Pool) Put(c *http1.Conn, keep bool) {
	if keep {
		c.Reused = true
		c.IdleSince = time.Now()
		c.Park()
		p.mu.Lock()
		if !p.closed && len(p.idle) < maxIdle {
			p.idle = append(p.idle, c)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
	p.close(c)
	p.mu.Lock()
	p.open--
	p.mu.Unlock()
}

func (p *Pool) close(c *http1.Conn) {
	c.Close()
	if p.c.Closed != nil {
		p.c.Closed(c)
	}
}

// Open is how many connections there are, busy and idle.
func (p *Pool) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// expire closes what has been idle since before limit, all if the endpoint is
// gone, and tells whether the pool is of no use any more.
func (p *Pool) expire(now time.Time, all bool) bool {
	select {
	case <-p.c.Gone:
		all = true
	default:
	}
	p.mu.Lock()
	n := 0
	for n < len(p.idle) && (all || now.Sub(p.idle[n].IdleSince) >= p.c.Idle) {
		n++
	}
	old := append([]*http1.Conn(nil), p.idle[:n]...)
	kept := copy(p.idle, p.idle[n:])
	clear(p.idle[kept:])
	p.idle = p.idle[:kept]
	p.open -= n
	p.closed = p.closed || all
	p.mu.Unlock()
	for _, c := range old {
		p.close(c)
	}
	return all
}

// Set expires the idle connections of its pools.
type Set struct {
	mu    sync.Mutex
	pools map[*Pool]struct{}
}

// NewSet gives an empty Set.
func NewSet() *Set { return &Set{pools: map[*Pool]struct{}{}} }

// New makes a Pool that belongs to the Set.
func (s *Set) New(c Config) *Pool {
	p := &Pool{c: c}
	s.mu.Lock()
	s.pools[p] = struct{}{}
	s.mu.Unlock()
	return p
}

// Drop forgets a pool and closes what is idle in it.
func (s *Set) Drop(p *Pool) {
	s.mu.Lock()
	delete(s.pools, p)
	s.mu.Unlock()
	p.expire(time.Time{}, true)
}

// Run expires connections until ctx ends; then it closes all idle ones.
func (s *Set) Run(ctx context.Context) error {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case now := <-t.C:
			s.sweep(now, false)
		case <-ctx.Done():
			s.sweep(time.Now(), true)
			return ctx.Err()
		}
	}
}

func (s *Set) sweep(now time.Time, all bool) {
	s.mu.Lock()
	pools := make([]*Pool, 0, len(s.pools))
	for p := range s.pools {
		pools = append(pools, p)
	}
	s.mu.Unlock()
	for _, p := range pools {
		if p.expire(now, all) {
			s.mu.Lock()
			delete(s.pools, p)
			s.mu.Unlock()
		}
	}
}
