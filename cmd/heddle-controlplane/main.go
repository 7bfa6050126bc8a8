// Command heddle-controlplane tells the mesh's peers what they need to know
// and gives them their identities.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/heddle-mesh/heddle/controlplane"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/source/files"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

func main() {
	os.Exit(run.Main(os.Stderr, "heddle-controlplane", func(ctx context.Context) error {
		cfg, err := parse(os.Args[1:], os.Stdout, os.Stderr)
		if err != nil || cfg == nil {
			return err
		}
		return controlplane.Run(ctx, *cfg)
	}))
}

// parse turns flags into a Config; nil if all was said already (--version,
// --help).
func parse(args []string, stdout, stderr io.Writer) (*controlplane.Config, error) {
	var cfg controlplane.Config
	fs := flag.NewFlagSet("heddle-controlplane", flag.ContinueOnError)
	fs.SetOutput(stderr)
	src := fs.String("source", "", "where the world comes from: `files:DIR`, a folder of manifests")
	fs.StringVar(&cfg.Listen, "listen", ":15010", "`address` for peers (gRPC over mutual TLS)")
	fs.StringVar(&cfg.Metrics, "metrics", ":15014", "`address` of /metrics, /ready, /live and /debug/problems (HTTP); empty: none")
	fs.StringVar(&cfg.CADir, "ca-dir", "", "`folder` of the certificate authority, made if it is empty; replicas share it")
	fs.StringVar(&cfg.TrustDomain, "trust-domain", "cluster.local", "of all identities, where MeshConfig names none")
	fs.StringVar(&cfg.ClusterDomain, "cluster-domain", "cluster.local", "of Services' DNS names")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	version := fs.Bool("version", false, "print the version and end")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if *version {
		fmt.Fprintln(stdout, run.VersionLine("heddle-controlplane"))
		return nil, nil
	}
	dir, isFiles := strings.CutPrefix(*src, "files:")
	switch {
	case fs.NArg() > 0:
		return nil, fmt.Errorf("argument %q: only flags are known", fs.Arg(0))
	case *src == "kube":
		return nil, errors.New("--source=kube is not built yet: use files:DIR")
	case !isFiles || dir == "":
		return nil, fmt.Errorf("--source=%s: want files:DIR", *src)
	case cfg.CADir == "":
		return nil, errors.New("--ca-dir is needed")
	}
	var err error
	if cfg.Log, err = telemetry.NewLogger(stderr, *level); err != nil {
		return nil, err
	}
	cfg.Source = files.New(files.Config{Dir: dir, Log: cfg.Log})
	return &cfg, nil
}
