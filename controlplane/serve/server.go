// Package serve is the control plane's face to its peers: it issues SVIDs to
// pods that prove themselves, and pushes to each peer, over one stream, what
// it asked for, newest version only.
//
// It decides neither what a resource holds (controlplane/state does) nor how a
// certificate looks (controlplane/ca does); gRPC is hidden in internal/wire.
// Package controlplane runs it. docs/wire.md tells the protocol.
package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/ca"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// Audience is what a peer's service account token must be made for.
const Audience = "heddle.dev/controlplane"

// Authority signs; *ca.CA is one.
type Authority interface {
	Sign(csrDER []byte, s ca.Subject) (chain [][]byte, notAfter time.Time, err error)
	Bundle() *pb.TrustBundle
}

// Tokens proves service account tokens; a source.Source is one.
type Tokens interface {
	ReviewToken(ctx context.Context, token, audience string) (source.TokenInfo, error)
}

// Config of a Server.
type Config struct {
	Listener    net.Listener // closed by Run
	TrustDomain spiffeid.TrustDomain
	Identity    *identity.Store // our own SVID, and the bundles peers are verified with
	Authority   Authority
	Tokens      Tokens
	Worlds      *Latest
	Replica     string // our name, for people
	Version     string
	Log         *slog.Logger
	Metrics     *telemetry.Registry // nil: not shown
}

// Server serves peers.
type Server struct {
	cfg       Config
	log       *slog.Logger
	metrics   *metrics
	encodings *encodings
	rate      *bucket       // of Issue
	busy      chan struct{} // one place per Issue at work
	places    chan struct{} // one per stream
	stop      chan struct{} // closed when Run's context ended
	readers   sync.WaitGroup
}

// New gives a Server that does nothing until Run, which is called once.
func New(cfg Config) *Server {
	m := newMetrics(cfg.Metrics)
	return &Server{
		cfg: cfg, log: telemetry.Discard(cfg.Log), metrics: m, encodings: newEncodings(m.encodings),
		rate: newBucket(issueRate, issueBurst), busy: make(chan struct{}, issueConcurrent),
		places: make(chan struct{}, maxPeers), stop: make(chan struct{}),
	}
}

// Run serves until ctx ends, says goodbye to every peer and returns when the
// last stream ended.
func (s *Server) Run(ctx context.Context) error {
	w := wire.NewServer(wire.ServerConfig{Identity: s.cfg.Identity, Handler: handler{s}, Log: s.log})
	stopped := context.AfterFunc(ctx, func() { close(s.stop) })
	defer stopped()
	err := w.Serve(ctx, s.cfg.Listener)
	s.readers.Wait()
	if errors.Is(err, context.Canceled) {
		return ctx.Err()
	}
	return err
}

// handler keeps the wire's methods off Server.
type handler struct{ s *Server }

func (h handler) Issue(ctx context.Context, from wire.Caller, req *pb.IssueRequest) (*pb.IssueResponse, error) {
	res, err := h.s.issue(ctx, from, req)
	h.s.metrics.issued(err)
	if err != nil {
		h.s.log.Warn("refused to issue an identity", "peer", from.Addr, "error", err)
	}
	return res, err
}

func (h handler) Stream(ctx context.Context, from wire.Caller, stream wire.Stream) error {
	select {
	case h.s.places <- struct{}{}:
	default:
		return wire.Refuse(wire.Exhausted, "this replica has its %d peers", maxPeers)
	}
	h.s.metrics.peers.Inc()
	defer func() { h.s.metrics.peers.Dec(); <-h.s.places }()
	who, pod, err := h.s.recognise(ctx, from)
	if err != nil {
		h.s.log.Warn("refused a peer", "peer", from.Addr, "id", from.Peer.ID.String(), "error", err)
		return err
	}
	x := newSession(h.s, stream, who)
	x.log = h.s.log.With("pod", pod)
	x.until = from.Peer.NotAfter
	return x.run(ctx)
}
