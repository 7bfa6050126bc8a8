package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// connectTimeout bounds one attempt to reach one address of the control plane.
const connectTimeout = 5 * time.Second

// serviceConfig spreads peers over all addresses of a name.
const serviceConfig = `{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}]}`

// DialConfig says whom to call.
type DialConfig struct {
	Address string      // HOST:PORT; a name is resolved by DNS, its addresses are tried in random order
	TLS     *tls.Config // pins the control plane's identity: identity.Store.ClientConfig
	// Dial replaces net.Dialer and name resolution, for tests.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Conn is a client's connection to one control plane. A Conn whose connection
// broke is not to be used again: the caller closes it and dials anew, and so
// may come to another replica.
type Conn struct {
	cc       *grpc.ClientConn
	failed   atomic.Pointer[error] // why the last attempt gave no connection
	received atomic.Uint64
}

// Dial prepares a connection; the first call makes it.
func Dial(cfg DialConfig) (*Conn, error) {
	c := &Conn{}
	target, dial := "dns:///"+cfg.Address, cfg.Dial
	if dial == nil {
		d := &net.Dialer{Timeout: connectTimeout}
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		}
	} else {
		target = "passthrough:///" + cfg.Address
	}
	cc, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(clientCreds{credentials.NewTLS(cfg.TLS), c}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := dial(ctx, address)
			c.note(err)
			return conn, err
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{received: &c.received}),
			grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithDefaultServiceConfig(serviceConfig), grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), grpc.WithDisableHealthCheck(), grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithMaxHeaderListSize(headerBytes),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveAfter, Timeout: keepaliveWait}),
	)
	if err != nil {
		return nil, fmt.Errorf("dial control plane %s: %w", cfg.Address, err)
	}
	c.cc = cc
	return c, nil
}

// note keeps why there is no connection.
func (c *Conn) note(err error) {
	if err == nil {
		c.failed.Store(nil)
		return
	}
	c.failed.Store(&err)
}

func (c *Conn) cause() error {
	if p := c.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Issue asks for an SVID.
func (c *Conn) Issue(ctx context.Context, req *pb.IssueRequest) (*pb.IssueResponse, error) {
	res, err := pb.NewIdentityClient(c.cc).Issue(ctx, req)
	return res, incoming(err, c.cause())
}

// Stream opens the control stream; it ends with ctx.
func (c *Conn) Stream(ctx context.Context) (*ClientStream, error) {
	g, err := pb.NewControlClient(c.cc).Stream(ctx)
	if err != nil {
		return nil, incoming(err, c.cause())
	}
	return &ClientStream{g: g, c: c}, nil
}

// Received counts the bytes of all messages received.
func (c *Conn) Received() uint64 { return c.received.Load() }

// Close ends the connection and all its calls.
func (c *Conn) Close() error { return c.cc.Close() }

// ClientStream is a peer's side of the stream. One goroutine may send while
// another receives.
type ClientStream struct {
	g grpc.BidiStreamingClient[pb.PeerMessage, pb.ControlMessage]
	c *Conn
}

// Send blocks while the control plane does not read. After io.EOF, Recv says
// why the stream ended.
func (s *ClientStream) Send(m *pb.PeerMessage) error { return incoming(s.g.Send(m), s.c.cause()) }

// Recv gives io.EOF when the control plane ended the stream in good order.
func (s *ClientStream) Recv() (*pb.ControlMessage, error) {
	m, err := s.g.Recv()
	return m, incoming(err, s.c.cause())
}

// CloseSend says that nothing more will be sent.
func (s *ClientStream) CloseSend() error { return s.g.CloseSend() }

// clientCreds keeps a handshake's error, which gRPC turns into text.
type clientCreds struct {
	credentials.TransportCredentials
	c *Conn
}

func (c clientCreds) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	c.c.note(err)
	if err != nil {
		return nil, nil, err
	}
	return judgedConn{conn, c.c}, info, nil
}

// judgedConn keeps the alert by which the control plane refuses our
// certificate. In TLS 1.3 it comes after our side of the handshake, with the
// first read, and gRPC would make it one of many reasons to be unavailable.
type judgedConn struct {
	net.Conn
	c *Conn
}

func (j judgedConn) Read(b []byte) (int, error) {
	n, err := j.Conn.Read(b)
	if err != nil && identity.ReasonOf(err) != telemetry.ReasonOK {
		j.c.note(&refusedCertificate{err})
	}
	return n, err
}

// refusedCertificate is the control plane's alert.
type refusedCertificate struct{ err error }

func (r *refusedCertificate) Error() string {
	return "the control plane refuses our certificate: " + r.err.Error()
}

func (r *refusedCertificate) Unwrap() error { return r.err }

func (c clientCreds) Clone() credentials.TransportCredentials {
	return clientCreds{c.TransportCredentials.Clone(), c.c}
}
