// Command heddle-node programs a node so that Services' addresses lead to their
// endpoints. "run" is the agent; "clean" takes away everything it left on the
// node.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/heddle-mesh/heddle/controlplane/node"
	"github.com/heddle-mesh/heddle/controlplane/node/find"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// exitUsage is for a command line that cannot be understood.
const exitUsage = 2

const usage = `heddle-node programs a node so that Services' addresses lead to their endpoints.

  heddle-node run [flags]     be the agent, until SIGTERM; its rules stay
  heddle-node clean [flags]   take away its rules and what it kept on disk, then end
  heddle-node --version

"heddle-node run --help" lists the flags.
`

const (
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	stateDir       = "/var/lib/heddle"
)

func main() { os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr)) }

// dispatch runs a subcommand and gives the exit code.
func dispatch(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case "run":
		return runAgent(args[1:], stderr)
	case "clean":
		return clean(args[1:], stderr)
	case "--version", "-version", "version":
		fmt.Fprintln(stdout, run.VersionLine("heddle-node"))
		return 0
	case "--help", "-h", "help":
		fmt.Fprint(stdout, usage)
		return 0
	}
	fmt.Fprintf(stderr, "heddle-node: unknown command %q; want run or clean\n", args[0])
	return exitUsage
}

func runAgent(args []string, stderr io.Writer) int {
	cfg := node.Config{Version: run.Version, Node: os.Getenv("NODE_NAME")}
	fs := flag.NewFlagSet("heddle-node run", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&cfg.Node, "node", cfg.Node, "this node's name as Kubernetes knows it (default: NODE_NAME of the environment)")
	fs.StringVar(&cfg.TrustDomain, "trust-domain", "cluster.local", "trust domain of the mesh")
	fs.StringVar(&cfg.StateDir, "state-dir", stateDir, "folder for what was told last, so that the node restarts without the control plane; empty: none")
	fs.StringVar(&cfg.Admin, "admin", ":15022", "address of /ready, /live, /metrics and /debug/services")
	fs.StringVar(&cfg.TokenFile, "token-file", "/var/run/secrets/heddle.dev/token", "projected service account token for the control plane (audience heddle.dev/controlplane)")
	fs.StringVar(&cfg.API.TokenFile, "api-token-file", serviceAccount+"/token", "service account token for the API server")
	fs.StringVar(&cfg.API.CAFile, "api-ca-file", serviceAccount+"/ca.crt", "CA of the API server's certificate")
	servers := fs.String("api-server", "", "real addresses of the API servers, IP:PORT separated by commas; the API's Service address leads there from the start")
	namespace := fs.String("namespace", "heddle-system", "namespace of the control plane")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	if err := fs.Parse(args); err != nil {
		return exitUsage
	}
	log, err := telemetry.NewLogger(stderr, *level)
	if err == nil {
		cfg.API.Servers, err = parseServers(*servers)
	}
	if err == nil {
		err = cfg.Check()
	}
	if err != nil || fs.NArg() > 0 {
		if err == nil {
			err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
		}
		fmt.Fprintf(stderr, "heddle-node run: %v\n", err)
		return exitUsage
	}
	cfg.Log = log
	cfg.API = find.Config{API: apiAddress(), Servers: cfg.API.Servers, CAFile: cfg.API.CAFile, TokenFile: cfg.API.TokenFile,
		Namespace: *namespace, Service: "heddle-controlplane", Port: "grpc", Bundle: "heddle-trust-bundle", BundleKey: "roots.pem"}
	return run.Main(stderr, "heddle-node run", func(ctx context.Context) error { return node.Run(ctx, cfg) })
}

// apiAddress is where the environment says that the API server is.
func apiAddress() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

func parseServers(list string) ([]netip.AddrPort, error) {
	var out []netip.AddrPort
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			return nil, fmt.Errorf("--api-server %q: want IP:PORT, not a name: names need what this agent makes: %w", s, err)
		}
		// An IPv4 address within an IPv6 one is the IPv4 address.
		a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		if ip := a.Addr(); ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" || a.Port() == 0 {
			return nil, fmt.Errorf("--api-server %q: pods cannot reach it there; give the address and port at which other machines do", s)
		}
		out = append(out, a)
	}
	return out, nil
}

func clean(args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet("heddle-node clean", flag.ContinueOnError)
	fs.SetOutput(stderr)
	dir := fs.String("state-dir", stateDir, "folder with what the agent kept; empty: none")
	if err := fs.Parse(args); err != nil {
		return exitUsage
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "heddle-node clean: unexpected argument %q\n", fs.Arg(0))
		return exitUsage
	}
	return run.Main(stderr, "heddle-node clean", func(context.Context) error { return node.Clean(*dir) })
}
