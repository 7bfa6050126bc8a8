// Package ca is Heddle's own certificate authority: a root and an intermediate
// in a Storage that replicas can share, and X.509-SVIDs signed by the latter.
//
// It does not know who asks: controlplane/serve proves the caller and passes
// the names; nothing named in a request is believed. It never makes a new root
// where one may have been: a damaged storage is an error, for a silent new root
// would cut off the whole mesh.
package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// DefaultTTL of SVIDs: peers renew at half of it, so a control plane may
	// be away for twelve hours before an identity runs out.
	DefaultTTL = 24 * time.Hour

	rootLife   = 10 * 365 * 24 * time.Hour
	issuerLife = 365 * 24 * time.Hour // renewed at half
	// backdate covers clocks of the mesh that are behind ours.
	backdate = 5 * time.Minute
	// reloadEvery bounds how long a replica signs without knowing what another
	// one changed, a new root above all.
	reloadEvery = 30 * time.Second
	// maxTTL keeps an SVID well within an issuer's second half of life.
	maxTTL = 90 * 24 * time.Hour
	// attempts to write against other replicas. Each conflict means that one
	// of them succeeded, and they write a few times a year.
	attempts = 5
)

// Config of a CA.
type Config struct {
	TrustDomain spiffeid.TrustDomain
	Storage     Storage // Folder(path)
	// Witness looks where the roots stand besides the storage: one that is
	// empty, while there are roots elsewhere, was lost and is not a beginning.
	// It says where they are; "": nowhere. nil: they are nowhere else.
	Witness func(ctx context.Context) (where string, err error)
	// Restore writes the authority back where somebody deleted it while we
	// run. Not for a folder: one that is gone may be a volume that is away.
	Restore bool
	TTL     time.Duration // of SVIDs; zero: DefaultTTL
	Log     *slog.Logger
}

// Subject is the proven caller.
type Subject struct {
	ID     spiffeid.ID
	PodUID string // goes into the subject's serialNumber; empty: none
	Pod    string // <pod>.<namespace>; goes into the common name, cut to 64 bytes
}

// CA signs. Safe for concurrent use.
type CA struct {
	cfg     Config
	log     *slog.Logger
	current atomic.Pointer[authority]

	mu      sync.Mutex // one change of the storage at a time
	changed atomic.Pointer[chan struct{}]
}

// Open reads the authority, or makes it where the storage is empty. Anything
// in between is an error that names the file and the fix.
func Open(ctx context.Context, cfg Config) (*CA, error) {
	if cfg.TrustDomain.IsZero() || cfg.Storage == nil {
		return nil, errors.New("open CA: trust domain and storage are needed")
	}
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	if cfg.TTL < 0 || cfg.TTL > maxTTL {
		return nil, fmt.Errorf("open CA: SVID lifetime %s is out of range, want up to %s", cfg.TTL, maxTTL)
	}
	c := &CA{cfg: cfg, log: telemetry.Discard(cfg.Log)}
	first := make(chan struct{})
	c.changed.Store(&first)
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.load(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		err = c.create(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("open CA: %w", err)
	}
	if err := c.renew(ctx); err != nil {
		return nil, fmt.Errorf("open CA: %w", err)
	}
	if err := c.publish(ctx); err != nil {
		return nil, fmt.Errorf("open CA: %w", err)
	}
	return c, nil
}

// Run takes in what other replicas write and renews the intermediate at half
// its life, until ctx ends. What goes wrong is logged and tried again; signing
// goes on with what is known.
func (c *CA) Run(ctx context.Context) error {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := c.upkeep(ctx); err != nil && ctx.Err() == nil {
				c.log.Error("certificate authority's storage", "err", err)
			}
		}
	}
}

func (c *CA) upkeep(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.load(ctx); err != nil {
		return err
	}
	if err := c.renew(ctx); err != nil {
		return err
	}
	return c.publish(ctx)
}

// load takes what the storage holds. c.mu is held.
func (c *CA) load(ctx context.Context) error {
	where := c.cfg.Storage.Where(authorityFile)
	data, version, err := c.cfg.Storage.Read(ctx, authorityFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.missing(ctx, where, err)
	case err != nil:
		return fmt.Errorf("read %s: %w", where, err)
	}
	now := c.current.Load()
	if now != nil && now.version == version {
		return nil
	}
	next, err := parseAuthority(data, version, c.cfg.TrustDomain)
	if err != nil {
		return damaged(where, err)
	}
	if now != nil && !next.sharesRoot(now) {
		return fmt.Errorf("%s: holds none of the roots the mesh trusts now; put the old file back, or restart the control plane to begin anew with these roots", where)
	}
	c.take(next)
	return nil
}

// missing tells an empty storage (fs.ErrNotExist stays in the chain) from one
// that has lost its authority.
func (c *CA) missing(ctx context.Context, where string, cause error) error {
	if a := c.current.Load(); a != nil && c.cfg.Restore {
		return c.restore(ctx, a)
	} else if a != nil {
		return damaged(where, errors.New("it is gone"))
	}
	_, _, err := c.cfg.Storage.Read(ctx, rootsFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.elsewhere(ctx, where, cause)
	case err != nil:
		return fmt.Errorf("read %s: %w", c.cfg.Storage.Where(rootsFile), err)
	}
	return damaged(where, fmt.Errorf("it is missing, but %s says that there was one", c.cfg.Storage.Where(rootsFile)))
}

