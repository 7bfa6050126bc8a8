// Package controlplane puts the control plane's rooms together: a source's
// snapshots become worlds (state), peers are served from the newest (serve),
// the authority signs (ca). Each part's work is its own; here is only the
// order in which they start and what flows between them.
// cmd/heddle-controlplane calls Run.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/ca"
	"github.com/heddle-mesh/heddle/controlplane/serve"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/controlplane/status"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Config of a control plane.
type Config struct {
	Source        source.Source // started by Run
	Listen        string        // address for peers
	Metrics       string        // address of /metrics, /ready, /live, /debug/problems; empty: none
	CADir         string        // the authority's folder, shared by replicas
	CASecret      source.Key    // or the Secret it is in; the roots are published beside it (trustBundle)
	TrustDomain   string        // where MeshConfig names none
	ClusterDomain string        // of DNS names
	Replica       string        // our name, for people; empty: the host's
	Log           *slog.Logger
	// Listening is told where peers and metrics are served; nil: not told.
	Listening func(peers, metrics net.Addr)
}

// plane is one Run.
type plane struct {
	cfg      Config
	log      *slog.Logger
	registry *telemetry.Registry
	metrics  *metrics
	worlds   *serve.Latest
	domain   spiffeid.TrustDomain
	ca       *ca.CA
	identity *identity.Store
	newest   atomic.Pointer[built]
	reported chan struct{} // one signal: newest is new
	status   *status.Writer
	serving  atomic.Bool
	waits    atomic.Pointer[string] // what the start waits for, if it failed once
}

// built is a snapshot that became a world, and what is wrong in it.
type built struct {
	snap     *source.Snapshot
	problems []source.Problem
}

// statusLease is held by the one replica that writes status, and the roots'
// ConfigMap.
const statusLease = "heddle-status"

// Run serves until ctx ends. An error says what could not start.
func Run(ctx context.Context, cfg Config) error {
	p := &plane{cfg: cfg, log: telemetry.Discard(cfg.Log), registry: telemetry.NewRegistry(run.Version),
		worlds: serve.NewLatest(), identity: identity.NewStore(), reported: make(chan struct{}, 1)}
	p.metrics = newMetrics(p.registry)
	p.newest.Store(&built{})
	p.status = status.New(cfg.Source.WriteStatus, p.log)
	if p.cfg.Replica == "" {
		p.cfg.Replica, _ = os.Hostname()
	}
	peers, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for peers: %w", err)
	}
	admin, err := p.listenAdmin()
	if err != nil {
		return errors.Join(err, peers.Close())
	}
	if cfg.Listening != nil {
		var at net.Addr
		if admin != nil {
			at = admin.Addr()
		}
		cfg.Listening(peers.Addr(), at)
	}
	g := run.NewGroup(ctx)
	if admin != nil {
		g.Go("metrics", func(ctx context.Context) error { return p.admin(ctx, admin) })
	}
	g.Go("source", cfg.Source.Run)
	g.Go("control plane", func(ctx context.Context) error { return p.run(ctx, peers) })
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// run starts, once the source has shown the world for the first time, what
// needs to know its trust domain.
func (p *plane) run(ctx context.Context, peers net.Listener) error {
	defer peers.Close()
	if err := p.firstSnapshot(ctx); err != nil {
		return err
	}
	var err error
	if p.domain, err = p.trustDomain(p.cfg.Source.Snapshot()); err != nil {
		return err
	}
	if err := p.openCA(ctx); err != nil {
		return err
	}
	roots := p.ca.Changed()
	wait, err := p.renewOwn()
	if err != nil {
		return err
	}
	g := run.NewGroup(ctx)
	g.Go("certificate authority", func(ctx context.Context) error {
		if err := p.ca.Run(ctx); err != nil {
			return err
		}
		return ctx.Err()
	})
	g.Go("own identity", func(ctx context.Context) error { return p.keepOwn(ctx, wait, roots) })
	g.Go("builder", p.build)
	g.Go("problems", p.report)
	g.Go("status", func(ctx context.Context) error {
		p.cfg.Source.Lead(ctx, statusLease, p.lead)
		return ctx.Err()
	})
	server := serve.New(serve.Config{Listener: peers, TrustDomain: p.domain, Identity: p.identity, Authority: p.ca,
		Tokens: p.cfg.Source, Worlds: p.worlds, Replica: p.cfg.Replica, Version: run.Version, Log: p.log, Metrics: p.registry})
	g.Go("serve", func(ctx context.Context) error {
		p.serving.Store(true)
		defer p.serving.Store(false)
		return server.Run(ctx)
	})
	return g.Wait()
}

