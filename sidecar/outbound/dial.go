package outbound

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/heddle-mesh/heddle/sidecar/balance"
)

// Dial connects for the sidecar itself to what stands at an address, as it
// would for the pod's programs: to an endpoint of a Service, over mutual TLS
// if it is of the mesh. What is not known to be of the cluster is dialled as
// it is.
func (p *Proxy) Dial(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
	entry, err := p.c.Lookup(ctx, dst.Addr())
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", dst.Addr(), err)
	}
	defer entry.Release()
	s := &session{p: p, entry: entry, dst: dst}
	switch d := s.load(); {
	case d.Kind == balance.External:
		return p.c.Dial(ctx, dst)
	case d.Kind == balance.Unknown:
		return nil, fmt.Errorf("dial %s: the control plane could not be asked what it is", dst)
	case s.port == nil:
		return nil, fmt.Errorf("dial %s: %w", dst, faultNoSuchPort)
	}
	c, err := s.dialAny(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", dst, err)
	}
	return &counted{Conn: c, ended: sync.OnceFunc(s.hangUp)}, nil
}

// counted is a connection that its endpoint counts until it is closed.
type counted struct {
	net.Conn
	ended func()
}

// Close closes it.
func (c *counted) Close() error {
	c.ended()
	return c.Conn.Close()
}
