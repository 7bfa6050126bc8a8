package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar"
)

// runSidecar is the sidecar itself and gives the exit code.
func runSidecar(args []string) int {
	c, level, err := sidecarConfig(args, os.Getenv, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "heddle-sidecar run:", err)
		return exitUsage
	}
	log, err := telemetry.NewLogger(os.Stderr, level)
	if err != nil {
		fmt.Fprintln(os.Stderr, "heddle-sidecar run:", err)
		return exitUsage
	}
	c.Log = log
	keepWithin(readLimits(os.DirFS("/")), log)
	return run.Main(os.Stderr, "heddle-sidecar run", func(ctx context.Context) error { return sidecar.Run(ctx, c) })
}

// sidecarConfig reads flags and the environment that the injector writes.
func sidecarConfig(args []string, getenv func(string) string, usage io.Writer) (sidecar.Config, string, error) {
	c := sidecar.Config{Version: run.Version}
	var level string
	f := flag.NewFlagSet("heddle-sidecar run", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&c.ControlPlane, "control-plane", "", "HOST:PORT of the control plane")
	f.StringVar(&c.TrustDomain, "trust-domain", "", "trust domain of the mesh")
	f.StringVar(&c.TokenFile, "token", "/var/run/secrets/heddle.dev/token", "file of the projected service account token")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&c.Admin, "admin", fmt.Sprintf(":%d", redirect.AdminPort), "address of readiness and metrics")
	f.DurationVar(&c.LameDuck, "lame-duck", sidecar.DefaultLameDuck, "how long to take new connections after SIGTERM, if any are still open")
	f.DurationVar(&c.DrainTimeout, "drain-timeout", sidecar.DefaultDrainTimeout, "when to break off what is still open after SIGTERM")
	f.IntVar(&c.MaxConnections, "max-connections", 0, "open connections of each direction (0: 16384)")
	if err := f.Parse(args); err != nil {
		return c, "", err
	}
	if f.NArg() > 0 {
		return c, "", fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	c.Pod, c.Namespace, c.PodUID, c.Node = getenv("POD_NAME"), getenv("POD_NAMESPACE"), getenv("POD_UID"), getenv("NODE_NAME")
	c.Service, c.ServiceVersion = getenv("HEDDLE_SERVICE_NAME"), getenv("HEDDLE_SERVICE_VERSION")
	for _, text := range strings.FieldsFunc(getenv("POD_IPS"), func(r rune) bool { return r == ',' || r == ' ' }) {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return c, "", fmt.Errorf("POD_IPS: %w", err)
		}
		c.PodIPs = append(c.PodIPs, ip.Unmap())
	}
	roots, err := parseRoots([]byte(getenv("HEDDLE_TRUST_BUNDLE")))
	if err != nil {
		return c, "", fmt.Errorf("HEDDLE_TRUST_BUNDLE: %w", err)
	}
	c.Roots = roots
	return c, level, c.Check()
}

func parseRoots(text []byte) ([]*x509.Certificate, error) {
	var roots []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return roots, nil
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		root, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(roots)+1, err)
		}
		roots = append(roots, root)
	}
}