// restore writes back what was deleted; where another replica is first, the
// next look reads what it wrote.
func (c *CA) restore(ctx context.Context, a *authority) error {
	again := *a
	err := c.write(ctx, &again, "")
	if err == nil {
		c.log.Warn("the authority was deleted and is written back as it was", "to", c.cfg.Storage.Where(authorityFile))
	}
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// elsewhere asks the witness about a storage that is empty.
func (c *CA) elsewhere(ctx context.Context, where string, cause error) error {
	if c.cfg.Witness == nil {
		return fmt.Errorf("read %s: %w", where, cause)
	}
	roots, err := c.cfg.Witness(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("look whether there were roots before: %w", err)
	case roots == "":
		return fmt.Errorf("read %s: %w", where, cause)
	}
	// Another replica may have made both since we looked.
	data, version, err := c.cfg.Storage.Read(ctx, authorityFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return damaged(where, fmt.Errorf("it is missing, but %s holds the roots that the mesh trusts (to start again, delete that too)", roots))
	case err != nil:
		return fmt.Errorf("read %s: %w", where, err)
	}
	a, err := parseAuthority(data, version, c.cfg.TrustDomain)
	if err != nil {
		return damaged(where, err)
	}
	c.take(a)
	return nil
}

func damaged(where string, cause error) error {
	return fmt.Errorf("%s: %w. No new root is made in its place, since every workload would refuse it. "+
		"Restore the file from a backup; only if no workload trusts the old root any more, move the whole storage away and start again", where, cause)
}

// create makes root and intermediate, unless another replica was first.
func (c *CA) create(ctx context.Context) error {
	a, err := newAuthority(c.cfg.TrustDomain, time.Now())
	if err != nil {
		return err
	}
	err = c.write(ctx, a, "")
	if errors.Is(err, ErrConflict) {
		return c.load(ctx)
	}
	if err == nil {
		c.log.Info("made a new root", "trust_domain", c.cfg.TrustDomain.Name(), "until", a.root.NotAfter)
	}
	return err
}

// renew replaces the intermediate in the second half of its life.
func (c *CA) renew(ctx context.Context) error {
	for range attempts {
		a, now := c.current.Load(), time.Now()
		if half := a.issuer.NotBefore.Add(a.issuer.NotAfter.Sub(a.issuer.NotBefore) / 2); now.Before(half) {
			return nil
		}
		next, err := a.withNewIssuer(now)
		if err != nil {
			return err
		}
		if !next.issuer.NotAfter.After(a.issuer.NotAfter) {
			// The root's own end clamps it.
			c.log.Warn("the root ends soon; add a new one", "until", a.root.NotAfter)
			return nil
		}
		err = c.write(ctx, next, a.version)
		if err == nil {
			c.log.Info("renewed the intermediate", "until", next.issuer.NotAfter)
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
		if err := c.load(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("renew the intermediate: %w", ErrConflict)
}

// AddRoot puts one more root into the bundle, on every replica within
// seconds, so that a new root is trusted before it signs. One that is there
// already is no error.
func (c *CA) AddRoot(ctx context.Context, root *x509.Certificate) error {
	if err := checkRoot(root, c.cfg.TrustDomain); err != nil {
		return fmt.Errorf("add root: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for range attempts {
		if err := c.load(ctx); err != nil {
			return fmt.Errorf("add root: %w", err)
		}
		a := c.current.Load()
		if a.has(root) {
			return c.publish(ctx)
		}
		err := c.write(ctx, a.withRoot(root), a.version)
		if err == nil {
			return c.publish(ctx)
		}
		if !errors.Is(err, ErrConflict) {
			return fmt.Errorf("add root: %w", err)
		}
	}
	return fmt.Errorf("add root: %w", ErrConflict)
}

// write stores the authority in place of a version and takes it.
func (c *CA) write(ctx context.Context, a *authority, version string) error {
	data, err := a.encode()
	if err != nil {
		return err
	}
	written, err := c.cfg.Storage.Write(ctx, authorityFile, data, version)
	if err != nil {
		return fmt.Errorf("write %s: %w", c.cfg.Storage.Where(authorityFile), err)
	}
	a.version = written
	c.take(a)
	return nil
}

// publish writes the roots where the injector reads them, if they are not
// there yet: a crash may have come between the two files.
func (c *CA) publish(ctx context.Context) error {
	where := c.cfg.Storage.Where(rootsFile)
	for range attempts {
		want := c.current.Load().rootsPEM
		data, version, err := c.cfg.Storage.Read(ctx, rootsFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read %s: %w", where, err)
		}
		if err == nil && string(data) == string(want) {
			return nil
		}
		_, err = c.cfg.Storage.Write(ctx, rootsFile, want, version)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return fmt.Errorf("write %s: %w", where, err)
		}
	}
	return fmt.Errorf("write %s: %w", where, ErrConflict)
}

// take makes an authority the current one and tells those who wait.
func (c *CA) take(a *authority) {
	old := c.current.Swap(a)
	if old != nil && string(old.rootsPEM) != string(a.rootsPEM) {
		next := make(chan struct{})
		close(*c.changed.Swap(&next))
	}
}

// Bundle is the trust bundle in its wire form; shared, do not change it.
func (c *CA) Bundle() *wire.TrustBundle { return c.current.Load().bundle }

// Roots are the bundle's certificates; shared, do not change them.
func (c *CA) Roots() []*x509.Certificate { return c.current.Load().roots }

// RootsPEM is the bundle as the injector wants it; shared, do not change it.
func (c *CA) RootsPEM() []byte { return c.current.Load().rootsPEM }

// Changed is closed at the next change of the bundle. Ask for it before
// reading the bundle, or a change in between goes unseen.
func (c *CA) Changed() <-chan struct{} { return *c.changed.Load() }
