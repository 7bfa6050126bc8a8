package injector

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/injector/patch"
	"github.com/heddle-mesh/heddle/injector/webhook"
	"github.com/heddle-mesh/heddle/internal/source"
)

var mesh = patch.Config{ControlPlane: "cp:15010", TrustDomain: "cluster.local", SidecarImage: "i", SidecarCommand: "/heddle-sidecar", Version: "v1"}

const root = "-----BEGIN CERTIFICATE-----\naGVkZGxl\n-----END CERTIFICATE-----\n"

// fixed is a source whose world is set by the test.
type fixed struct {
	source.Source
	world atomic.Pointer[source.Snapshot]
}

func (f *fixed) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (f *fixed) Snapshot() *source.Snapshot { return f.world.Load() }

// The whole injector on loopback: not ready until it has a world, a bundle and
// a certificate; then a review over HTTPS, with the roots from ca.pem.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	src := &fixed{}
	rootsPEM, certDir := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "certs")
	cfg := Config{Certificate: webhook.CertConfig{Dir: certDir, Names: []string{"127.0.0.1"}}, Roots: RootsFile(rootsPEM), Source: src, Mesh: mesh}
	reviews, metrics := listen(t), listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- runOn(ctx, cfg, reviews, metrics) }()

	plain := "http://" + metrics.Addr().String()
	await(t, plain+"/ready", "not ready: nothing of the world is known yet")
	src.world.Store(&source.Snapshot{Namespaces: map[string]*source.Namespace{"shop": {Name: "shop", Labels: map[string]string{"heddle.dev/inject": "enabled"}}}})
	await(t, plain+"/ready", "not ready: the trust bundle has not been read yet")
	if err := os.WriteFile(rootsPEM, []byte(root), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, plain+"/ready", "ready")

	pem, err := os.ReadFile(filepath.Join(certDir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	res, err := client.Post("https://"+reviews.Addr().String()+webhook.SelectedPath, "application/json", strings.NewReader(
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"version":"v1","kind":"Pod"},"operation":"CREATE","namespace":"shop","object":{"metadata":{"name":"w"},"spec":{"containers":[{"name":"app"}]}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != http.StatusOK || !strings.Contains(string(text), `"allowed":true`) || !strings.Contains(string(text), `"patch":`) {
		t.Errorf("%s %s", res.Status, text)
	}
	await(t, plain+"/metrics", `heddle_injector_reviews_total{reason="",result="injected"} 1`)

	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Who is to end goes on for those who do not know it yet, not ready any more;
// a part that fails does not wait.
func TestLameDuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		late, stop := afterwards(ctx, LameDuck)
		defer stop()
		if err := (readiness{ending: ctx.Done(), source: &fixed{}}).check(ctx); err == nil || err.Error() == "ending" {
			t.Errorf("before: %v", err)
		}
		cancel()
		if err := (readiness{ending: ctx.Done(), source: &fixed{}}).check(t.Context()); err == nil || err.Error() != "ending" {
			t.Errorf("ready while it ends: %v", err)
		}
		time.Sleep(LameDuck - time.Millisecond)
		if late.Err() != nil {
			t.Error("ended too soon")
		}
		time.Sleep(2 * time.Millisecond)
		if late.Err() == nil {
			t.Error("goes on")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		late, stop := afterwards(t.Context(), LameDuck)
		stop()
		if late.Err() == nil {
			t.Error("goes on after stop")
		}
	})
}

// await polls until a line of the answer begins with want.
func await(t *testing.T, url, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	last := ""
	for ctx.Err() == nil {
		if res, err := http.Get(url); err == nil {
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if last = string(b); strings.Contains("\n"+last, "\n"+want) {
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Fatalf("%s: want %q, last %q", url, want, last)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestReadinessNoticesAStranger(t *testing.T) {
	stranger := listen(t)
	defer stranger.Close()
	go func() {
		for {
			c, err := stranger.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	r := readiness{address: stranger.Addr()}
	if err := r.dial(t.Context()); err == nil {
		t.Error("ready, though somebody else has the port")
	}
}

func TestBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "roots.pem")
		write := func(s string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * bundleCheck)
		}
		b := newBundle(RootsFile(file), mesh, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.run(ctx) }()
		time.Sleep(bundleWait / 2)
		if _, ok := b.mesh(); ok {
			t.Fatal("a bundle out of nothing")
		}
		write("half a fi")
		if _, ok := b.mesh(); ok {
			t.Fatal("a bad bundle was taken")
		}
		write(root)
		if got, ok := b.mesh(); !ok || got.TrustBundle != root || got.ControlPlane != mesh.ControlPlane {
			t.Fatal(got, ok)
		}
		write(strings.ReplaceAll(root, "CERTIFICATE", "PRIVATE KEY"))
		write(strings.Repeat(root, 10_000))
		if got, _ := b.mesh(); got.TrustBundle != root {
			t.Error("a bad bundle took a good one's place")
		}
		write(root + "\n" + root)
		if got, _ := b.mesh(); got.TrustBundle != root+"\n"+root {
			t.Errorf("%q", got.TrustBundle)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * bundleWait)
		if _, ok := b.mesh(); !ok {
			t.Error("lost the bundle with its file")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestBundleNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBundle(RootsFile(filepath.Join(t.TempDir(), "none")), mesh, slog.New(slog.DiscardHandler))
		start := time.Now()
		err := b.run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "does not exist yet") || time.Since(start) != bundleWait {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}
