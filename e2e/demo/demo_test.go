package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/driver"
	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// build makes the programs of the mesh and of the shop in a folder.
func build(ctx context.Context, t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	for dir, packages := range map[string][]string{
		bin:                        {"./cmd/..."},
		filepath.Join(bin, "apps"): {"./e2e/apps/..."},
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-o", dir + "/"}, packages...)...)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	return bin
}

// The demo can fail: one replica outside the mesh, and it says that not all
// packets were inside mesh TLS, and that the word was seen.
func TestPlaintextFailsTheDemo(t *testing.T) {
	if testing.Short() {
		t.Log("left out with -short: a whole demo takes half a minute")
		return
	}
	meshtest.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), wholeLimit)
	defer cancel()
	l, err := driver.New("demotest", build(ctx, t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanUpTime)
		defer cancel()
		if err := l.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	d := newDemo(l)
	d.plaintext = true
	d.shopping, d.killAfter, d.scaleAfter = 8*time.Second, 2*time.Second, 4*time.Second
	err = d.run(ctx)
	if err == nil {
		t.Fatal("the demo passes with a replica outside the mesh")
	}
	for _, want := range []string{"packets between pods were not inside mesh TLS", "the secret word was seen"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it does not say that %s:\n%v", want, err)
		}
	}
	// Of all else it may only say that 8 s make few purchases.
	for complaint := range strings.Lines(err.Error()) {
		if !strings.Contains(complaint, "mesh TLS") && !strings.Contains(complaint, "secret word") && !strings.Contains(complaint, "did not keep its rate") {
			t.Errorf("it fails for another reason: %s", complaint)
		}
	}
}
