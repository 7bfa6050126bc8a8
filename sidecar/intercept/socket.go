package intercept

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/redirect"
)

// getOriginalDst is SO_ORIGINAL_DST of linux/netfilter_ipv4.h and
// IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h, which are the same
// number. It reads the connection's entry in the kernel's tracking table and
// needs no capability.
const getOriginalDst = 80

// Keep-alive of accepted connections: a client that vanished without a word is
// noticed after about two minutes. Idle connections are not cut otherwise.
const (
	keepAliveIdle     = 60 * time.Second
	keepAliveInterval = 15 * time.Second
	keepAliveCount    = 4
)

// OriginalDst gives the address that the client of c dialled before the
// redirect. It is ErrNotCaptured if the connection was not redirected, which
// is told by the address being that of the listener. c stays as it is: no
// descriptor is copied, and it does not become blocking.
func OriginalDst(c *net.TCPConn) (netip.AddrPort, error) {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("read the original destination: no local address: %w", net.ErrClosed)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read the original destination: %w", err)
	}
	own := local.AddrPort()
	var dst netip.AddrPort
	var errOpt error
	read := originalV6
	if own.Addr().Unmap().Is4() {
		read = originalV4
	}
	if err := raw.Control(func(fd uintptr) { dst, errOpt = read(int(fd)) }); err != nil {
		return netip.AddrPort{}, fmt.Errorf("read the original destination: %w", err)
	}
	switch {
	case errors.Is(errOpt, unix.ENOENT), errors.Is(errOpt, unix.ENOPROTOOPT):
		// Not tracked, or nothing is tracked here: so nothing is translated.
		return netip.AddrPort{}, fmt.Errorf("%w: %w", ErrNotCaptured, errOpt)
	case errOpt != nil:
		return netip.AddrPort{}, fmt.Errorf("read the original destination: %w", errOpt)
	case dst.Port() == own.Port() && dst.Addr().WithZone("") == own.Addr().Unmap().WithZone(""):
		return netip.AddrPort{}, ErrNotCaptured
	}
	return dst, nil
}

// originalV4 reads a sockaddr_in, which x/sys has no getter for; its getter of
// an ipv6_mreq has the same bytes and a little room behind.
func originalV4(fd int) (netip.AddrPort, error) {
	m, err := unix.GetsockoptIPv6Mreq(fd, unix.IPPROTO_IP, getOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := m.Multiaddr // family (2 bytes), port (2, big-endian), address (4)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])), nil
}

// originalV6 reads a sockaddr_in6 by the getter of a struct that begins with
// one.
func originalV6(fd int) (netip.AddrPort, error) {
	m, err := unix.GetsockoptIPv6MTUInfo(fd, unix.IPPROTO_IPV6, getOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr := netip.AddrFrom16(m.Addr.Addr)
	if m.Addr.Scope_id != 0 {
		addr = addr.WithZone(strconv.Itoa(int(m.Addr.Scope_id)))
	}
	var port [2]byte // as the kernel stores it: big-endian
	binary.NativeEndian.PutUint16(port[:], m.Addr.Port)
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port[:])), nil
}

// ListenOutbound opens the listeners for what the pod's programs dial: one per
// family that loopback has. A redirect in the output hook arrives at loopback
// and nowhere else, so nobody outside can reach them.
func ListenOutbound(ctx context.Context) ([]*net.TCPListener, error) {
	return listen(ctx, "outbound", redirect.OutboundPort, "127.0.0.1", "::1")
}

// ListenInbound opens the listeners for what is dialled from outside the pod:
// one per family, on all addresses, because a redirect in the prerouting hook
// arrives at the interface's own address.
func ListenInbound(ctx context.Context) ([]*net.TCPListener, error) {
	return listen(ctx, "inbound", redirect.InboundPort, "0.0.0.0", "::")
}

// listen opens one listener per family; a family that the pod does not have is
// left out. One socket for both families would not do: the original destination
// is asked for by family.
func listen(ctx context.Context, what string, port int, v4, v6 string) ([]*net.TCPListener, error) {
	lc := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
	}}
	// The kernel does not tell the original destination of a Multipath TCP
	// socket, which Go would open by default; such clients fall back to TCP.
	lc.SetMultipathTCP(false)
	var (
		out    []*net.TCPListener
		absent []error
	)
	for _, f := range []struct{ network, host string }{{"tcp4", v4}, {"tcp6", v6}} {
		l, err := lc.Listen(ctx, f.network, net.JoinHostPort(f.host, strconv.Itoa(port)))
		if err == nil {
			out = append(out, l.(*net.TCPListener))
			continue
		}
		if !noSuchFamily(err) {
			for _, l := range out {
				l.Close()
			}
			return nil, wrapListen(what, err)
		}
		absent = append(absent, err)
	}
	if len(out) == 0 {
		return nil, wrapListen(what, errors.Join(absent...))
	}
	return out, nil
}

// noSuchFamily tells whether an error means that this network namespace has no
// address of the family.
func noSuchFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENETUNREACH)
}
