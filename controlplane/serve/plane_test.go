package serve

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/ca"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/meshtest/pipes"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/internal/wire"
)

const planeID = "spiffe://demo.test/ns/heddle-system/sa/heddle-controlplane"

var demo = spiffeid.RequireTrustDomainFromString("demo.test")

// world is a World of tables.
type world struct {
	revision  uint64
	resources map[string]*state.Resource
	pods      map[string]*source.Pod
}

func (w *world) Revision() uint64                                   { return w.revision }
func (w *world) Resource(name string, _ state.Peer) *state.Resource { return w.resources[name] }
func (w *world) PodByUID(uid string) *source.Pod                    { return w.pods[uid] }
func (w *world) with(revision uint64, rs ...*state.Resource) *world {
	return w.change(revision, nil, rs...)
}
func (w *world) without(revision uint64, uid string) *world { return w.change(revision, []string{uid}) }
func (w *world) change(revision uint64, gone []string, rs ...*state.Resource) *world {
	n := &world{revision: revision, resources: map[string]*state.Resource{}, pods: map[string]*source.Pod{}}
	for k, v := range w.resources {
		n.resources[k] = v
	}
	for k, v := range w.pods {
		n.pods[k] = v
	}
	for _, r := range rs {
		n.resources[r.Name] = r
	}
	for _, uid := range gone {
		delete(n.pods, uid)
	}
	return n
}

// service is the resource of a Service with one endpoint per port given.
func service(revision uint64, ip string, ports ...uint32) *state.Resource {
	s := &pb.Service{Namespace: "shop", Name: "orders"}
	for i, p := range ports {
		s.Endpoints = append(s.Endpoints, &pb.Endpoint{Key: fmt.Appendf(nil, "%05d", i), Address: []byte{10, 0, 1, byte(i)}, Ports: []uint32{p}, Ready: true,
			Peer: &pb.Peer{Identity: "spiffe://demo.test/ns/shop/sa/orders"}, Pod: fmt.Sprintf("orders-%d", i)})
	}
	d := &pb.Destination{Kind: &pb.Destination_Service{Service: s}}
	return &state.Resource{Name: "addr/" + ip, Version: wire.Hash(d), Revision: revision,
		Update: &pb.Update{Name: "addr/" + ip, Version: wire.Hash(d), Revision: revision, Content: &pb.Update_Destination{Destination: d}}}
}

func resource(revision uint64, name, version string) *state.Resource {
	u := &pb.Update{Name: name, Version: []byte(version), Revision: revision}
	switch name {
	case "mesh":
		u.Content = &pb.Update_Mesh{Mesh: &pb.MeshSettings{TraceCollector: version}}
	case "inbound":
		u.Content = &pb.Update_Inbound{Inbound: &pb.InboundPolicy{Pod: version}}
	case "bundle":
		u.Content = &pb.Update_Bundles{Bundles: &pb.TrustBundles{}}
	}
	return &state.Resource{Name: name, Version: []byte(version), Revision: revision, Update: u}
}

// firstWorld has three pods and what every peer gets.
func firstWorld() *world {
	w := &world{revision: 1, pods: map[string]*source.Pod{}, resources: map[string]*state.Resource{}}
	for i, name := range []string{"web", "orders", "stock"} {
		uid := fmt.Sprintf("uid-%d", i+1)
		w.pods[uid] = &source.Pod{Namespace: "shop", Name: name + "-1", ServiceAccount: name, UID: uid}
	}
	w.pods["uid-4"] = &source.Pod{Namespace: "shop", Name: "job-1", ServiceAccount: "job", UID: "uid-4", Phase: "Succeeded"}
	return w.with(1, resource(1, "mesh", "m1"), resource(1, "inbound", "i1"), resource(1, "bundle", "b1"), service(1, "10.96.0.1", 8080, 8081))
}

// tokens takes any token it has in the table.
type tokens map[string]source.TokenInfo

