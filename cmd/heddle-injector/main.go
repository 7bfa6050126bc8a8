// Command heddle-injector is the admission webhook that puts sidecars into
// pods.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/heddle-mesh/heddle/injector"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/source/files"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

func main() {
	os.Exit(run.Main(os.Stderr, "heddle-injector", func(ctx context.Context) error {
		cfg, err := parse(os.Args[1:], os.Stdout, os.Stderr)
		if err != nil || cfg == nil {
			return err
		}
		return injector.Run(ctx, *cfg)
	}))
}

// parse turns flags into a Config; nil if all was said already (--version,
// --help).
func parse(args []string, stdout, stderr io.Writer) (*injector.Config, error) {
	var cfg injector.Config
	mesh := &cfg.Mesh
	fs := flag.NewFlagSet("heddle-injector", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&cfg.Listen, "listen", ":15017", "`address` of the webhook (HTTPS, path /inject)")
	fs.StringVar(&cfg.Metrics, "metrics", ":15018", "`address` of /metrics, /ready and /live (HTTP)")
	fs.StringVar(&cfg.CertDir, "cert-dir", "", "`folder` with tls.crt and tls.key; if it has none, they are made there, and ca.pem")
	names := fs.String("cert-names", "", "more `names` and addresses of a certificate we make, comma-separated")
	src := fs.String("source", "", "where namespaces and MeshConfig come from: `files:DIR`")
	fs.StringVar(&mesh.ControlPlane, "control-plane", "heddle-controlplane.heddle-system.svc:15010", "`host:port` that sidecars dial")
	fs.StringVar(&mesh.TrustDomain, "trust-domain", "cluster.local", "of all identities, where MeshConfig names none")
	fs.StringVar(&cfg.TrustBundle, "trust-bundle", "", "PEM `file` with the mesh's roots; read again when it changes")
	fs.StringVar(&mesh.SidecarImage, "sidecar-image", "heddle-sidecar:"+run.Version, "of the containers added")
	fs.StringVar(&mesh.SidecarCommand, "sidecar-command", "/heddle-sidecar", "`path` of the program in that image")
	native := fs.Bool("native", true, "native sidecars (Kubernetes 1.29 and later); false: ordinary containers")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	version := fs.Bool("version", false, "print the version and end")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if *version {
		fmt.Fprintln(stdout, run.VersionLine("heddle-injector"))
		return nil, nil
	}
	dir, isFiles := strings.CutPrefix(*src, "files:")
	switch {
	case fs.NArg() > 0:
		return nil, fmt.Errorf("argument %q: only flags are known", fs.Arg(0))
	case !isFiles || dir == "":
		return nil, fmt.Errorf("--source=%s: want files:DIR", *src)
	case cfg.CertDir == "" || cfg.TrustBundle == "":
		return nil, errors.New("--cert-dir and --trust-bundle are needed")
	}
	var err error
	if cfg.Log, err = telemetry.NewLogger(stderr, *level); err != nil {
		return nil, err
	}
	mesh.Classic, mesh.Version = !*native, run.Version
	cfg.CertNames = certNames(*names)
	cfg.Source = files.New(files.Config{Dir: dir, Log: cfg.Log})
	return &cfg, cfg.Mesh.ValidateFlags()
}

// certNames are the Service's names and this machine's, and what was asked for.
func certNames(more string) []string {
	out := []string{
		"heddle-injector.heddle-system.svc", "heddle-injector.heddle-system.svc.cluster.local",
		"localhost", "127.0.0.1", "::1",
	}
	for n := range strings.SplitSeq(more, ",") {
		if n = strings.TrimSpace(n); n != "" {
			out = append(out, n)
		}
	}
	return out
}
