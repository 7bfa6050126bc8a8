package main

import (
	"bytes"
	"io"
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
	if cfg.Listen != ":15017" || cfg.Metrics != ":15018" || !cfg.Mesh.Classic || cfg.Mesh.ControlPlane != "h:1" || cfg.TrustBundle != "/b" {
		t.Errorf("%+v", cfg)
	}
	if !slices.Contains(cfg.CertNames, "10.0.0.1") || !slices.Contains(cfg.CertNames, "heddle-injector.heddle-system.svc") {
		t.Error(cfg.CertNames)
	}
}

func TestParseRefuses(t *testing.T) {
	good := []string{"--source=files:/w", "--cert-dir=/c", "--trust-bundle=/b"}
	for _, bad := range []string{"--source=kube", "--source=files:", "--cert-dir=", "--trust-bundle=", "--log-level=loud", "--control-plane=h", "--trust-domain=A b", "--sidecar-command=", "--what", "word"} {
		if cfg, err := parse(append(slices.Clone(good), bad), io.Discard, io.Discard); err == nil {
			t.Errorf("%s: %+v", bad, cfg)
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