func (k tokens) ReviewToken(_ context.Context, token, audience string) (source.TokenInfo, error) {
	if audience != Audience {
		return source.TokenInfo{}, errors.New("asked for another audience than ours")
	}
	if token == "outage" {
		return source.TokenInfo{}, errors.New("the source is down, here is its password")
	}
	info, ok := k[token]
	if !ok {
		return source.TokenInfo{}, fmt.Errorf("%w: signed by no known key", source.ErrToken)
	}
	return info, nil
}

// authority signs with a test CA.
type authority struct {
	t  *testing.T
	ca *pki.Authority
}

type public struct {
	crypto.Signer
	key crypto.PublicKey
}

func (p public) Public() crypto.PublicKey { return p.key }

func (a authority) Sign(der []byte, s ca.Subject) ([][]byte, time.Time, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%w: %w", ca.ErrRequest, err)
	}
	svid := a.ca.SVIDForKey(a.t, s.ID.String(), public{key: csr.PublicKey}, pki.Pod(s.Pod, s.PodUID))
	return [][]byte{svid.Chain[0].Raw, svid.Chain[1].Raw}, svid.Chain[0].NotAfter, nil
}

func (a authority) Bundle() *pb.TrustBundle {
	return &pb.TrustBundle{TrustDomain: a.ca.TrustDomain.Name(), Roots: [][]byte{a.ca.Root.Raw}}
}

// plane is a control plane under test.
type plane struct {
	t        *testing.T
	ca       *pki.Authority
	l        *pipes.Listener
	worlds   *Latest
	registry *telemetry.Registry
	server   *Server
	stop     func()
}

func newPlane(t *testing.T) *plane {
	p := &plane{t: t, ca: pki.New(t, "demo.test"), l: pipes.Listen(), worlds: NewLatest(), registry: telemetry.NewRegistry("test")}
	p.server = New(Config{Listener: p.l, TrustDomain: demo, Identity: p.ca.Store(t, planeID), Authority: authority{t, p.ca},
		Tokens: tokens{
			"web":     {Namespace: "shop", ServiceAccount: "web", PodUID: "uid-1"},
			"gone":    {Namespace: "shop", ServiceAccount: "web", PodUID: "uid-9"},
			"over":    {Namespace: "shop", ServiceAccount: "job", PodUID: "uid-4"},
			"other":   {Namespace: "shop", ServiceAccount: "web", PodUID: "uid-2"},
			"unbound": {Namespace: "shop", ServiceAccount: "web"},
		},
		Worlds: p.worlds, Replica: "replica-1", Version: "test", Metrics: p.registry})
	p.worlds.Set(firstWorld())
	return p
}

// start runs the server over pipes; stop ends it.
func (p *plane) start() *plane {
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() { done <- p.server.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			p.t.Errorf("Run: %v", err)
		}
	})
	return p
}

func (p *plane) metric(name string) float64 {
	p.t.Helper()
	m, err := p.registry.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	return m["heddle_controlplane_"+name]
}

// store is the identity of a pod's sidecar.
func (p *plane) store(sa, uid string, changes ...pki.Change) *identity.Store {
	s := identity.NewStore()
	svid := p.ca.SVID(p.t, "spiffe://demo.test/ns/shop/sa/"+sa, append(changes, pki.Pod(sa+"-1.shop", uid))...)
	if err := errors.Join(s.SetSVID(svid.Chain, svid.Key), s.SetBundles(pki.Bundles(p.ca))); err != nil {
		p.t.Fatal(err)
	}
	return s
}

