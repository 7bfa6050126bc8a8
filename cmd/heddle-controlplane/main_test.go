package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/control"
)

var vip = netip.MustParseAddr("10.96.0.10")

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--source=kube", "--ca-secret=x"}, "want NAMESPACE/NAME"},
		{[]string{"--source=kube", "--ca-secret=x/y/z"}, "want NAMESPACE/NAME"},
		{[]string{"--source=kube", "--ca-secret=x/y", "--ca-dir=z"}, "one of --ca-dir and --ca-secret"},
		{[]string{"--source=kube", "--ca-secret=x/y", "--kubeconfig=/does/not/exist"}, "/does/not/exist"},
		{[]string{"--source=files:", "--ca-dir=x"}, "want kube or files:DIR"},
		{[]string{"--ca-dir=x"}, "want kube or files:DIR"},
		{[]string{"--source=files:x"}, "one of --ca-dir and --ca-secret"},
		{[]string{"--source=files:x", "--ca-secret=x/y"}, "--source=kube"},
		{[]string{"--source=files:x", "--ca-dir=x", "--kubeconfig=y"}, "for --source=kube"},
		{[]string{"--source=files:x", "--ca-dir=x", "--log-level=loud"}, "log level"},
		{[]string{"--source=files:x", "--ca-dir=x", "more"}, "only flags"},
		{[]string{"--no-such"}, "not defined"},
	} {
		if _, err := parse(tt.args, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want …%s…", tt.args, err, tt.want)
		}
	}
	var out bytes.Buffer
	if cfg, err := parse([]string{"--version"}, &out, &out); cfg != nil || err != nil || !strings.HasPrefix(out.String(), "heddle-controlplane ") {
		t.Errorf("--version: %v, %v, %q", cfg, err, out.String())
	}
	cfg, err := parse([]string{"--source=files:x", "--ca-dir=y"}, &out, &out)
	if err != nil || cfg.Listen != ":15010" || cfg.Metrics != ":15014" || cfg.TrustDomain != "cluster.local" || cfg.ClusterDomain != "cluster.local" {
		t.Errorf("defaults: %+v, %v", cfg, err)
	}
}

// From a manifest to a sidecar: identity by a signed token, what stands at a
// VIP, a changed manifest arrives, a control plane that is killed and comes
// back disturbs nothing and sends only what changed.
func TestManifestToSidecar(t *testing.T) {
	f, caDir := newFolder(t), t.TempDir()
	var ips []string
	for i := range 12 {
		ips = append(ips, fmt.Sprintf("10.244.1.%d", i+1))
		f.pod("orders", fmt.Sprintf("orders-%d", i), fmt.Sprintf("uid-orders-%d", i), ips[i])
	}
	f.slice(ips...)
	p := start(t, f, caDir, "127.0.0.1:0")
	s := newSidecar(t, caDir, p.peers, f.token(f.key, nil))
	s.waitReady(t)
	if leaf := s.id.Leaf(); leaf.URIs[0].String() != "spiffe://demo.test/ns/shop/sa/web" || leaf.Subject.SerialNumber != "uid-web" || leaf.Subject.CommonName != "web-1.shop" {
		t.Errorf("identity %v of %v", leaf.URIs, leaf.Subject)
	}
	if in := s.inbound.Load(); in.GetPod() != "web-1" {
		t.Errorf("inbound policy %v", in)
	}
	e, err := s.Lookup(t.Context(), vip)
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Load(); len(got) != 12 || got[0] != "10.244.1.1 spiffe://demo.test/ns/shop/sa/orders" {
		t.Errorf("orders is %v", got)
	}
	// An endpoint goes: a delta.
	f.slice(ips[:11]...)
	eventually(t, "the change arrives", func() bool { return len(e.Load()) == 11 })
	if _, text := p.get("/metrics"); !strings.Contains(text, `heddle_controlplane_pushes_total{form="delta"} 1`) {
		t.Errorf("no delta was sent")
	}
	// Killed, and back with the same content: nothing is sent again.
	p.stop()
	eventually(t, "the loss is noticed", func() bool { return !s.State().Connected })
	if len(e.Load()) != 11 {
		t.Error("what was held is gone")
	}
	before := s.compiled.Load()
	p = start(t, f, caDir, p.peers)
	eventually(t, "reconnected", func() bool { return s.State().Connected })
	// Back again with other content: only that is sent.
	p.stop()
	f.slice(ips[:10]...)
	p = start(t, f, caDir, p.peers)
	eventually(t, "the change made meanwhile arrives", func() bool { return len(e.Load()) == 10 })
	if n := s.compiled.Load() - before; n != 1 {
		t.Errorf("%d updates of destinations after two restarts and one change", n)
	}
	if _, text := p.get("/metrics"); !strings.Contains(text, `heddle_controlplane_pushes_total{form="whole"} 1`) {
		t.Errorf("more than the one changed resource was sent:\n%s", grep(text, "pushes_total"))
	}
	// The pod goes: the stream ends and the identity is not renewed.
	if err := os.Remove(filepath.Join(f.dir, "web-1.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod's stream is closed", func() bool {
		st := s.State()
		return !st.Connected && strings.Contains(st.LastError, "gone")
	})
	if len(e.Load()) != 10 {
		t.Error("what was held is gone")
	}
}

func grep(text, word string) (out string) {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Contains(line, word) {
			out += line + "\n"
		}
	}
	return out
}