func (p *plane) firstSnapshot(ctx context.Context) error {
	for p.cfg.Source.Snapshot() == nil {
		select {
		case <-p.cfg.Source.Changed():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// caRetry is the pause after the authority could not be opened in its Secret:
// an API server that hiccups is back by then.
const caRetry = 2 * time.Second

// openCA opens the authority. What is wrong with a folder ends the program; a
// Secret is tried again, since it is mended without us, and /ready says why we
// wait: a crash loop would only look for it ever more rarely.
func (p *plane) openCA(ctx context.Context) error {
	inSecret, told := p.cfg.CASecret.Name != "", ""
	for {
		var err error
		p.ca, err = ca.Open(ctx, ca.Config{TrustDomain: p.domain, Storage: p.storage(), Witness: p.witness, Restore: inSecret, Log: p.log})
		if err == nil || !inSecret || ctx.Err() != nil {
			return err
		}
		text := err.Error()
		p.waits.Store(&text)
		if text != told {
			told = text
			p.log.Error("not serving before the authority is there", "again_in", caRetry.String(), "error", err)
		}
		t := time.NewTimer(caRetry)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// trustDomain is MeshConfig's, if it names one, else the flag's. It holds for
// the life of the process.
func (p *plane) trustDomain(snap *source.Snapshot) (spiffeid.TrustDomain, error) {
	name := p.cfg.TrustDomain
	if snap.Mesh != nil && snap.Mesh.Spec.TrustDomain != "" {
		name = snap.Mesh.Spec.TrustDomain
	}
	td, err := spiffeid.TrustDomainFromString(name)
	if err != nil {
		return td, fmt.Errorf("trust domain %q: %w", name, err)
	}
	return td, nil
}

// ownRetry is the pause after we could not sign for ourselves: the authority's
// storage may be in trouble, and half a certificate's life is left.
const ownRetry = 30 * time.Second

// renewOwn signs our own SVID, trusts the authority's roots, and says when to
// do so again.
func (p *plane) renewOwn() (time.Duration, error) {
	id, err := spiffeid.FromSegments(p.domain, "ns", "heddle-system", "sa", "heddle-controlplane")
	if err != nil {
		return 0, fmt.Errorf("own identity: %w", err)
	}
	chain, key, err := p.ca.Issue(ca.Subject{ID: id, PodUID: os.Getenv("POD_UID"), Pod: p.cfg.Replica})
	if err != nil {
		return 0, fmt.Errorf("sign own identity: %w", err)
	}
	if err := p.trust(); err != nil {
		return 0, err
	}
	if err := p.identity.SetSVID(chain, key); err != nil {
		return 0, fmt.Errorf("take own identity: %w", err)
	}
	return time.Until(chain[0].NotAfter) / 2, nil
}

// trust puts the authority's roots into force for peers that connect.
func (p *plane) trust() error {
	if err := p.identity.SetBundles(p.roots()); err != nil {
		return fmt.Errorf("trust own roots: %w", err)
	}
	return nil
}

// keepOwn renews our own SVID at half its life, and at once when the roots
// change: the newest intermediate signs what new peers are to trust.
func (p *plane) keepOwn(ctx context.Context, wait time.Duration, roots <-chan struct{}) error {
	for {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-roots:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		t.Stop()
		roots = p.ca.Changed()
		var err error
		if wait, err = p.renewOwn(); err != nil {
			p.log.Error("cannot renew our own identity", "again_in", ownRetry.String(), "error", err)
			wait = ownRetry
		}
	}
}

// bundles is what peers are told to trust.
func (p *plane) bundles() *pb.TrustBundles {
	return &pb.TrustBundles{Bundles: []*pb.TrustBundle{p.ca.Bundle()}}
}

// build makes a World of each newest snapshot; snapshots that come while it
// works are skipped but the last.
func (p *plane) build(ctx context.Context) error {
	var world *state.World
	for {
		roots := p.ca.Changed()
		snap := p.settled(p.cfg.Source.Snapshot())
		began := time.Now()
		world = state.Build(world, snap, state.Options{TrustDomain: p.domain.Name(), ClusterDomain: p.cfg.ClusterDomain, Roots: p.bundles()})
		p.worlds.Set(world)
		problems := world.Problems()
		p.newest.Store(&built{snap, problems})
		p.metrics.built(world.Revision(), len(problems), time.Since(began))
		select {
		case p.reported <- struct{}{}:
		default:
		}
		select {
		case <-p.cfg.Source.Changed():
		case <-roots:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// settled is the snapshot under the trust domain that this process began with:
// certificates of another would need another authority.
func (p *plane) settled(snap *source.Snapshot) *source.Snapshot {
	if snap.Mesh == nil || snap.Mesh.Spec.TrustDomain == "" || snap.Mesh.Spec.TrustDomain == p.domain.Name() {
		return snap
	}
	copied, mesh := *snap, *snap.Mesh
	mesh.Spec.TrustDomain = p.domain.Name()
	copied.Mesh = &mesh
	copied.Problems = append(copied.Problems[:len(copied.Problems):len(copied.Problems)], source.Problem{
		Ref: source.Ref{Kind: "MeshConfig", Name: mesh.Name}, Field: "spec.trustDomain",
		Err: fmt.Sprintf("the control plane runs with trust domain %s and cannot change to %s", p.domain.Name(), snap.Mesh.Spec.TrustDomain),
		Fix: "restart the control plane with an empty CA folder, knowing that all identities change",
	})
	return &copied
}
