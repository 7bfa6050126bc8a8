package client

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// aCluster is a run folder with programs that say how they were called.
func aCluster(t *testing.T) *Cluster {
	t.Helper()
	dir := t.TempDir()
	put := func(name, content string, mode os.FileMode) {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	put("images.json", `{"heddle-controlplane":"heddle/heddle-controlplane:e2e-12","jaeger":"heddle/jaeger:1"}`, 0o644)
	put("tools/kubectl", "#!/bin/sh\necho $KUBECONFIG \"$@\"; cat\n", 0o755)
	put("bin/heddle", "#!/bin/sh\necho half; echo why >&2; exit 3\n", 0o755)
	t.Setenv(EnvDir, dir)
	return Connect(t)
}

func TestCommands(t *testing.T) {
	c := aCluster(t)
	if got, want := c.Kubectl(t, "get", "a b"), filepath.Join(c.Dir(), "kubeconfig")+" get a b\n"; got != want {
		t.Errorf("kubectl was called as %q, want %q", got, want)
	}
	out, err := c.TryHeddle(t.Context(), "policy", "get")
	if err == nil || out != "half\n" || !strings.Contains(err.Error(), "heddle policy get: exit status 3\nwhy") {
		t.Errorf("a failure gives %q and %v; want its words on both channels", out, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.TryKubectl(ctx, "get"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was cancelled", err)
	}
}

func TestImages(t *testing.T) {
	c := aCluster(t)
	if got := c.Image("jaeger"); got != "heddle/jaeger:1" {
		t.Errorf("image %q", got)
	}
	if got := strings.Join(c.InstallArgs(), " "); got != "install --set image.repository=heddle --set image.tag=e2e-12" {
		t.Errorf("heddle %s", got)
	}
}

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, n := time.Now(), 0
		err := poll(t.Context(), func(context.Context) error {
			if n++; n < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil || time.Since(start) != 3*lookAgain {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = poll(ctx, func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errors.New("two pods of three")
		})
		if err == nil || err.Error() != "two pods of three" {
			t.Errorf("error %v, want what was still missing when time was up", err)
		}
	})
}
