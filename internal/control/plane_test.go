package control

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/meshtest/pipes"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/wire"
)

const (
	planeID = "spiffe://demo.test/ns/heddle-system/sa/heddle-controlplane"
	webID   = "spiffe://demo.test/ns/shop/sa/web"
)

var (
	vip     = netip.MustParseAddr("10.96.0.1")
	outside = netip.MustParseAddr("192.0.2.7")
)

// plane is a scripted control plane that can be killed and started again.
type plane struct {
	t       *testing.T
	ca      *pki.Authority
	life    time.Duration // of certificates
	refuse  error         // of Issue
	issued  []string      // how: token or renew
	streams chan *stream
	mute    atomic.Bool // no heartbeats

	mu   sync.Mutex
	l    *pipes.Listener
	stop func()
}

// stream is one peer's, in the test's hands.
type stream struct {
	wire.Stream
	t     *testing.T
	mu    sync.Mutex // of Send
	hello *pb.Hello
	in    chan *pb.PeerMessage
	done  chan error // what the handler shall return
}

func newPlane(t *testing.T) *plane {
	return &plane{t: t, ca: pki.New(t, "demo.test"), life: 24 * time.Hour, streams: make(chan *stream, 100)}
}

type public struct {
	crypto.Signer
	key crypto.PublicKey
}

func (p public) Public() crypto.PublicKey { return p.key }

func (p *plane) Issue(_ context.Context, from wire.Caller, req *pb.IssueRequest) (*pb.IssueResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	how := "token " + req.GetServiceAccountToken()
	if req.GetRenew() {
		how = "renew"
		if !from.Known {
			p.t.Error("a renewal without a certificate")
		}
	}
	p.issued = append(p.issued, how)
	if p.refuse != nil {
		return nil, p.refuse
	}
	csr, err := x509.ParseCertificateRequest(req.Csr)
	if err != nil {
		return nil, err
	}
	svid := p.ca.SVIDForKey(p.t, webID, public{key: csr.PublicKey}, pki.Pod("web-1.shop", "uid-1"), pki.Dates(-time.Minute, p.life))
	now := time.Now()
	return &pb.IssueResponse{Chain: [][]byte{svid.Chain[0].Raw, svid.Chain[1].Raw}, Bundle: p.bundle(p.ca),
		ServerTimeUnix: now.Unix(), RenewAfterUnix: now.Add(p.life / 2).Unix()}, nil
}

// how tells by what credentials identities were asked for.
func (p *plane) how() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.issued)
}

func (p *plane) bundle(authorities ...*pki.Authority) *pb.TrustBundle {
	b := &pb.TrustBundle{TrustDomain: "demo.test"}
	for _, a := range authorities {
		b.Roots = append(b.Roots, a.Root.Raw)
	}
	return b
}

func (p *plane) Stream(ctx context.Context, _ wire.Caller, s wire.Stream) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	x := &stream{Stream: s, t: p.t, hello: first.GetHello(), in: make(chan *pb.PeerMessage, 1000), done: make(chan error, 1)}
	go func() {
		defer close(x.in)
		for {
			m, err := s.Recv()
			if err != nil {
				return
			}
			x.in <- m
		}
	}()
	select {
	case p.streams <- x:
	case <-ctx.Done():
		return ctx.Err()
	}
	beat := time.NewTicker(5 * time.Second)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if !p.mute.Load() {
				x.send(&pb.ControlMessage{Message: &pb.ControlMessage_Heartbeat{Heartbeat: &pb.Heartbeat{}}})
			}
		case err := <-x.done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// up starts it.
func (p *plane) up() *plane {
	l, id := pipes.Listen(), p.ca.Store(p.t, planeID)
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		wire.NewServer(wire.ServerConfig{Identity: id, Handler: p}).Serve(ctx, l)
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.l, p.stop = l, func() { cancel(); <-done }
	return p
}

// kill ends it without a word.
func (p *plane) kill() {
	p.mu.Lock()
	l, stop := p.l, p.stop
	p.l = nil
	p.mu.Unlock()
	if l == nil {
		return
	}
	l.Close()
	l.Cut()
	stop()
}

func (p *plane) dial(ctx context.Context, address string) (net.Conn, error) {
	p.mu.Lock()
	l := p.l
	p.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.Dial(ctx, address)
}

// next gives the next stream, welcomed.
func (p *plane) next() *stream {
	x := <-p.streams
	x.send(&pb.ControlMessage{Message: &pb.ControlMessage_Welcome{Welcome: &pb.Welcome{Replica: "r1", HeartbeatSeconds: 5, Revision: 1}}})
	return x
}

