package client

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Namespace is where Heddle's own programs run.
	Namespace = "heddle-system"

	// rolloutLimit is for the programs of a fresh install: images are loaded,
	// so it is start-up, leases and readiness.
	rolloutLimit = 90 * time.Second
)

// EnsureHeddle installs Heddle by `heddle install` with this cluster's images
// unless it is installed already, and waits until control plane, injector,
// node agents and CoreDNS are ready. It is safe in every test that needs a
// mesh, from several at once.
func (c *Cluster) EnsureHeddle(t testing.TB) {
	t.Helper()
	unlock, err := lock(filepath.Join(c.dir, "heddle.lock"))
	if err != nil {
		t.Fatalf("install heddle: %v", err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	if _, err := c.TryKubectl(ctx, "-n", Namespace, "get", "deployment/heddle-controlplane", "deployment/heddle-injector", "daemonset/heddle-node"); err != nil {
		if _, err := c.TryHeddle(ctx, c.InstallArgs()...); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.awaitHeddle(ctx); err != nil {
		t.Fatal(err)
	}
}

// InstallArgs is the command that installs Heddle with this cluster's images:
// what a test gives to Heddle when it is the installing that it tests.
func (c *Cluster) InstallArgs() []string {
	return []string{"install", "--set", "image.repository=heddle", "--set", "image.tag=" + c.Tag()}
}

// awaitHeddle waits for every rollout, CoreDNS last: its Service is reached
// only once the node agents forward it.
func (c *Cluster) awaitHeddle(ctx context.Context) error {
	timeout := "--timeout=" + rolloutLimit.String()
	for _, w := range []struct{ ns, what string }{
		{Namespace, "daemonset/heddle-node"},
		{Namespace, "deployment/heddle-controlplane"},
		{Namespace, "deployment/heddle-injector"},
		{"kube-system", "deployment/coredns"},
	} {
		if _, err := c.TryKubectl(ctx, "-n", w.ns, "rollout", "status", w.what, timeout); err != nil {
			pods, _ := c.TryKubectl(ctx, "-n", w.ns, "get", "pods", "-o", "wide")
			return fmt.Errorf("%w%s", err, pods)
		}
	}
	return nil
}

// lock takes a lock among all tests of this cluster.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
