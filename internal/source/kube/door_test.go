package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
	"github.com/heddle-mesh/heddle/internal/source"
)

// TestMain takes client-go's brake on its own error log away: it compares with
// the time of the last error, which may be of another bubble, years from now.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

// door is a running Source over a server of the test, in a bubble.
type door struct {
	*Source
	t      *testing.T
	server *kubeapi.Server
	log    *logged
}

// bubble runs f with a server that knows our kinds, and a door that is not
// running yet.
func bubble(t *testing.T, f func(t *testing.T, s *kubeapi.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := kubeapi.New(t, kubeapi.Heddle()...)
		s.Apply(t, ns("shop"))
		f(t, s)
	})
}

func at(s *kubeapi.Server) *rest.Config {
	return &rest.Config{Host: "http://api", Dial: s.Dial}
}

// make gives a door; stop ends it before the bubble does.
func open(t *testing.T, s *kubeapi.Server, cfg Config) *door {
	t.Helper()
	l := &logged{}
	cfg.Log = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
	src, err := newSource(cfg, at(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return &door{src, t, s, l}
}

// start runs a door until the test ends.
func start(t *testing.T, s *kubeapi.Server) *door {
	t.Helper()
	d := open(t, s, Config{})
	d.run()
	d.until("the first snapshot", func(*source.Snapshot) bool { return true })
	return d
}

func (d *door) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			began := time.Now()
			if err := <-done; err != nil {
				d.t.Errorf("Run: %v", err)
			}
			if took := time.Since(began); took > time.Second {
				d.t.Errorf("Run took %v to end", took)
			}
		})
	}
	d.t.Cleanup(stop)
	return stop
}

// until waits for a snapshot; time is the bubble's.
func (d *door) until(what string, ok func(*source.Snapshot) bool) *source.Snapshot {
	d.t.Helper()
	end := time.After(5 * time.Minute)
	for {
		if s := d.Snapshot(); s != nil && ok(s) {
			return s
		}
		select {
		case <-d.Changed():
		case <-end:
			d.t.Fatalf("no %s; have %s\n%s", what, show(d.Snapshot()), d.log)
		}
	}
}

// within is until, and says that it did not take longer.
func (d *door) within(limit time.Duration, what string, ok func(*source.Snapshot) bool) *source.Snapshot {
	d.t.Helper()
	began := time.Now()
	s := d.until(what, ok)
	if took := time.Since(began); took > limit {
		d.t.Errorf("%s took %v, want %v at most", what, took, limit)
	}
	return s
}

// rest lets everything settle.
func (d *door) rest() {
	time.Sleep(2 * holdOff)
	synctest.Wait()
}

func show(s *source.Snapshot) string {
	if s == nil {
		return "nothing"
	}
	return fmt.Sprintf("revision %d namespaces %d pods %d policies %d broken %v problems %v mesh %v", s.Revision, len(s.Namespaces), len(s.Pods), len(s.AccessPolicies), s.BrokenPolicies, s.Problems, s.Mesh)
}

type logged struct {
	mu   sync.Mutex
	text []byte
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

func ns(name string) string {
	return "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n"
}

func pod(name, ip string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop}\nspec: {nodeName: n1, serviceAccountName: a}\nstatus: {phase: Running, podIP: %s}\n", name, ip)
}

func policy(name, action string) string {
	return fmt.Sprintf("---\napiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: %s, namespace: shop}\nspec: {selector: {app: web}, rules: [{action: %s}]}\n", name, action)
}

func mesh(mode string) string {
	return "---\napiVersion: heddle.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: default}\nspec: {mtls: " + mode + "}\n"
}

func has(name string) func(*source.Snapshot) bool {
	return func(s *source.Snapshot) bool { return s.Namespaces[name] != nil }
}

func hasPod(name string) func(*source.Snapshot) bool {
	return func(s *source.Snapshot) bool {
		return s.Pods[source.Key{Namespace: "shop", Name: name}] != nil
	}
}

func not(f func(*source.Snapshot) bool) func(*source.Snapshot) bool {
	return func(s *source.Snapshot) bool { return !f(s) }
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func decoder(b *bounded) *json.Decoder { return json.NewDecoder(b) }

// Several files, as $KUBECONFIG lists them, are one; some may be missing.
func TestSeveralKubeconfigs(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	list := strings.Join([]string{filepath.Join(dir, "none"),
		file("a", "contexts: [{name: here, context: {cluster: c}}]\ncurrent-context: here\n"),
		file("b", "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}, {name: d, cluster: {server: 'http://127.0.0.1:2'}}]\ncontexts: [{name: there, context: {cluster: d}}]\ncurrent-context: there\n"),
	}, string(filepath.ListSeparator))
	for context, want := range map[string]string{"": "127.0.0.1:1", "there": "127.0.0.1:2"} {
		s, err := New(Config{Kubeconfig: list, Context: context})
		if err != nil {
			t.Fatal(err)
		}
		if s.Host() != want {
			t.Errorf("context %q: %s, want %s", context, s.Host(), want)
		}
	}
}
