package outbound

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// What is spoken on a port that no Service declares is found out by who speaks
// first. A client that speaks HTTP does so at once, so a short wait spares a
// dial that would not be used; a server that speaks first must not be kept
// waiting long. What a port has shown last decides how long to wait.
const (
	waitUnknown = 10 * time.Millisecond
	waitHTTP    = 50 * time.Millisecond // useless dials are the likelier loss
	// maxSeen bounds what is remembered: ports beyond are unknown each time.
	maxSeen = 4096
)

type speech uint8

const (
	spokeUnknown speech = iota
	spokeHTTP
	spokeOther
	serverFirst
)

// seen remembers what was spoken on each port last.
type seen struct {
	mu    sync.Mutex
	ports map[netip.AddrPort]speech
}

func (s *seen) at(dst netip.AddrPort) speech {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ports[dst]
}

func (s *seen) note(dst netip.AddrPort, what speech) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.ports[dst]; ok || len(s.ports) < maxSeen {
		s.ports[dst] = what
	}
}

// detect waits for the client for a moment, then dials, and lets whoever
// speaks first decide.
func (s *session) detect(ctx context.Context) {
	wait := waitUnknown
	switch s.p.seen.at(s.dst) {
	case spokeHTTP:
		wait = waitHTTP
	case serverFirst:
		wait = 0
	}
	said := s.listen(wait)
	if decide, http := isHTTP(said); decide {
		if http {
			s.p.seen.note(s.dst, spokeHTTP)
			s.serveHTTP(ctx, said)
			return
		}
		s.p.seen.note(s.dst, spokeOther)
		s.serveTCP(ctx, said)
		return
	}
	up, err := s.dialAny(ctx)
	if err != nil {
		// A client may still be about to ask over HTTP, but a reset now is what a
		// dead port gives it without us.
		s.refuse(err)
		return
	}
	what := serverFirst
	t := &tunnel.Tunnel{Down: s.f.Conn, Up: up, FromDown: said}
	said, http := s.tunnel(t, func(b []byte) (bool, bool) {
		decide, http := isHTTP(b)
		if what = spokeOther; http {
			what = spokeHTTP
		}
		return decide, http
	})
	s.p.seen.note(s.dst, what)
	if http {
		s.serveHTTP(ctx, said)
	}
}

// listen reads what the client says within wait: enough to judge it, or less.
func (s *session) listen(wait time.Duration) []byte {
	if wait == 0 {
		return nil
	}
	s.f.Conn.SetReadDeadline(time.Now().Add(wait))
	defer s.f.Conn.SetReadDeadline(time.Time{})
	var said []byte
	for {
		if decide, _ := isHTTP(said); decide {
			return said
		}
		var b [4096]byte
		n, err := s.f.Conn.Read(b[:])
		said = append(said, b[:n]...)
		if err != nil {
			return said // more than the deadline: whoever goes on meets it again
		}
	}
}