// conn dials with an identity; nil: without.
func (p *plane) conn(s *identity.Store) *wire.Conn {
	want := spiffeid.RequireFromString(planeID)
	var cfg wire.DialConfig
	if s == nil {
		s = identity.NewStore()
		if err := s.SetBundles(pki.Bundles(p.ca)); err != nil {
			p.t.Fatal(err)
		}
		cfg.TLS = s.AnonymousClientConfig(want, "h2")
	} else {
		cfg.TLS = s.ClientConfig(want, "h2")
	}
	cfg.Address, cfg.Dial = "plane:15010", p.l.Dial
	c, err := wire.Dial(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// peer is one end of a stream in memory: what the server sends waits in the
// test's hands, without any buffer.
type peer struct {
	t       *testing.T
	toPeer  chan *wire.Encoded
	toPlane chan *pb.PeerMessage
	aborted chan struct{}
	abort   func()
	end     chan error // what the server's handler returned
	cancel  context.CancelFunc
}

func (p *peer) Send(e *wire.Encoded) error {
	select {
	case p.toPeer <- e:
		return nil
	case <-p.aborted:
		return errors.New("aborted")
	}
}

func (p *peer) Recv() (*pb.PeerMessage, error) {
	select {
	case m, ok := <-p.toPlane:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-p.aborted:
		return nil, errors.New("aborted")
	}
}

func (p *peer) Abort() { p.abort() }

// join opens a stream in memory as the pod of a UID.
func (p *plane) join(sa, uid string, hello *pb.Hello) *peer {
	ctx, cancel := context.WithCancel(p.t.Context())
	x := &peer{t: p.t, toPeer: make(chan *wire.Encoded), toPlane: make(chan *pb.PeerMessage), aborted: make(chan struct{}), end: make(chan error, 1), cancel: cancel}
	x.abort = sync.OnceFunc(func() { close(x.aborted) })
	from := wire.Caller{Known: true, Addr: "pipe", Peer: identity.Peer{ID: spiffeid.RequireFromString("spiffe://demo.test/ns/shop/sa/" + sa), PodUID: uid, NotAfter: time.Now().Add(24 * time.Hour)}}
	go func() {
		x.end <- handler{p.server}.Stream(ctx, from, x)
		cancel()
		x.abort()
	}()
	if hello != nil {
		hello.Kind = pb.PeerKind_PEER_KIND_SIDECAR
		x.tell(&pb.PeerMessage{Message: &pb.PeerMessage_Hello{Hello: hello}})
	}
	return x
}

func (p *peer) tell(m *pb.PeerMessage) {
	p.t.Helper()
	select {
	case p.toPlane <- m:
	case <-p.aborted:
		p.t.Error("the stream was closed")
	}
}

func (p *peer) subscribe(names ...string) {
	p.tell(&pb.PeerMessage{Message: &pb.PeerMessage_Subscribe{Subscribe: &pb.Subscribe{Names: names}}})
}

func (p *peer) leave() {
	p.cancel()
	p.abort()
	<-p.end
}

// next gives the next message; nil if none comes within a second.
func (p *peer) next() *pb.ControlMessage {
	p.t.Helper()
	select {
	case e := <-p.toPeer:
		return decode(p.t, e)
	case <-time.After(time.Second):
		return nil
	}
}

// updates gives the updates that come until there is a second of silence.
func (p *peer) updates() (out []*pb.Update) {
	p.t.Helper()
	for m := p.next(); m != nil; m = p.next() {
		if u := m.GetUpdate(); u != nil {
			out = append(out, u)
		}
	}
	return out
}

// drain takes what the server sends until the stream is closed.
func (p *peer) drain() {
	for {
		select {
		case <-p.toPeer:
		case <-p.aborted:
			return
		}
	}
}

func decode(t *testing.T, e *wire.Encoded) *pb.ControlMessage {
	t.Helper()
	var m pb.ControlMessage
	if err := wire.Unmarshal(e.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	return &m
}

func names(us []*pb.Update) string {
	var b bytes.Buffer
	for _, u := range us {
		fmt.Fprintf(&b, "%s@%d ", u.Name, u.Revision)
	}
	return string(bytes.TrimSpace(b.Bytes()))
}
