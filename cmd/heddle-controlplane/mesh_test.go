package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane"
	"github.com/heddle-mesh/heddle/internal/control"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// patience bounds each wait of these tests; they take milliseconds where all
// is well.
const patience = 20 * time.Second

// folder is a world of manifests with its token issuer.
type folder struct {
	t   *testing.T
	dir string
	key *ecdsa.PrivateKey
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := &folder{t: t, dir: t.TempDir(), key: key}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	jwks, err := json.Marshal(map[string]any{"keys": []any{map[string]string{"kty": "EC", "crv": "P-256", "kid": "k", "alg": "ES256", "use": "sig", "x": b64(point[1:33]), "y": b64(point[33:])}}})
	if err != nil {
		t.Fatal(err)
	}
	f.write("jwks.json", string(jwks))
	f.write("shop.yaml", `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: orders, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ports: [{name: http, port: 80, targetPort: 8080}]
  selector: {app: orders}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: shop}
`)
	f.pod("web", "web-1", "uid-web", "10.244.0.5")
	return f
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// write replaces a file whole.
func (f *folder) write(name, text string) {
	f.t.Helper()
	tmp := filepath.Join(f.dir, "."+name+".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) pod(app, name, uid, ip string) {
	f.t.Helper()
	f.write(name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop, uid: %s, labels: {app: %s}, annotations: {heddle.dev/status: '{}'}}
spec: {serviceAccountName: %s, nodeName: n1, containers: [{name: app, image: app}]}
status:
  phase: Running
  podIP: %s
  podIPs: [{ip: %s}]
  conditions: [{type: Ready, status: "True"}]
`, name, uid, app, app, ip, ip))
}

// slice writes the endpoints of orders, ready ones.
func (f *folder) slice(ips ...string) {
	f.t.Helper()
	var b strings.Builder
	b.WriteString("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: orders-1, namespace: shop, labels: {kubernetes.io/service-name: orders}}\naddressType: IPv4\nports: [{name: http, port: 8080, protocol: TCP}]\nendpoints:\n")
	for _, ip := range ips {
		fmt.Fprintf(&b, "- {addresses: [%s], conditions: {ready: true, serving: true, terminating: false}, nodeName: n1}\n", ip)
	}
	f.write("orders-slice.yaml", b.String())
}

// token is a projected token of web-1, changed before it is signed by key.
func (f *folder) token(key *ecdsa.PrivateKey, change func(claims, pod map[string]any)) string {
	f.t.Helper()
	now := time.Now()
	pod := map[string]any{"name": "web-1", "uid": "uid-web"}
	claims := map[string]any{"aud": []string{"heddle.dev/controlplane"}, "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"sub":           "system:serviceaccount:shop:web",
		"kubernetes.io": map[string]any{"namespace": "shop", "pod": pod, "serviceaccount": map[string]any{"name": "web"}}}
	if change != nil {
		change(claims, pod)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		f.t.Fatal(err)
	}
	text := b64([]byte(`{"alg":"ES256","kid":"k"}`)) + "." + b64(body)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		f.t.Fatal(err)
	}
	return text + "." + b64(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// program is the whole control plane, as main runs it.
type program struct {
	t              *testing.T
	peers, metrics string
	stop           func()
}

func start(t *testing.T, f *folder, caDir, listen string) *program {
	t.Helper()
	return startWith(t, "--source=files:"+f.dir, "--listen="+listen, "--ca-dir="+caDir)
}

func startWith(t *testing.T, args ...string) *program {
	t.Helper()
	p := begin(t, args...)
	eventually(t, "ready", func() bool { status, _ := p.get("/ready"); return status == http.StatusOK })
	return p
}

// begin starts a control plane that may not become ready.
func begin(t *testing.T, args ...string) *program {
	t.Helper()
	cfg, err := parse(append(args, "--metrics=127.0.0.1:0", "--trust-domain=demo.test", "--log-level=debug"), io.Discard, testLog{t})
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t}
	up := make(chan struct{})
	cfg.Listening = func(peers, metrics net.Addr) {
		p.peers, p.metrics = peers.String(), metrics.String()
		close(up)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- controlplane.Run(ctx, *cfg) }()
	var once atomic.Bool
	p.stop = func() {
		if once.Swap(true) {
			return
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(p.stop)
	select {
	case <-up:
	case err := <-done:
		t.Fatal(err)
	}
	return p
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(string(bytes.TrimSpace(b)))
	return len(b), nil
}

func (p *program) get(path string) (int, string) {
	res, err := http.Get("http://" + p.metrics + path)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %s: %s", patience, what)
}

// sidecar is a client of the control plane in web-1.
type sidecar struct {
	*control.Client[[]string]
	id       *identity.Store
	registry *telemetry.Registry
	inbound  atomic.Pointer[pb.InboundPolicy]
	compiled atomic.Int64
	stop     func()
}

func newSidecar(t *testing.T, caDir, address, token string) *sidecar {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(caDir, "roots.pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	s := &sidecar{id: identity.NewStore(), registry: telemetry.NewRegistry("test")}
	s.Client = control.New(control.Config[[]string]{Address: address, TrustDomain: "demo.test", TokenFile: file,
		Roots: []*x509.Certificate{root}, Identity: s.id, Version: "test", Metrics: s.registry,
		Log:       slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnInbound: func(p *pb.InboundPolicy) { s.inbound.Store(p) },
		Compile: func(_ []string, d *pb.Destination) []string {
			s.compiled.Add(1)
			if d.GetExternal() != nil {
				return []string{"external"}
			}
			var out []string
			for _, e := range d.GetService().GetEndpoints() {
				out = append(out, net.IP(e.Address).String()+" "+e.GetPeer().GetIdentity())
			}
			slices.Sort(out)
			return out
		}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once atomic.Bool
	s.stop = func() {
		if once.Swap(true) {
			return
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("sidecar: %v", err)
		}
	}
	t.Cleanup(s.stop)
	return s
}

func (s *sidecar) waitReady(t *testing.T) {
	t.Helper()
	select {
	case <-s.Ready():
	case <-time.After(patience):
		t.Fatalf("the sidecar is not ready: %+v", s.State())
	}
}
