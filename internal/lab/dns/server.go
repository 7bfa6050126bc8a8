package dns

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"

	"github.com/heddle-mesh/heddle/internal/run"
)

const (
	// idle is how long a TCP client may be silent.
	idle = 5 * time.Second
	// maxTCP bounds the queries of one TCP connection.
	maxTCP = 128
)

// Serve answers on both transports until ctx ends, and closes both. zone gives
// the newest zone.
func Serve(ctx context.Context, pc net.PacketConn, l net.Listener, zone func() *Zone) error {
	answer := func(limit func(q *dns.Msg) int) dns.HandlerFunc {
		return func(w dns.ResponseWriter, q *dns.Msg) {
			// Nothing to do about a client that is gone.
			_ = w.WriteMsg(zone().Answer(q, limit(q)))
		}
	}
	udp := &dns.Server{PacketConn: pc, Handler: answer(udpSize)}
	tcp := &dns.Server{Listener: l, MaxTCPQueries: maxTCP, IdleTimeout: func() time.Duration { return idle },
		Handler: answer(func(*dns.Msg) int { return dns.MaxMsgSize })}
	g := run.NewGroup(ctx)
	for name, s := range map[string]*dns.Server{"udp": udp, "tcp": tcp} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		g.Go("dns "+name, func(ctx context.Context) error { return serve(ctx, s, started) })
	}
	return g.Wait()
}

// serve runs one transport. Shutdown only works on a server that has started.
func serve(ctx context.Context, s *dns.Server, started <-chan struct{}) error {
	ended := make(chan error, 1)
	go func() { ended <- s.ActivateAndServe() }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-started:
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), idle)
		defer cancel()
		// A handler that outlives the timeout only writes to a closed socket.
		_ = s.ShutdownContext(stop)
		<-ended
		return ctx.Err()
	}
}

// udpSize is what the client says it takes (EDNS0), at least 512 bytes.
func udpSize(q *dns.Msg) int {
	if opt := q.IsEdns0(); opt != nil {
		return min(max(int(opt.UDPSize()), dns.MinMsgSize), dns.DefaultMsgSize)
	}
	return dns.MinMsgSize
}
