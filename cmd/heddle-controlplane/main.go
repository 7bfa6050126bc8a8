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
	"github.com/heddle-mesh/heddle/internal/source"
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
	src := fs.String("source", "", "where the world comes from: `kube`, the API server, or files:DIR, a folder of manifests")
	kubeconfig := fs.String("kubeconfig", "", "`file` that says where the API server is; empty: the pod's own service account (source kube)")
	secret := fs.String("ca-secret", "", "`namespace/name` of the Secret that holds the certificate authority, made if there is none; in place of --ca-dir (source kube)")
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
	isKube := *src == "kube"
	namespace, name, pair := strings.Cut(*secret, "/")
	switch {
	case fs.NArg() > 0:
		return nil, fmt.Errorf("argument %q: only flags are known", fs.Arg(0))
	case !isKube && (!isFiles || dir == ""):
		return nil, fmt.Errorf("--source=%s: want kube or files:DIR", *src)
	case !isKube && *kubeconfig != "":
		return nil, errors.New("--kubeconfig is for --source=kube")
	case (cfg.CADir == "") == (*secret == ""):
		return nil, errors.New("one of --ca-dir and --ca-secret is needed")
	case *secret != "" && (!isKube || !pair || namespace == "" || name == "" || strings.Contains(name, "/")):
		return nil, fmt.Errorf("--ca-secret=%s: want NAMESPACE/NAME, and --source=kube", *secret)
	}
	cfg.CASecret = source.Key{Namespace: namespace, Name: name}
	var err error
	if cfg.Log, err = telemetry.NewLogger(stderr, *level); err != nil {
		return nil, err
	}
	if !isKube {
		cfg.Source = files.New(files.Config{Dir: dir, Log: cfg.Log})
		return &cfg, nil
	}
	if cfg.Source, err = openKube(*kubeconfig, cfg.Log); err != nil {
		return nil, err
	}
	return &cfg, nil
}
