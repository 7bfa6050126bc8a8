package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
)

// onServer is the world of newFolder in an API server, which takes the token
// "good" for web-1's.
func onServer(t *testing.T) *kubeapi.Server {
	t.Helper()
	f := newFolder(t)
	s := kubeapi.New(t, kubeapi.Heddle()...)
	s.Review = func(token string, audiences []string) map[string]any {
		if token != "good" || !slices.Equal(audiences, []string{"heddle.dev/controlplane"}) {
			return map[string]any{"error": "invalid bearer token"}
		}
		return map[string]any{"authenticated": true, "audiences": audiences, "user": map[string]any{
			"username": "system:serviceaccount:shop:web",
			"extra":    map[string]any{"authentication.kubernetes.io/pod-name": []string{"web-1"}, "authentication.kubernetes.io/pod-uid": []string{"uid-web"}}}}
	}
	f.slice("10.244.1.1", "10.244.1.2")
	f.pod("orders", "orders-1", "uid-orders", "10.244.1.1")
	paths, _ := filepath.Glob(filepath.Join(f.dir, "*.yaml"))
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(t, string(text))
	}
	return s
}

// TestOnAPIServer: two replicas on one API server share the authority, publish
// the roots, serve sidecars alike and write one status.
func TestOnAPIServer(t *testing.T) {
	s := onServer(t)
	args := []string{"--source=kube", "--kubeconfig=" + s.Kubeconfig(t), "--ca-secret=heddle-system/heddle-ca", "--listen=127.0.0.1:0"}
	a, b := startWith(t, args...), startWith(t, args...)
	var roots string
	eventually(t, "the roots are published", func() bool {
		data, _ := s.Get("configmaps", "heddle-system", "heddle-trust-bundle")["data"].(map[string]any)
		roots, _ = data["roots.pem"].(string)
		return strings.Count(roots, "BEGIN CERTIFICATE") == 1
	})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "roots.pem"), []byte(roots), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*program{a, b} {
		c := newSidecar(t, dir, p.peers, "good")
		c.waitReady(t)
		if leaf := c.id.Leaf(); leaf.URIs[0].String() != "spiffe://demo.test/ns/shop/sa/web" || leaf.Subject.SerialNumber != "uid-web" {
			t.Errorf("identity %v of %v", leaf.URIs, leaf.Subject)
		}
		e, err := c.Lookup(t.Context(), vip)
		if err != nil || len(e.Load()) != 2 || e.Load()[0] != "10.244.1.1 spiffe://demo.test/ns/shop/sa/orders" {
			t.Errorf("orders is %v (%v)", e.Load(), err)
		}
		defer func() {
			eventually(t, "the change arrives", func() bool { return len(e.Load()) == 1 })
		}()
	}
	// One status, by whoever leads.
	s.Apply(t, "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: bad, namespace: shop}\nspec: {rules: [{action: alow}]}\n")
	eventually(t, "the status says what is wrong", func() bool {
		status, _ := s.Get("accesspolicies", "shop", "bad")["status"].(map[string]any)
		list, _ := status["conditions"].([]any)
		if len(list) != 1 {
			return false
		}
		c := list[0].(map[string]any)
		return c["status"] == "False" && strings.Contains(c["message"].(string), "alow") && c["observedGeneration"] == 1.0
	})
	if n := len(s.All("leases")); n != 1 {
		t.Errorf("%d leases", n)
	}
	// A peer whose token the API server does not take gets nothing.
	stranger := newSidecar(t, dir, a.peers, "forged")
	eventually(t, "a forged token is refused", func() bool { return strings.Contains(stranger.State().LastError, "invalid bearer token") })
	s.Apply(t, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: orders-1, namespace: shop, labels: {kubernetes.io/service-name: orders}}\naddressType: IPv4\nports: [{name: http, port: 8080, protocol: TCP}]\nendpoints:\n- {addresses: [10.244.1.2], conditions: {ready: true}}\n")
}

// TestAuthorityDeleted: a control plane that starts while the authority's
// Secret is gone, its roots published, waits and says why; the Secret put back,
// it serves under the old root.
func TestAuthorityDeleted(t *testing.T) {
	s := onServer(t)
	args := []string{"--source=kube", "--kubeconfig=" + s.Kubeconfig(t), "--ca-secret=heddle-system/heddle-ca", "--listen=127.0.0.1:0"}
	a := startWith(t, args...)
	bundle := func() string {
		data, _ := s.Get("configmaps", "heddle-system", "heddle-trust-bundle")["data"].(map[string]any)
		roots, _ := data["roots.pem"].(string)
		return roots
	}
	eventually(t, "the roots are published", func() bool { return bundle() != "" })
	roots, kept := bundle(), s.Get("secrets", "heddle-system", "heddle-ca")
	a.stop()
	s.Delete("secrets", "heddle-system", "heddle-ca")
	b := begin(t, args...)
	eventually(t, "it says what is missing", func() bool {
		status, text := b.get("/ready")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "ConfigMap heddle-system/heddle-trust-bundle holds the roots")
	})
	if s.Get("secrets", "heddle-system", "heddle-ca") != nil {
		t.Error("a new authority was made")
	}
	delete(kept["metadata"].(map[string]any), "resourceVersion")
	kept["apiVersion"], kept["kind"] = "v1", "Secret"
	text, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(t, string(text))
	eventually(t, "ready", func() bool { status, _ := b.get("/ready"); return status == http.StatusOK })
	if bundle() != roots {
		t.Error("another root is published")
	}
}
