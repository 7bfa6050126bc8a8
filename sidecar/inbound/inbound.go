// Package inbound serves what is dialled from outside the pod: it proves who
// calls, asks the policy, and passes the connection, or each request on it, to
// the address that was dialled, and to no other: what is bound to loopback
// stays out of reach.
//
// It does not make policy (internal/policy decides) nor identities. sidecar.Run
// starts it; sidecar/flow calls Handle for each connection.
package inbound

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/policy"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/detect"
	"github.com/heddle-mesh/heddle/sidecar/flow"
	"github.com/heddle-mesh/heddle/sidecar/pool"
	"github.com/heddle-mesh/heddle/sidecar/trace"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

const (
	// connectTimeout is for the application, on the same host: it answers at
	// once, or its backlog is full.
	connectTimeout = 5 * time.Second
	// helloTimeout is for a ClientHello where nothing else is acceptable, and for
	// the handshake after it.
	helloTimeout = 10 * time.Second
	// lineTimeout is for the rest of a first line that may be HTTP, after which it
	// is passed on as bytes.
	lineTimeout = 100 * time.Millisecond
	// firstWait is how long an unknown client may be silent before the
	// application is dialled to see whether it speaks first: almost every client
	// that does speak first has done so by then.
	firstWait = 10 * time.Millisecond
	// meshedWait is for clients at the address of a meshed pod: their sidecar
	// sends its ClientHello with the first packet. After it they are dialled
	// for as strangers, since a pod may leave a port out of the redirect.
	meshedWait = 3 * time.Second
	// maxPools bounds the application's ports that connections are kept for.
	maxPools = 256
)

// Config of a Proxy. All functions must be safe for concurrent use.
type Config struct {
	// OriginalDst tells where an accepted connection was going.
	OriginalDst func(*net.TCPConn) (netip.AddrPort, error)
	// SawInbound takes note of a captured connection; nil: nobody wants to know.
	SawInbound func(origDst netip.AddrPort)
	// IsOwn tells the sidecar's own ports.
	IsOwn func(netip.AddrPort) bool
	// PodIPs are the pod's addresses: nothing is forwarded elsewhere.
	PodIPs []netip.Addr
	PodUID string
	// Meshed tells whether a pod of the mesh has the address; nil: unknown.
	Meshed func(ctx context.Context, addr netip.Addr) bool
	// Dial opens connections to the application; nil: a net.Dialer.
	Dial     func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	Identity *identity.Store
	Pools    *pool.Set
	Metrics  *flow.Metrics
	Trace    *trace.Tracer // nil: requests are not traced
	Draining func() bool
	Log      *slog.Logger
}

// Proxy serves inbound connections.
type Proxy struct {
	c      Config
	policy atomic.Pointer[policy.Compiled]

	mu    sync.Mutex
	pools map[netip.AddrPort]*pool.Pool
	open  map[open]struct{}
}

// New gives a Proxy that refuses everybody until SetPolicy.
func New(c Config) *Proxy {
	c.Log = telemetry.Discard(c.Log)
	if c.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true}}
		c.Dial = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr.String())
		}
	}
	return &Proxy{c: c, pools: map[netip.AddrPort]*pool.Pool{}, open: map[open]struct{}{}}
}

// session is one connection from outside.
type session struct {
	p    *Proxy
	f    *flow.Flow
	conn net.Conn // f.Conn, or the TLS connection on it
	dst  netip.AddrPort
	who  policy.Caller

	refusedBy string // the policy that refuses the present request, for the log
	audit     string // the audit rule that means the caller

	judged *policy.Compiled // the policy that last let the caller in
	probe  bool             // let in as a probe of the node only
	pool   *pool.Pool
	peer   *flow.Peer
	trace  trace.Request
}

// Handle serves one connection until it ends.
func (p *Proxy) Handle(ctx context.Context, f *flow.Flow) {
	dst, err := p.c.OriginalDst(f.Conn)
	if err != nil {
		f.Refuse(telemetry.ReasonNotCaptured, "err", err)
		return
	}
	dst = netip.AddrPortFrom(dst.Addr().Unmap().WithZone(""), dst.Port())
	if !slices.Contains(p.c.PodIPs, dst.Addr()) {
		f.Refuse(telemetry.ReasonNotCaptured, "destination", dst.String())
		return
	}
	if p.c.IsOwn(dst) {
		f.Refuse(telemetry.ReasonOwnPort, "destination", dst.String())
		return
	}
	if p.c.SawInbound != nil {
		p.c.SawInbound(dst)
	}
	s := &session{p: p, f: f, conn: f.Conn, dst: dst}
	if a, ok := f.Conn.RemoteAddr().(*net.TCPAddr); ok {
		s.who.Addr = a.AddrPort().Addr().Unmap()
	}
	s.begin(ctx)
}

// decide asks the policy about the connection, or a request on it.
func (s *session) decide(path string) policy.Decision {
	c := s.p.policy.Load()
	d := policy.Decide(c, s.who, policy.Request{Port: s.dst.Port(), Path: path})
	s.audit = d.Audit
	if d.Allow {
		s.judged, s.probe = c, d.ProbeOnly
	}
	return d
}

// audited logs and counts what an audit rule means: each request, and each
// connection that carries none.
func (s *session) audited(reason telemetry.Reason) {
	if s.audit == "" {
		return
	}
	s.p.c.Metrics.Audited(s.audit, reason)
	s.p.c.Log.Info("audit", "policy", s.audit, "peer", s.who.ID.String(), "client", s.who.Addr.String(),
		"destination", s.dst.String(), "reason", string(reason))
}

