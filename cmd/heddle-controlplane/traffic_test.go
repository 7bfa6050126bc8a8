package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/control"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// A TrafficPolicy that is written, mistaken, corrected and removed reaches a
// sidecar that holds the Service, by its stream.
func TestTrafficPolicyReachesSidecars(t *testing.T) {
	f, caDir := newFolder(t), t.TempDir()
	f.slice("10.244.0.7")
	p := start(t, f, caDir, "127.0.0.1:0")
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(f.token(f.key, nil)), 0o600); err != nil {
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
	c := control.New(control.Config[string]{Address: p.peers, TrustDomain: "demo.test", TokenFile: tokenFile,
		Roots: []*x509.Certificate{root}, Identity: identity.NewStore(), Version: "test", Metrics: telemetry.NewRegistry("test"),
		OnInbound: func(*pb.InboundPolicy) {},
		Compile: func(_ string, d *pb.Destination) string {
			port := d.GetService().GetPorts()[0].GetTrafficPolicy()
			return fmt.Sprintf("%s %d", port.GetSource(), port.GetRetry().GetAttempts())
		}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-c.Ready()
	e, err := c.Lookup(t.Context(), netip.MustParseAddr("10.96.0.10"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Release()
	const policy = "apiVersion: heddle.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {name: p, namespace: shop}\nspec: {targetRefs: [{name: orders}], retry: {attempts: %d}}\n"
	for _, tt := range []struct {
		file, want string
		told, bad  bool
	}{
		{"", " 0", false, false}, {fmt.Sprintf(policy, 2), "retry=shop/p 2", true, false}, {fmt.Sprintf(policy, 99), "retry=shop/p 2", false, true},
		{fmt.Sprintf(policy, 3), "retry=shop/p 3", true, false}, {"", " 0", true, false},
	} {
		changed, began := e.Changed(), time.Now()
		if tt.file == "" {
			os.Remove(filepath.Join(f.dir, "policy.yaml"))
		} else {
			f.write("policy.yaml", tt.file)
		}
		if tt.bad {
			eventually(t, "the mistake is known", func() bool { _, text := p.get("/debug/problems"); return strings.Contains(text, "99 is out of bounds") })
		}
		eventually(t, "in force: "+tt.want, func() bool { return e.Load() == tt.want })
		t.Logf("%q after %s", tt.want, time.Since(began).Round(time.Millisecond))
		if tt.told {
			<-changed
		}
	}
}