// Deltas over the wire leave a sidecar with what a new one gets whole.
func TestDeltasEqualWholes(t *testing.T) {
	f, caDir := newFolder(t), t.TempDir()
	for i := range 30 {
		f.pod("orders", fmt.Sprintf("orders-%d", i), fmt.Sprintf("uid-orders-%d", i), fmt.Sprintf("10.244.1.%d", i+1))
	}
	f.slice("10.244.1.1")
	p := start(t, f, caDir, "127.0.0.1:0")
	old := newSidecar(t, caDir, p.peers, f.token(f.key, nil))
	old.waitReady(t)
	e, err := old.Lookup(t.Context(), vip)
	if err != nil {
		t.Fatal(err)
	}
	r := mrand.New(mrand.NewPCG(3, 4))
	in := map[int]bool{0: true}
	for range 25 {
		for range 1 + r.IntN(3) {
			i := r.IntN(30)
			in[i] = !in[i]
		}
		var ips []string
		for i := range 30 {
			if in[i] {
				ips = append(ips, fmt.Sprintf("10.244.1.%d", i+1))
			}
		}
		f.slice(ips...)
		var want []string
		for _, ip := range ips {
			want = append(want, ip+" spiffe://demo.test/ns/shop/sa/orders")
		}
		slices.Sort(want)
		eventually(t, "the change arrives", func() bool { return slices.Equal(e.Load(), want) })
	}
	fresh := newSidecar(t, caDir, p.peers, f.token(f.key, nil))
	fresh.waitReady(t)
	whole, err := fresh.Lookup(t.Context(), vip)
	if err != nil || !slices.Equal(whole.Load(), e.Load()) {
		t.Errorf("whole %v, %v\nby deltas %v", whole.Load(), err, e.Load())
	}
	if _, text := p.get("/metrics"); strings.Contains(text, `pushes_total{form="delta"} 0`) || !strings.Contains(text, "heddle_controlplane_refused_updates_total 0") {
		t.Error(grep(text, "heddle_controlplane"))
	}
}

// Each bad token is refused, with real signatures, and the message says why.
func TestBadTokens(t *testing.T) {
	f, caDir := newFolder(t), t.TempDir()
	f.pod("orders", "orders-1", "uid-orders", "10.244.0.6")
	p := start(t, f, caDir, "127.0.0.1:0")
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ token, want string }{
		"forged":         {f.token(other, nil), "forged"},
		"expired":        {f.token(f.key, func(c, _ map[string]any) { c["exp"] = time.Now().Add(-time.Minute).Unix() }), "expired"},
		"other audience": {f.token(f.key, func(c, _ map[string]any) { c["aud"] = []string{"vault"} }), "other audience"},
		"another pod":    {f.token(f.key, func(_, pod map[string]any) { pod["name"], pod["uid"] = "orders-1", "uid-orders" }), "other pod's"},
		"pod gone":       {f.token(f.key, func(_, pod map[string]any) { pod["name"], pod["uid"] = "web-9", "uid-9" }), "pod gone"},
		"pod replaced":   {f.token(f.key, func(_, pod map[string]any) { pod["uid"] = "uid-before" }), "other pod's"},
		"no pod":         {f.token(f.key, func(_, pod map[string]any) { clear(pod) }), "not bound to a pod"},
		"no token":       {"nonsense", "malformed"},
	} {
		s := newSidecar(t, caDir, p.peers, tt.token)
		eventually(t, name+": refused with "+tt.want, func() bool { return strings.Contains(s.State().LastError, tt.want) })
		if s.id.Leaf() != nil {
			t.Errorf("%s: got an identity", name)
		}
		s.stop()
	}
}

// A broken document is told of once and written to status; the rest works.
func TestProblems(t *testing.T) {
	f, caDir := newFolder(t), t.TempDir()
	p := start(t, f, caDir, "127.0.0.1:0")
	f.write("bad.yaml", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: bad, namespace: shop}\nspec: {nonsense: true}\n")
	eventually(t, "the problem is listed", func() bool { _, text := p.get("/debug/problems"); return strings.Contains(text, "bad.yaml") })
	status := func() (all string) {
		err := filepath.WalkDir(filepath.Join(f.dir, "status"), func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				b, _ := os.ReadFile(path)
				all += path + "\n" + string(b)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return all
	}
	eventually(t, "it stands in the object's status", func() bool {
		s := status()
		return strings.Contains(s, "Accepted") && strings.Contains(s, "nonsense") && strings.Contains(s, "False")
	})
	s := newSidecar(t, caDir, p.peers, f.token(f.key, nil))
	s.waitReady(t)
	f.write("bad.yaml", "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: bad, namespace: shop}\nspec: {mtls: {mode: strict}}\n")
	eventually(t, "its status is good", func() bool { return strings.Contains(status(), "True") })
	if err := os.Remove(filepath.Join(f.dir, "bad.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the problem goes", func() bool { _, text := p.get("/debug/problems"); return !strings.Contains(text, "bad.yaml") })
	if status, _ := p.get("/live"); status != 200 {
		t.Errorf("/live: %d", status)
	}
}

func TestOutOfReach(t *testing.T) {
	f, caDir := newFolder(t), t.TempDir()
	p := start(t, f, caDir, "127.0.0.1:0")
	s := newSidecar(t, caDir, p.peers, f.token(f.key, nil))
	s.waitReady(t)
	p.stop()
	eventually(t, "the loss is known", func() bool { st := s.State(); return !st.Connected && strings.Contains(st.LastError, "refused") })
	began := time.Now()
	e, err := s.Lookup(context.Background(), netip.MustParseAddr("192.0.2.1"))
	if err != nil || e.Load()[0] != "external" {
		t.Errorf("outside: %v", err)
	}
	if _, err := s.Lookup(context.Background(), vip); !errors.Is(err, control.ErrUnknown) {
		t.Errorf("inside: %v", err)
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("look-ups took %s", d)
	}
}