// begin finds out what the client speaks. Where plaintext is refused anyway,
// or where the client has a sidecar that will send a ClientHello, nothing of
// the application's may go out before it: a banner would be in plaintext.
func (s *session) begin(ctx context.Context) {
	plain := s.decide("")
	wait := firstWait
	if !plain.Allow {
		wait = helloTimeout
	}
	said, v, err := s.listen(nil, wait)
	if v == detect.NeedMore && len(said) == 0 && plain.Allow && err == nil &&
		s.p.c.Meshed != nil && s.p.c.Meshed(ctx, s.who.Addr) {
		said, v, err = s.listen(said, meshedWait)
	}
	switch {
	case v == detect.TLS:
		s.serveTLS(ctx, said)
	case !plain.Allow:
		s.refusePlain(plain, said, err)
	case v == detect.NeedMore:
		s.undecided(ctx, said)
	default:
		s.servePlain(ctx, said)
	}
}

// listen reads what the client says within wait, until it is known whether it
// is our TLS: verdict TLS if so, NeedMore if not enough was said, else No. The
// error is set when the client has closed or broken off.
func (s *session) listen(said []byte, wait time.Duration) ([]byte, detect.Verdict, error) {
	s.f.Conn.SetReadDeadline(time.Now().Add(wait))
	defer s.f.Conn.SetReadDeadline(time.Time{})
	for {
		if v := judge(said); v != detect.NeedMore {
			return said, v, nil
		}
		var b [4096]byte
		n, err := s.f.Conn.Read(b[:])
		said = append(said, b[:n]...)
		var t net.Error
		if errors.As(err, &t) && t.Timeout() {
			return said, judge(said), nil
		}
		if err != nil {
			return said, judge(said), err
		}
	}
}

// judge tells our TLS from everything else.
func judge(said []byte) detect.Verdict {
	if len(said) == 0 {
		return detect.NeedMore
	}
	alpn, v := detect.ClientHelloALPN(said)
	switch v {
	case detect.TLS:
		for _, name := range alpn {
			if strings.HasPrefix(name, flow.ALPNPrefix) {
				return detect.TLS
			}
		}
		return detect.No
	case detect.NeedMore:
		return v
	}
	return detect.No
}

// refusePlain ends a connection that is not our TLS where that is required.
func (s *session) refusePlain(d policy.Decision, said []byte, err error) {
	if err != nil && len(said) == 0 {
		return // the client only looked whether we are here
	}
	s.audited(telemetry.Reason(d.Reason))
	s.f.Refuse(telemetry.Reason(d.Reason), "destination", s.dst.String(), "policy", d.Source)
}

// serveTLS takes a connection from another sidecar.
func (s *session) serveTLS(ctx context.Context, said []byte) {
	c := tunnel.Server(s.f.Conn, said, s.p.c.Identity.ServerConfig(flow.ALPNHTTP1, flow.ALPNTCP))
	hctx, cancel := context.WithTimeout(ctx, helloTimeout)
	err := c.HandshakeContext(hctx)
	cancel()
	var peer identity.Peer
	if err == nil {
		peer, err = identity.PeerOf(c.ConnectionState())
	}
	if err != nil {
		s.handshakeFailed(err)
		return
	}
	s.p.c.Metrics.Handshake(flow.Inbound, telemetry.ReasonOK)
	s.conn, s.who.ID = c, peer.ID
	alpn := c.ConnectionState().NegotiatedProtocol
	if peer.PodUID != "" && peer.PodUID == s.p.c.PodUID {
		s.notAdmitted(telemetry.ReasonLoop, "")
		return
	}
	if d := s.decide(""); !d.Allow {
		s.notAdmitted(telemetry.Reason(d.Reason), d.Source)
		return
	}
	s.peer = s.p.c.Metrics.Peer(flow.Inbound, peer.ID.String(), "", true)
	if alpn == flow.ALPNHTTP1 {
		if flow.Admit(c, telemetry.ReasonOK) == nil {
			s.serveHTTP(ctx, nil)
		}
		return
	}
	up, err := s.dial(ctx)
	if err != nil {
		s.notAdmitted(telemetry.ReasonConnectFailed, "", "err", err)
		return
	}
	if err := flow.Admit(c, telemetry.ReasonOK); err != nil {
		tunnel.Reset(up)
		return
	}
	s.tunnel(&tunnel.Tunnel{Down: c, Up: up})
}

func (s *session) handshakeFailed(err error) {
	reason := identity.ReasonOf(err)
	if reason == telemetry.ReasonOK {
		reason = telemetry.ReasonCertificateUnknown
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || isGone(err) {
			reason = telemetry.ReasonConnectFailed
		}
	}
	s.p.c.Metrics.Handshake(flow.Inbound, reason)
	// The alert that says why is on its way: a reset could destroy it.
	s.p.c.Metrics.Refused(flow.Inbound, reason)
	s.p.c.Log.Info("handshake failed", "direction", flow.Inbound, "reason", string(reason),
		"client", s.who.Addr.String(), "destination", s.dst.String(), "err", err)
}

// notAdmitted tells the other sidecar why, and ends the connection.
func (s *session) notAdmitted(reason telemetry.Reason, source string, attrs ...any) {
	flow.Admit(s.conn, reason)
	s.audited(reason)
	s.p.c.Metrics.Refused(flow.Inbound, reason)
	s.p.c.Log.Info("connection refused", append([]any{"direction", flow.Inbound, "reason", string(reason),
		"peer", s.who.ID.String(), "destination", s.dst.String(), "policy", source}, attrs...)...)
	s.conn.Close()
}

// dial connects to the application at the address that was dialled.
func (s *session) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return s.p.c.Dial(ctx, s.dst)
}
