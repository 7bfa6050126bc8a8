package control

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// ErrUnknown says that an address belongs to the cluster, as far as is known,
// and the control plane could not be asked what stands there.
var ErrUnknown = errors.New("destination unknown: the control plane could not be asked")

// Config of a Client. T is what a destination is compiled to.
type Config[T any] struct {
	Address     string // HOST:PORT of the control plane; names are resolved at each attempt
	TrustDomain string
	Kind        pb.PeerKind         // what we are; zero: a sidecar
	TokenFile   string              // projected service account token, read at each use
	Roots       []*x509.Certificate // trusted until the control plane sends its bundle
	Identity    *identity.Store     // kept up to date with SVID and bundles
	Version     string              // of this program
	Log         *slog.Logger
	Metrics     *telemetry.Registry // nil: not shown
	// Dial replaces net.Dialer and name resolution, for tests.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Compile makes a T of what stands at an address; prev is what it made of
	// the version before (the zero T: there was none), so that state can be
	// kept. Called from one goroutine at a time for one address. It must not
	// change d, which is shared with versions before and after.
	Compile func(prev T, d *pb.Destination) T
	// OnInbound and OnMesh are called with each new version, never
	// concurrently; nil: not told. They must not block.
	OnInbound func(*pb.InboundPolicy)
	OnMesh    func(*pb.MeshSettings)
	// OnNode is called with each new version of what a node agent programs,
	// whole, never concurrently; a Service that did not change keeps its
	// pointer. An error refuses the version.
	OnNode func(*pb.Update) error
	// Node is what a node agent kept from its last run, whole; nil: nothing.
	// The control plane is told of its version, so that it sends what is new.
	Node *pb.Update
	// Report gives what only this peer can see, sent with a heartbeat when it
	// changed; nil func or nil result: nothing.
	Report func() *pb.Report

	MaxIdle   int           // entries kept without a holder; zero: 1,000
	IdleAfter time.Duration // entries without a holder are dropped after this; zero: 10 min
}

// Client is a peer's connection to the control plane.
type Client[T any] struct {
	cfg          Config[T]
	log          *slog.Logger
	controlPlane spiffeid.ID // set by Run
	ready        chan struct{}
	identified   chan struct{} // closed once there is an SVID
	kick         chan struct{} // one signal: get a new SVID now
	refused      atomic.Uint64 // updates we did not take
	table        table[T]
	node         *pb.NodeServices // newest; nil: none. The stream's goroutine alone has it.

	mu    sync.Mutex
	state State
	heard time.Time // anything from the control plane; at first, our start
	has   map[string]held
	named bool // an SVID was set
}

// held is what we have of a resource that is no address.
type held struct {
	version  []byte
	revision uint64
}

// State is how the client stands to the control plane.
type State struct {
	Connected bool
	Since     time.Time     // of the last change of Connected
	Revision  uint64        // newest that the control plane told of
	Age       time.Duration // since anything was heard of the control plane
	Entries   int           // addresses held
	Replica   string        // that we are or were last connected to
	LastError string        // of the last attempt; empty while connected
}

// New gives a Client that does nothing until Run.
func New[T any](cfg Config[T]) *Client[T] {
	if cfg.MaxIdle == 0 {
		cfg.MaxIdle = maxIdle
	}
	if cfg.IdleAfter == 0 {
		cfg.IdleAfter = idleAfter
	}
	if cfg.Kind == pb.PeerKind_PEER_KIND_UNSPECIFIED {
		cfg.Kind = pb.PeerKind_PEER_KIND_SIDECAR
	}
	c := &Client[T]{
		cfg: cfg, log: telemetry.Discard(cfg.Log),
		ready: make(chan struct{}), identified: make(chan struct{}), kick: make(chan struct{}, 1),
		has: map[string]held{}, heard: time.Now(),
	}
	c.state.Since = c.heard
	if n := cfg.Node; n.GetNode() != nil {
		// Of revision 0: after a restore of the cluster's own state its
		// revisions begin anew, and we must not refuse them for ever.
		c.node, c.has[nameNode] = n.GetNode(), held{version: n.GetVersion()}
	}
	c.table.init(cfg)
	c.register(cfg.Metrics)
	return c
}

// Run gets and renews the identity and holds the stream, until ctx ends. It
// fails at once only on a Config that cannot work.
func (c *Client[T]) Run(ctx context.Context) error {
	td, err := spiffeid.TrustDomainFromString(c.cfg.TrustDomain)
	if err != nil {
		return fmt.Errorf("trust domain %q: %w", c.cfg.TrustDomain, err)
	}
	c.controlPlane, err = spiffeid.FromSegments(td, "ns", "heddle-system", "sa", "heddle-controlplane")
	if err != nil {
		return fmt.Errorf("control plane's identity: %w", err)
	}
	if err := c.cfg.Identity.SetBundles(map[spiffeid.TrustDomain][]*x509.Certificate{td: c.cfg.Roots}); err != nil {
		return fmt.Errorf("trust the given roots: %w", err)
	}
	g := run.NewGroup(ctx)
	g.Go("identity", c.keepIdentity)
	g.Go("control stream", c.keepStream)
	g.Go("idle destinations", c.table.sweep)
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// Ready is closed once identity, bundle, mesh settings and, of a sidecar, the
// inbound policy, of a node agent, the node's Services were received.
func (c *Client[T]) Ready() <-chan struct{} { return c.ready }

// Lookup gives what stands at an address and counts the caller as a holder
// until Entry.Release. The first callers for an address wait for the control
// plane's answer, at most lookupWait (2 s). While it is known to be out of
// reach nobody waits: an address outside the cluster's prefixes is External
// (and the true answer follows on reconnect), one inside is ErrUnknown. What
// was looked up before keeps its last answer.
func (c *Client[T]) Lookup(ctx context.Context, addr netip.Addr) (*Entry[T], error) {
	return c.table.lookup(ctx, addr)
}

// Each calls f for every address of which something is known, in no order.
func (c *Client[T]) Each(f func(addr netip.Addr, v T)) { c.table.each(f) }

// State is for metrics and /debug.
func (c *Client[T]) State() State {
	c.mu.Lock()
	s := c.state
	s.Age = time.Since(c.heard)
	c.mu.Unlock()
	s.Entries = c.table.size()
	return s
}

// checkReady closes ready when all has come. The caller holds mu.
func (c *Client[T]) checkReady() {
	own := nameInbound
	if c.cfg.Kind == pb.PeerKind_PEER_KIND_NODE {
		own = nameNode
	}
	for _, name := range []string{nameBundle, nameMesh, own} {
		if _, ok := c.has[name]; !ok {
			return
		}
	}
	if !c.named {
		return
	}
	select {
	case <-c.ready:
	default:
		close(c.ready)
	}
}
