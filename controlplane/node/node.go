// Package node is the node agent put together: what was kept on disk is in the
// kernel first, then the control plane is found and its stream followed; each
// new version is planned (node/plan), written (node/nft) and kept (node/keep).
// Rules stay in the kernel when it ends: a restart disturbs no flow.
// cmd/heddle-node calls Run.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/find"
	"github.com/heddle-mesh/heddle/controlplane/node/keep"
	"github.com/heddle-mesh/heddle/controlplane/node/nft"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Config of a node agent.
type Config struct {
	Node        string // our name, as endpoints name it
	TrustDomain string
	StateDir    string // what was told last is kept here; empty: nowhere
	Admin       string // address of /ready, /live, /metrics, /debug/services
	TokenFile   string // projected token for the control plane
	// API is where the cluster's API server is: its Service address and its
	// real ones. API.API may be empty outside a cluster; then nothing is found.
	API     find.Config
	Version string
	Log     *slog.Logger
	// Listening is told where the admin port is; nil: not told.
	Listening func(net.Addr)
}

// Check says what is missing of a Config.
func (c *Config) Check() error {
	if c.Node == "" {
		return errors.New("the node's name is not given: set NODE_NAME (fieldRef spec.nodeName)")
	}
	if _, err := spiffeid.TrustDomainFromString(c.TrustDomain); err != nil {
		return fmt.Errorf("trust domain %q: %w", c.TrustDomain, err)
	}
	return nil
}

// agent is one Run.
type agent struct {
	cfg      Config
	log      *slog.Logger
	registry *telemetry.Registry
	metrics  *metrics
	identity *identity.Store
	finder   *find.Finder
	backend  *nft.Backend
	link     *link

	told    atomic.Pointer[pb.Update] // newest from the control plane, or from disk
	foreign bool                      // what an earlier run left in the kernel is another cluster's
	met     atomic.Bool               // the control plane confirmed or replaced what is told, in this run
	changed chan struct{}             // one signal: told or met is new

	mu   sync.Mutex
	view view // for /ready, /live and /debug
}

// Run is the node agent until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Check(); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	a := &agent{cfg: cfg, log: telemetry.Discard(cfg.Log), registry: telemetry.NewRegistry(cfg.Version), identity: identity.NewStore(),
		finder: find.New(cfg.API), backend: nft.New(cfg.Log), changed: make(chan struct{}, 1)}
	a.metrics = newMetrics(a.registry)
	if err := nft.Probe(); err != nil {
		return err
	}
	a.checkSettings()
	a.checkAPI()
	kept := a.load()
	a.link = newLink(a, kept)
	admin, err := net.Listen("tcp", cfg.Admin)
	if err != nil {
		return fmt.Errorf("listen for the admin port: %w", err)
	}
	if cfg.Listening != nil {
		cfg.Listening(admin.Addr())
	}
	g := run.NewGroup(ctx)
	g.Go("rules", a.program)
	g.Go("admin", func(ctx context.Context) error { return a.serveAdmin(ctx, admin) })
	g.Go("control plane", a.link.run)
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// load takes what was kept on disk. Damage is told and no reason to stop: the
// control plane has it all.
func (a *agent) load() *pb.Update {
	if a.cfg.StateDir == "" {
		return nil
	}
	owner, unsure := a.owner()
	if unsure != nil {
		a.log.Warn("cannot tell which cluster this is", "error", unsure)
	}
	u, err := keep.Load(a.cfg.StateDir, owner)
	if errors.Is(err, keep.ErrNone) {
		a.log.Info("nothing is kept from an earlier run", "folder", a.cfg.StateDir)
		return nil
	}
	if err != nil {
		a.foreign = unsure == nil && errors.Is(err, keep.ErrForeign)
		a.log.Error("what is kept from an earlier run cannot be used; waiting for the control plane", "error", err)
		return nil
	}
	a.log.Info("forwarding by what is kept from an earlier run", "services", len(u.GetNode().GetServices()), "revision", u.GetRevision())
	a.told.Store(u)
	return u
}

// take is told a new version by the stream.
func (a *agent) take(u *pb.Update) error {
	a.told.Store(u)
	a.meet()
	return nil
}

// meet notes that the control plane is there, and what is told is its word.
func (a *agent) meet() {
	a.met.Store(true)
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// owner says whose state is kept on disk. Of the cluster nothing is its own but
// the API server's CA.
func (a *agent) owner() (keep.Owner, error) {
	cas, err := a.finder.Cluster()
	return keep.Owner{Node: a.cfg.Node, Cluster: cas}, err
}

// Clean takes away everything that an agent leaves on a node.
func Clean(stateDir string) error {
	err := nft.Clean()
	if stateDir != "" {
		err = errors.Join(err, keep.Remove(stateDir))
	}
	return err
}

// compiled are the rules of one Service and what they were made of.
type compiled struct {
	from  *pb.NodeService
	rules plan.Service
}
