package control

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// ErrUnknown says that an address belongs to the cluster, as far as is known,
// and the control plane could not be asked what stands there.
var ErrUnknown = errors.New("destination unknown: the control plane could not be asked")

// Config of a Client. T is what a destination is compiled to.
type Config[T any] struct {
	Address     string // HOST:PORT of the control plane; names are resolved at each attempt
	TrustDomain string
	TokenFile   string              // projected service account token, read at each use
	Roots       []*x509.Certificate // trusted until the control plane sends its bundle
	Identity    *identity.Store     // kept up to date with SVID and bundles
	Version     string              // of this program
	Log         *slog.Logger
	Metrics     *telemetry.Registry // nil: not counted
	// Dial replaces net.Dialer, for tests.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Compile makes a T of what stands at an address; prev is what it made of
	// the version before (the zero T: there was none), so that state can be
	// kept. Called from one goroutine at a time for one address.
	Compile func(prev T, d *wire.Destination) T
	// OnInbound and OnMesh are called with each new version, never
	// concurrently. They must not block.
	OnInbound func(*wire.InboundPolicy)
	OnMesh    func(*wire.MeshSettings)
	// Report gives what only this peer can see, sent with each heartbeat if it
	// changed; nil func or nil result: nothing.
	Report func() *wire.Report

	MaxIdle   int           // entries kept without a holder; zero: 1,000
	IdleAfter time.Duration // entries without a holder are dropped after this; zero: 10 min
}

// Client is the sidecar's connection to the control plane.
type Client[T any] struct {
	cfg   Config[T]
	ready chan struct{}
}

// New gives a Client that does nothing until Run.
func New[T any](cfg Config[T]) *Client[T] {
	return &Client[T]{cfg: cfg, ready: make(chan struct{})}
}

// Run gets and renews the identity and holds the stream, until ctx ends.
func (c *Client[T]) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// Ready is closed once identity, bundle, mesh settings and inbound policy were
// received.
func (c *Client[T]) Ready() <-chan struct{} { return c.ready }

// Lookup gives what stands at an address and counts the caller as a holder
// until Entry.Release. The first caller for an address waits for the control
// plane's answer, at most lookupWait. While it cannot be asked, an address
// outside the cluster's prefixes is External and one inside is ErrUnknown, at
// once; whatever was looked up before keeps its last answer.
func (c *Client[T]) Lookup(ctx context.Context, addr netip.Addr) (*Entry[T], error) {
	return nil, ErrUnknown
}

// Entry is one address as the control plane last told it.
type Entry[T any] struct{ value atomic.Pointer[T] }

// Load gives the newest version. It never blocks.
func (e *Entry[T]) Load() T { return *e.value.Load() }

// Release ends what Lookup began. Call it once.
func (e *Entry[T]) Release() {}

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

// State is for metrics and /debug.
func (c *Client[T]) State() State { return State{} }
