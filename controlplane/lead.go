package controlplane

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/controlplane/ca"
	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// trustBundle is the ConfigMap in which the roots stand for those who have
	// no stream yet: the injector puts them into pods, node agents begin with
	// them. rootsKey is its one key.
	trustBundle = "heddle-trust-bundle"
	rootsKey    = "roots.pem"
	// publishEvery looks whether somebody changed or deleted it.
	publishEvery = time.Minute
	// publishRetry is the pause after it could not be written: new pods and
	// nodes wait for it.
	publishRetry = 2 * time.Second
	// publishWait bounds one look and one write.
	publishWait = 10 * time.Second
)

// storage is where the authority lives.
func (p *plane) storage() ca.Storage {
	if s := p.cfg.CASecret; s.Name != "" {
		return ca.Secret(p.cfg.Source, s.Namespace, s.Name)
	}
	return ca.Folder(p.cfg.CADir)
}

// witness tells of roots that were published while the Secret of the
// authority is away: deleted, perhaps, and a new root in its place would be
// refused by every workload.
func (p *plane) witness(ctx context.Context) (string, error) {
	s := p.cfg.CASecret
	if s.Name == "" {
		return "", nil
	}
	data, err := p.cfg.Source.Published(ctx, s.Namespace, trustBundle)
	switch {
	case errors.Is(err, source.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case data[rootsKey] == "":
		return "", nil
	}
	return "ConfigMap " + s.Namespace + "/" + trustBundle, nil
}

// lead does what only one replica may, until ctx ends.
func (p *plane) lead(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { p.status.Run(ctx) })
	if p.cfg.CASecret.Name != "" {
		all.Go(func() { p.publishRoots(ctx) })
	}
	all.Wait()
}

// publishRoots keeps the roots' ConfigMap as the authority has them, until ctx
// ends. A replica that has not read new roots yet is not rolled forward by
// another one's word here, so one of them writes only.
func (p *plane) publishRoots(ctx context.Context) {
	failing := false
	for {
		changed := p.ca.Changed()
		once, cancel := context.WithTimeout(ctx, publishWait)
		err := p.cfg.Source.Publish(once, p.cfg.CASecret.Namespace, trustBundle, map[string]string{rootsKey: string(p.ca.RootsPEM())})
		cancel()
		wait := publishEvery
		if err != nil {
			wait = publishRetry
			if !failing && ctx.Err() == nil {
				p.log.Error("cannot publish the roots: pods that are made now do not get new ones", "again_in", wait.String(), "error", err)
			}
		}
		failing = err != nil
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
