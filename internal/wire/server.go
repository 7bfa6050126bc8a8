package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Bounds of a server.
const (
	handshakeTimeout = 10 * time.Second // TCP accept to a ready connection: a slow link, not a sleeping client
	keepaliveAfter   = 30 * time.Second // silence before we ask; the heartbeats make it rare
	keepaliveWait    = 10 * time.Second // for the answer, then the connection is dead
	keepaliveFloor   = 10 * time.Second // a client that pings more often is cut off
	connectionIdle   = 15 * time.Second // without a call: a peer calls as soon as it is connected
	maxRequest       = 2 << 20          // bytes of a peer's message, also before it has proven anything: a Hello that holds 10,000 names has 1 MiB
	connectionAge    = time.Hour        // ±10 % by gRPC; a backstop, streams say goodbye before
	connectionGrace  = time.Minute      // for calls that are open then
	streamsPerPeer   = 8                // one Stream and a few Issues
	headerBytes      = 16 << 10         // gRPC's own headers are a few hundred bytes
	bufferBytes      = 4 << 10          // per connection and direction: 1,000 idle peers cost little
	stopGrace        = 5 * time.Second  // for streams to end after their goodbye
)

// Caller is the other side of a call.
type Caller struct {
	Peer  identity.Peer // by its certificate
	Known bool          // false: it showed no certificate, Peer is empty
	Addr  string        // for logs
}

// Handler answers the two services. Errors for the peer's eyes are *Error.
type Handler interface {
	Issue(ctx context.Context, from Caller, req *pb.IssueRequest) (*pb.IssueResponse, error)
	// Stream serves one peer until it returns. The caller's identity is known.
	Stream(ctx context.Context, from Caller, s Stream) error
}

// Stream is the control plane's side of one peer's stream. One goroutine may
// send while another receives.
type Stream interface {
	// Send blocks while the peer does not read.
	Send(*Encoded) error
	Recv() (*pb.PeerMessage, error)
	// Abort closes the peer's connection at once, also under a blocked Send.
	Abort()
}

// ServerConfig of a Server.
type ServerConfig struct {
	Identity *identity.Store // our SVID, and the bundles that peers are verified with
	Handler  Handler
	Log      *slog.Logger
}

// Server serves peers.
type Server struct {
	cfg ServerConfig
	log *slog.Logger
}

// NewServer gives a Server that does nothing until Serve.
func NewServer(cfg ServerConfig) *Server {
	return &Server{cfg: cfg, log: telemetry.Discard(cfg.Log)}
}

// Serve takes connections from l, which it closes, until ctx ends; then it
// waits for open calls, at most stopGrace, and cuts what is left.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(
		grpc.Creds(serverCreds{credentials.NewTLS(s.cfg.Identity.OptionalServerConfig("h2"))}),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(MaxMessage),
		grpc.MaxConcurrentStreams(streamsPerPeer), grpc.MaxHeaderListSize(headerBytes),
		grpc.ReadBufferSize(bufferBytes), grpc.WriteBufferSize(bufferBytes),
		grpc.ConnectionTimeout(handshakeTimeout), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveAfter, Timeout: keepaliveWait,
			MaxConnectionIdle: connectionIdle, MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: connectionGrace}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveFloor, PermitWithoutStream: true}),
	)
	pb.RegisterIdentityServer(g, identityService{h: s.cfg.Handler})
	pb.RegisterControlServer(g, controlService{h: s.cfg.Handler})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	select {
	case err := <-served:
		g.Stop()
		return fmt.Errorf("serve peers: %w", err)
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() { g.GracefulStop(); close(stopped) }()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-stopped:
	case <-grace.C:
		s.log.Warn("cut off the peers that did not leave in time")
		g.Stop()
		<-stopped
	}
	<-served
	return ctx.Err()
}

// serverCreds remembers the raw connection, so that a stream can be aborted.
type serverCreds struct {
	credentials.TransportCredentials
}

type serverAuth struct {
	credentials.TLSInfo
	raw net.Conn
}

func (c serverCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	t, ok := info.(credentials.TLSInfo)
	if !ok {
		conn.Close()
		return nil, nil, fmt.Errorf("handshake gave %T, not TLS", info)
	}
	return conn, serverAuth{TLSInfo: t, raw: raw}, nil
}

func (c serverCreds) Clone() credentials.TransportCredentials {
	return serverCreds{c.TransportCredentials.Clone()}
}

// callerOf tells who calls; raw is the connection it came by.
func callerOf(ctx context.Context) (from Caller, raw net.Conn, err error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Caller{}, nil, Refuse(Unauthenticated, "no connection")
	}
	auth, ok := p.AuthInfo.(serverAuth)
	if !ok {
		return Caller{}, nil, Refuse(Unauthenticated, "no TLS")
	}
	from.Addr = p.Addr.String()
	if len(auth.State.PeerCertificates) == 0 {
		return from, auth.raw, nil
	}
	if from.Peer, err = peerOf(auth.State); err != nil {
		return Caller{}, nil, Refuse(Unauthenticated, "certificate: %v", err)
	}
	from.Known = true
	return from, auth.raw, nil
}

// peerOf also refuses a certificate that ran out while the connection stood.
func peerOf(cs tls.ConnectionState) (identity.Peer, error) {
	p, err := identity.PeerOf(cs)
	if err != nil {
		return p, err
	}
	if !p.NotAfter.After(time.Now()) {
		return p, fmt.Errorf("%s expired at %s", p.ID, p.NotAfter.UTC().Format(time.RFC3339))
	}
	return p, nil
}

type identityService struct {
	pb.UnimplementedIdentityServer
	h Handler
}

func (s identityService) Issue(ctx context.Context, req *pb.IssueRequest) (*pb.IssueResponse, error) {
	from, _, err := callerOf(ctx)
	if err != nil {
		return nil, outgoing(err)
	}
	res, err := s.h.Issue(ctx, from, req)
	if err != nil {
		return nil, outgoing(err)
	}
	return res, nil
}

type controlService struct {
	pb.UnimplementedControlServer
	h Handler
}

func (s controlService) Stream(g grpc.BidiStreamingServer[pb.PeerMessage, pb.ControlMessage]) error {
	from, raw, err := callerOf(g.Context())
	if err == nil && !from.Known {
		err = Refuse(Unauthenticated, "the control stream needs a client certificate: ask Identity.Issue for one")
	}
	if err != nil {
		return outgoing(err)
	}
	return outgoing(s.h.Stream(g.Context(), from, serverStream{g: g, raw: raw}))
}

type serverStream struct {
	g   grpc.BidiStreamingServer[pb.PeerMessage, pb.ControlMessage]
	raw net.Conn
}

func (s serverStream) Send(e *Encoded) error { return incoming(s.g.SendMsg(e), nil) }

func (s serverStream) Recv() (*pb.PeerMessage, error) {
	m, err := s.g.Recv()
	return m, incoming(err, nil)
}

func (s serverStream) Abort() { s.raw.Close() }
