package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	args := []string{"--source=files:/w", "--cert-dir=/c", "--trust-bundle=/b", "--native=false", "--cert-names=a, 10.0.0.1", "--control-plane=h:1"}
	cfg, err := parse(args, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Listen != ":15017" || cfg.Metrics != ":15018" || !cfg.Mesh.Classic || cfg.Mesh.ControlPlane != "h:1" || cfg.Roots.Where != "file /b" || cfg.Certificate.Dir != "/c" {
		t.Errorf("%+v", cfg)
	}
	if !slices.Contains(cfg.Certificate.Names, "10.0.0.1") || !slices.Contains(cfg.Certificate.Names, "heddle-injector.heddle-system.svc") {
		t.Error(cfg.Certificate.Names)
	}
}

func TestParseRefuses(t *testing.T) {
	good := []string{"--source=files:/w", "--cert-dir=/c", "--trust-bundle=/b"}
	for _, bad := range []string{"--source=sky", "--source=files:", "--webhook-config=x", "--cert-secret=a/b", "--trust-bundle=configmap:x", "--trust-bundle=configmap:a/b/c", "--cert-dir=", "--trust-bundle=", "--log-level=loud", "--control-plane=h", "--trust-domain=A b", "--sidecar-command=", "--what", "word"} {
		if cfg, err := parse(append(slices.Clone(good), bad), io.Discard, io.Discard); err == nil {
			t.Errorf("%s: %+v", bad, cfg)
		}
	}
}

// In a cluster, everything comes from the API server.
func TestParseKube(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: here, context: {cluster: c}}]\ncurrent-context: here\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--source=kube", "--kubeconfig=" + kubeconfig, "--cert-secret=heddle-system/heddle-injector-tls",
		"--trust-bundle=configmap:heddle-system/heddle-trust-bundle", "--webhook-config=heddle-injector"}
	cfg, err := parse(args, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Certificate.Secret.Name != "heddle-injector-tls" || cfg.Certificate.Publish == nil || cfg.Roots.Where != "ConfigMap heddle-system/heddle-trust-bundle" {
		t.Errorf("%+v", cfg)
	}
	for _, bad := range []string{"--cert-secret=x", "--cert-secret=", "--cert-dir=/c", "--trust-bundle=configmap:"} {
		if _, err := parse(append(slices.Clone(args), bad), io.Discard, io.Discard); err == nil {
			t.Error(bad)
		}
	}
}

func TestVersion(t *testing.T) {
	var out bytes.Buffer
	if cfg, err := parse([]string{"--version"}, &out, io.Discard); cfg != nil || err != nil || !strings.HasPrefix(out.String(), "heddle-injector ") {
		t.Error(cfg, err, out.String())
	}
	if cfg, err := parse([]string{"--help"}, io.Discard, io.Discard); cfg != nil || err != nil {
		t.Error(cfg, err)
	}
}