// ready gives the next stream after what every sidecar needs was sent on it.
func (p *plane) ready() *stream {
	x := p.next()
	p.give(x)
	return x
}

// give sends what every sidecar needs.
func (p *plane) give(x *stream) {
	x.update(&pb.Update{Name: "bundle", Version: []byte("b"), Revision: 1, Content: &pb.Update_Bundles{Bundles: &pb.TrustBundles{Bundles: []*pb.TrustBundle{p.bundle(p.ca)}}}})
	x.update(&pb.Update{Name: "mesh", Version: []byte("m"), Revision: 1, Content: &pb.Update_Mesh{Mesh: &pb.MeshSettings{ClusterPrefixes: [][]byte{{10, 0, 0, 0, 8}}}}})
	x.update(&pb.Update{Name: "inbound", Version: []byte("i"), Revision: 1, Content: &pb.Update_Inbound{Inbound: &pb.InboundPolicy{Pod: "web-1"}}})
	synctest.Wait()
}

func (s *stream) send(m *pb.ControlMessage) {
	s.t.Helper()
	e, err := wire.Encode(m)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Send(e); err != nil {
		s.t.Logf("send: %v", err)
	}
}

func (s *stream) update(u *pb.Update) {
	s.t.Helper()
	s.send(&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: u}})
}

// heard gives what the peer said so far, but for heartbeats.
func (s *stream) heard() (out []string) {
	synctest.Wait()
	for {
		select {
		case m, ok := <-s.in:
			if !ok {
				return out
			}
			switch m := m.Message.(type) {
			case *pb.PeerMessage_Subscribe:
				slices.Sort(m.Subscribe.Names)
				out = append(out, fmt.Sprint("+", m.Subscribe.Names))
			case *pb.PeerMessage_Unsubscribe:
				slices.Sort(m.Unsubscribe.Names)
				out = append(out, fmt.Sprint("-", m.Unsubscribe.Names))
			case *pb.PeerMessage_Ack:
				out = append(out, fmt.Sprintf("ack %s %s %s", m.Ack.Name, m.Ack.Version, m.Ack.Refused))
			case *pb.PeerMessage_Report:
				out = append(out, "report")
			}
		default:
			return out
		}
	}
}

// at is an update of vip whole: a Service with one endpoint for each key.
func at(revision uint64, version string, keys ...string) *pb.Update {
	s := &pb.Service{Namespace: "shop", Name: "orders"}
	for _, k := range keys {
		s.Endpoints = append(s.Endpoints, &pb.Endpoint{Key: []byte(k)})
	}
	return &pb.Update{Name: "addr/10.96.0.1", Version: []byte(version), Revision: revision,
		Content: &pb.Update_Destination{Destination: &pb.Destination{Kind: &pb.Destination_Service{Service: s}}}}
}

// told is what a destination is compiled to here.
type told struct {
	keys     string
	external bool
	versions int // compiled so far
}

func compile(prev *told, d *pb.Destination) *told {
	n := &told{external: d.GetExternal() != nil}
	if prev != nil {
		n.versions = prev.versions
	}
	n.versions++
	for _, e := range d.GetService().GetEndpoints() {
		n.keys += string(e.Key)
	}
	return n
}

// scene is a client beside a scripted control plane.
type scene struct {
	*plane
	c       *Client[*told]
	id      *identity.Store
	token   string
	inbound []string
}

// play runs f in a bubble with a client that is started by f's call of run.
func play(t *testing.T, f func(t *testing.T, s *scene)) {
	t.Helper()
	playAs(t, func(*Config[*told]) {}, f)
}

// playAs is play with a Config that change has changed.
func playAs(t *testing.T, change func(*Config[*told]), f func(t *testing.T, s *scene)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{plane: newPlane(t), id: identity.NewStore(), token: filepath.Join(dir, "token")}
		if err := os.WriteFile(s.token, []byte("t1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := Config[*told]{Address: "plane:15010", TrustDomain: "demo.test", TokenFile: s.token, Roots: []*x509.Certificate{s.ca.Root},
			Identity: s.id, Version: "v1", Dial: s.dial, Compile: compile, MaxIdle: 3,
			OnInbound: func(p *pb.InboundPolicy) { s.inbound = append(s.inbound, p.Pod) }}
		change(&cfg)
		s.c = New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.c.Run(ctx) }()
		f(t, s)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		s.kill()
	})
}

func (s *scene) isReady() bool {
	synctest.Wait()
	select {
	case <-s.c.Ready():
		return true
	default:
		return false
	}
}
