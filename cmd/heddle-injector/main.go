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
	"github.com/heddle-mesh/heddle/injector/webhook"
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

// settings are the flags before they are understood.
type settings struct {
	cfg                                injector.Config
	source, kubeconfig, webhook        string
	certDir, certSecret, names, bundle string
	native, version                    bool
	level                              string
}

// parse turns flags into a Config; nil if all was said already (--version,
// --help).
func parse(args []string, stdout, stderr io.Writer) (*injector.Config, error) {
	var s settings
	fs := flags(&s, stderr)
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if s.version {
		fmt.Fprintln(stdout, run.VersionLine("heddle-injector"))
		return nil, nil
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("argument %q: only flags are known", fs.Arg(0))
	}
	cfg := &s.cfg
	var err error
	if cfg.Log, err = telemetry.NewLogger(stderr, s.level); err != nil {
		return nil, err
	}
	cfg.Mesh.Classic, cfg.Mesh.Version = !s.native, run.Version
	cfg.Certificate.Names = certNames(s.names)
	if err := s.world(); err != nil {
		return nil, err
	}
	if err := s.certificate(); err != nil {
		return nil, err
	}
	if err := s.roots(); err != nil {
		return nil, err
	}
	return cfg, cfg.Mesh.ValidateFlags()
}

func flags(s *settings, stderr io.Writer) *flag.FlagSet {
	mesh := &s.cfg.Mesh
	fs := flag.NewFlagSet("heddle-injector", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&s.cfg.Listen, "listen", ":15017", "`address` of the webhook (HTTPS, path /inject)")
	fs.StringVar(&s.cfg.Metrics, "metrics", ":15018", "`address` of /metrics, /ready and /live (HTTP)")
	fs.StringVar(&s.source, "source", "", "where namespaces and MeshConfig come from: `kube` (the cluster) or files:DIR")
	fs.StringVar(&s.kubeconfig, "kubeconfig", "", "`file` for --source=kube outside a pod")
	fs.StringVar(&s.certDir, "cert-dir", "", "`folder` with tls.crt and tls.key; if it has none, they are made there, and ca.pem")
	fs.StringVar(&s.certSecret, "cert-secret", "", "`NAMESPACE/NAME` of a Secret in place of --cert-dir; all replicas share it")
	fs.StringVar(&s.names, "cert-names", "", "more `names` and addresses of a certificate we make, comma-separated")
	fs.StringVar(&s.webhook, "webhook-config", "", "`name` of the MutatingWebhookConfiguration whose caBundle is kept right; empty: none")
	fs.StringVar(&s.bundle, "trust-bundle", "", "the mesh's roots: a PEM `file`, or configmap:NAMESPACE/NAME as the control plane publishes it; read again when they change")
	fs.StringVar(&mesh.ControlPlane, "control-plane", "heddle-controlplane.heddle-system.svc:15010", "`host:port` that sidecars dial")
	fs.StringVar(&mesh.TrustDomain, "trust-domain", "cluster.local", "of all identities, where MeshConfig names none")
	fs.StringVar(&mesh.SidecarImage, "sidecar-image", "heddle-sidecar:"+run.Version, "of the containers added")
	fs.StringVar(&mesh.SidecarCommand, "sidecar-command", "/heddle-sidecar", "`path` of the program in that image")
	fs.BoolVar(&s.native, "native", true, "native sidecars (Kubernetes 1.29 and later); false: ordinary containers")
	fs.StringVar(&s.level, "log-level", "info", "debug, info, warn or error")
	fs.BoolVar(&s.version, "version", false, "print the version and end")
	return fs
}

// world opens the source; who has none of Kubernetes cannot ask it for things.
func (s *settings) world() error {
	dir, isFiles := strings.CutPrefix(s.source, "files:")
	switch {
	case s.source == "kube":
		src, publish, err := openKube(s.kubeconfig, s.cfg.Log)
		if err != nil {
			return fmt.Errorf("--source=kube: %w", err)
		}
		s.cfg.Source, s.cfg.LameDuck = src, injector.LameDuck
		if name := s.webhook; name != "" {
			s.cfg.Certificate.Publish = func(ctx context.Context, roots []byte) error {
				return publish(ctx, name, roots)
			}
		}
	case !isFiles || dir == "":
		return fmt.Errorf("--source=%s: want kube or files:DIR", s.source)
	case s.webhook != "":
		return errors.New("--webhook-config needs --source=kube")
	default:
		s.cfg.Source = files.New(files.Config{Dir: dir, Log: s.cfg.Log})
	}
	return nil
}

func (s *settings) certificate() error {
	if (s.certDir == "") == (s.certSecret == "") {
		return errors.New("give --cert-dir or --cert-secret, one of them")
	}
	s.cfg.Certificate.Dir = s.certDir
	if s.certSecret != "" {
		namespace, name, err := object("--cert-secret", s.certSecret)
		if err != nil {
			return err
		}
		s.cfg.Certificate.Secret = &webhook.Secret{Source: s.cfg.Source, Namespace: namespace, Name: name}
	}
	return nil
}

func (s *settings) roots() error {
	text, isConfigMap := strings.CutPrefix(s.bundle, "configmap:")
	switch {
	case isConfigMap:
		namespace, name, err := object("--trust-bundle", text)
		if err != nil {
			return err
		}
		s.cfg.Roots = injector.RootsPublished(s.cfg.Source, namespace, name)
	case s.bundle == "":
		return errors.New("--trust-bundle is needed: a PEM file, or configmap:NAMESPACE/NAME")
	default:
		s.cfg.Roots = injector.RootsFile(s.bundle)
	}
	return nil
}

// object reads NAMESPACE/NAME.
func object(flag, text string) (namespace, name string, err error) {
	namespace, name, _ = strings.Cut(text, "/")
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%s: %q is not NAMESPACE/NAME", flag, text)
	}
	return namespace, name, nil
}

// certNames are the Service's names and this machine's, and what was asked for.
// The API server calls the first.
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
