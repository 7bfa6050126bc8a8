package wire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/meshtest/pipes"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/internal/wire"
)

const (
	planeID = "spiffe://demo.test/ns/heddle-system/sa/heddle-controlplane"
	webID   = "spiffe://demo.test/ns/shop/sa/web"
)

var plane = spiffeid.RequireFromString(planeID)

// handler is a Handler of functions.
type handler struct {
	issue  func(wire.Caller, *pb.IssueRequest) (*pb.IssueResponse, error)
	stream func(context.Context, wire.Caller, wire.Stream) error
}

func (h handler) Issue(_ context.Context, from wire.Caller, req *pb.IssueRequest) (*pb.IssueResponse, error) {
	return h.issue(from, req)
}

func (h handler) Stream(ctx context.Context, from wire.Caller, s wire.Stream) error {
	return h.stream(ctx, from, s)
}

// serve runs a server on l until the test ends.
func serve(t *testing.T, l net.Listener, id *identity.Store, h wire.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- wire.NewServer(wire.ServerConfig{Identity: id, Handler: h}).Serve(ctx, l) }()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	}
}

func dial(t *testing.T, l *pipes.Listener, c func(*identity.Store) *wire.DialConfig, s *identity.Store) *wire.Conn {
	t.Helper()
	cfg := c(s)
	if l != nil {
		cfg.Address, cfg.Dial = "plane:15010", l.Dial
	}
	conn, err := wire.Dial(*cfg)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func known(s *identity.Store) *wire.DialConfig {
	return &wire.DialConfig{TLS: s.ClientConfig(plane, "h2")}
}

func anonymous(s *identity.Store) *wire.DialConfig {
	return &wire.DialConfig{TLS: s.AnonymousClientConfig(plane, "h2")}
}

func TestIssueWithAndWithoutCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, l := pki.New(t, "demo.test"), pipes.Listen()
		stop := serve(t, l, ca.Store(t, planeID), handler{issue: func(from wire.Caller, req *pb.IssueRequest) (*pb.IssueResponse, error) {
			if string(req.Csr) == "bad" {
				return nil, wire.Refuse(wire.Invalid, "that is no request")
			}
			if string(req.Csr) == "crash" {
				return nil, errors.New("a secret of ours")
			}
			if from.Known {
				return &pb.IssueResponse{Chain: [][]byte{[]byte(from.Peer.ID.String())}}, nil
			}
			return &pb.IssueResponse{}, nil
		}})
		defer stop()
		web := ca.Store(t, webID)
		for _, tt := range []struct {
			config func(*identity.Store) *wire.DialConfig
			want   string
		}{{known, webID}, {anonymous, ""}} {
			conn := dial(t, l, tt.config, web)
			res, err := conn.Issue(t.Context(), &pb.IssueRequest{Csr: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if len(res.Chain) > 0 {
				got = string(res.Chain[0])
			}
			if got != tt.want {
				t.Errorf("the server saw %q, want %q", got, tt.want)
			}
			var refusal *wire.Error
			if _, err = conn.Issue(t.Context(), &pb.IssueRequest{Csr: []byte("bad")}); !errors.As(err, &refusal) || refusal.Code != wire.Invalid || refusal.Message != "that is no request" {
				t.Errorf("refusal came over as %v", err)
			}
			if _, err = conn.Issue(t.Context(), &pb.IssueRequest{Csr: []byte("crash")}); err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("an inner error came over as %v", err)
			}
			conn.Close()
		}
		stream, err := dialStream(t, l, anonymous, web)
		if err == nil {
			_, err = stream.Recv()
		}
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != wire.Unauthenticated {
			t.Errorf("a stream without a certificate: %v", err)
		}
	})
}

func dialStream(t *testing.T, l *pipes.Listener, c func(*identity.Store) *wire.DialConfig, s *identity.Store) (*wire.ClientStream, error) {
	conn := dial(t, l, c, s)
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return conn.Stream(ctx)
}

func TestStreamSharesOneEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, l := pki.New(t, "demo.test"), pipes.Listen()
		update := &pb.Update{Name: "mesh", Version: []byte{1}, Revision: 7, Content: &pb.Update_Mesh{Mesh: &pb.MeshSettings{TrustDomain: "demo.test"}}}
		shared, err := wire.Encode(&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: update}})
		if err != nil {
			t.Fatal(err)
		}
		stop := serve(t, l, ca.Store(t, planeID), handler{stream: func(_ context.Context, from wire.Caller, s wire.Stream) error {
			if from.Peer.PodUID != "uid-1" {
				t.Errorf("peer %+v", from.Peer)
			}
			if m, err := s.Recv(); err != nil || m.GetHello().GetVersion() != "v1" {
				t.Errorf("received %v, %v", m, err)
			}
			return s.Send(shared)
		}})
		defer stop()
		web := identity.NewStore()
		svid := ca.SVID(t, webID, pki.Pod("web-1.shop", "uid-1"))
		if err := errors.Join(web.SetSVID(svid.Chain, svid.Key), web.SetBundles(pki.Bundles(ca))); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			conn := dial(t, l, known, web)
			s, err := conn.Stream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&pb.PeerMessage{Message: &pb.PeerMessage_Hello{Hello: &pb.Hello{Version: "v1"}}}); err != nil {
				t.Fatal(err)
			}
			m, err := s.Recv()
			if err != nil || !wire.Equal(m.GetUpdate(), update) {
				t.Fatalf("received %v, %v", m, err)
			}
			if _, err := s.Recv(); err != io.EOF {
				t.Errorf("at the end of the stream: %v", err)
			}
			if got := conn.Received(); got != uint64(shared.Len()) {
				t.Errorf("received %d bytes, the message has %d", got, shared.Len())
			}
			conn.Close()
		}
	})
}

func TestRefusedHandshakesSayWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, other := pki.New(t, "demo.test"), pki.New(t, "demo.test")
		tests := map[string]struct {
			server *identity.Store
			dial   func(context.Context, string) (net.Conn, error)
			want   telemetry.Reason
			text   string
		}{
			"another identity": {server: ca.Store(t, "spiffe://demo.test/ns/evil/sa/plane"), want: telemetry.ReasonIdentityMismatch},
			"another root":     {server: other.Store(t, planeID), want: telemetry.ReasonCertificateUnknown},
			"nobody there":     {dial: func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }, text: "connection refused"},
		}
		for name, tt := range tests {
			t.Log(name)
			l := pipes.Listen()
			if tt.server != nil {
				defer serve(t, l, tt.server, handler{})()
				tt.dial = l.Dial
			}
			conn, err := wire.Dial(wire.DialConfig{Address: "plane:1", Dial: tt.dial, TLS: ca.Store(t, webID).ClientConfig(plane, "h2")})
			if err != nil {
				t.Fatal(err)
			}
			_, err = conn.Issue(t.Context(), &pb.IssueRequest{})
			var refusal *wire.Error
			if !errors.As(err, &refusal) || refusal.Code != wire.Unavailable {
				t.Errorf("%s: %v", name, err)
			}
			if got := identity.ReasonOf(err); got != tt.want || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: reason %q of %v, want %q", name, got, err, tt.want)
			}
			conn.Close()
		}
	})
}

// A peer that does not read blocks Send; Abort frees it.
func TestAbortFreesABlockedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, l := pki.New(t, "demo.test"), pipes.Listen()
		big, err := wire.Encode(&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: &pb.Update{Version: make([]byte, 1<<20)}}})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan time.Duration, 1)
		stop := serve(t, l, ca.Store(t, planeID), handler{stream: func(_ context.Context, _ wire.Caller, s wire.Stream) error {
			began := time.Now()
			defer time.AfterFunc(3*time.Second, s.Abort).Stop()
			for {
				if err := s.Send(big); err != nil {
					ended <- time.Since(began)
					return err
				}
			}
		}})
		defer stop()
		if _, err := dialStream(t, l, known, ca.Store(t, webID)); err != nil {
			t.Fatal(err)
		}
		if d := <-ended; d != 3*time.Second {
			t.Errorf("Send was freed after %s", d)
		}
	})
}

func TestMessageBound(t *testing.T) {
	if _, err := wire.Encode(&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: &pb.Update{Version: make([]byte, wire.MaxMessage)}}}); err == nil {
		t.Error("a message over the bound was encoded")
	}
	if _, err := wire.Encode(&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: &pb.Update{Name: "\xff"}}}); err == nil {
		t.Error("a string that is not UTF-8 was encoded")
	}
}

// What somebody without a certificate can hold: no connection without a call,
// and no large message.
func TestAnonymousBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, l := pki.New(t, "demo.test"), pipes.Listen()
		defer serve(t, l, ca.Store(t, planeID), handler{issue: func(wire.Caller, *pb.IssueRequest) (*pb.IssueResponse, error) {
			return &pb.IssueResponse{}, nil
		}})()
		ended := make(chan struct{})
		cfg := anonymous(ca.Store(t, webID))
		cfg.Address = "plane:15010"
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := l.Dial(ctx, addr)
			return &watched{Conn: c, ended: ended}, err
		}
		conn, err := wire.Dial(*cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Issue(t.Context(), &pb.IssueRequest{Csr: make([]byte, 3<<20)}); err == nil {
			t.Error("3 MiB were taken from somebody unknown")
		}
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("a connection without a call stays")
		}
	})
}

// watched tells when a connection has ended: the server asks for it, and either
// side may be the first to close.
type watched struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

func (w *watched) Close() error {
	w.once.Do(func() { close(w.ended) })
	return w.Conn.Close()
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil {
		w.once.Do(func() { close(w.ended) })
	}
	return n, err
}

// Over a real socket, with a name resolved by DNS, and nothing left behind.
func TestLoopback(t *testing.T) {
	before := runtime.NumGoroutine()
	ca := pki.New(t, "demo.test")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := serve(t, l, ca.Store(t, planeID), handler{issue: func(wire.Caller, *pb.IssueRequest) (*pb.IssueResponse, error) {
		return &pb.IssueResponse{ServerTimeUnix: 5}, nil
	}})
	conn, err := wire.Dial(wire.DialConfig{Address: l.Addr().String(), TLS: ca.Store(t, webID).ClientConfig(plane, "h2")})
	if err != nil {
		t.Fatal(err)
	}
	res, err := conn.Issue(t.Context(), &pb.IssueRequest{})
	if err != nil || res.ServerTimeUnix != 5 {
		t.Fatalf("%v, %v", res, err)
	}
	conn.Close()
	stop()
	for range 1000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}
