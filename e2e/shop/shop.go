// Package shop brings applications into a cluster for the tests there: the
// shop of three services, a till under a load that both keep a ledger of, and
// pods outside the mesh; and asks them what they saw. The manifests are what a
// user brings: they hold nothing of Heddle but labels. It judges nothing.
package shop

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
)

//go:embed manifests
var manifests embed.FS

const (
	// readyLimit is for a rollout of all of a place on a busy machine of two
	// cores.
	readyLimit = 2 * time.Minute
	// goneLimit is for a namespace with pods to be deleted.
	goneLimit = time.Minute
	// ledgers is where pods keep their ledgers on their node, a folder each
	// namespace.
	ledgers = "/var/tmp/heddle-e2e"
)

// Place is a namespace of the cluster with applications in it.
type Place struct {
	*client.Cluster
	Namespace string
}

// Open makes a namespace of one of the manifests and waits until all of it is
// ready. Further pairs are replaced in the manifest. It begins to go away when
// the test ends; nobody waits for that.
func Open(t testing.TB, c *client.Cluster, namespace, manifest string, replace ...string) *Place {
	t.Helper()
	p := &Place{c, namespace}
	c.Kubectl(t, "wait", "--for=delete", "namespace/"+namespace, "--timeout="+goneLimit.String()) // one of before may still go
	p.clearLedgers(t)
	t.Cleanup(func() {
		if !t.Failed() || os.Getenv("KEEP") == "" {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), goneLimit)
			defer cancel()
			if _, err := c.TryKubectl(ctx, "delete", "namespace", namespace, "--ignore-not-found", "--wait=false"); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			p.tell(t)
		}
	})
	p.Add(t, manifest, replace...)
	p.Ready(t)
	return p
}

// Add applies one of the manifests.
func (p *Place) Add(t testing.TB, manifest string, replace ...string) {
	t.Helper()
	b, err := manifests.ReadFile("manifests/" + manifest)
	if err != nil {
		t.Fatal(err)
	}
	p.Apply(t, strings.NewReplacer(append(replace, "NAMESPACE", p.Namespace, "IMAGE", p.Image("e2e-apps"), "LEDGER", p.ledger())...).Replace(string(b)))
}

// Ready waits until all Deployments and DaemonSets of the place are rolled out.
func (p *Place) Ready(t testing.TB) {
	t.Helper()
	limit := "--timeout=" + readyLimit.String()
	for _, what := range strings.Fields(p.Kubectl(t, "-n", p.Namespace, "get", "deployments,daemonsets", "-o", "name")) {
		p.Kubectl(t, "-n", p.Namespace, "rollout", "status", what, limit)
	}
}

// Pods are the names of an application's pods that do not end.
func (p *Place) Pods(t testing.TB, app string) []string {
	t.Helper()
	const notEnding = `go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}} {{end}}{{end}}`
	return strings.Fields(p.Kubectl(t, "-n", p.Namespace, "get", "pods", "-l", "app="+app, "-o", notEnding))
}

// Exec runs a program in an application's container; target is pod/NAME,
// deployment/NAME and so on, its container is named like the application.
func (p *Place) Exec(t testing.TB, target string, argv ...string) string {
	t.Helper()
	out, err := p.TryExec(t.Context(), target, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryExec is Exec for programs that may fail.
func (p *Place) TryExec(ctx context.Context, target string, argv ...string) (string, error) {
	app, _, _ := strings.Cut(path.Base(target), "-")
	return p.TryKubectl(ctx, append([]string{"-n", p.Namespace, "exec", target, "-c", app, "--"}, argv...)...)
}

// Seen is what the program probe's clients print.
type Seen struct {
	OK                        bool
	Err, Reason, Body, Remote string
	Status, Count, Failed     int
	Bytes, Millis             int64
	Answers, Failures         []string
}

// Probe runs a client of the program probe in an application's container.
func (p *Place) Probe(t testing.TB, target string, args ...string) Seen {
	t.Helper()
	s, err := p.TryProbe(t.Context(), target, args...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TryProbe is Probe where the pod itself may be unreachable.
func (p *Place) TryProbe(ctx context.Context, target string, args ...string) (Seen, error) {
	var s Seen
	out, err := p.TryExec(ctx, target, append([]string{"/probe"}, args...)...)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return s, fmt.Errorf("probe %v printed %q: %w", args, out, err)
	}
	return s, nil
}

// tell writes what helps to understand a failure into the test's log, and the
// sidecars' logs into the cluster's folder.
func (p *Place) tell(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), goneLimit)
	defer cancel()
	for _, args := range [][]string{{"get", "pods", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp", "--field-selector=type=Warning"}} {
		out, err := p.TryKubectl(ctx, append([]string{"-n", p.Namespace}, args...)...)
		t.Log(out, err)
	}
	dir := path.Join(p.Dir(), "logs", p.Namespace)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Log(err)
		return
	}
	for _, ns := range []string{p.Namespace, client.Namespace} {
		pods, err := p.TryKubectl(ctx, "-n", ns, "get", "pods", "-o", "name")
		if err != nil {
			t.Log(err)
		}
		for _, pod := range strings.Fields(pods) {
			out, _ := p.TryKubectl(ctx, "-n", ns, "logs", pod, "--all-containers", "--prefix", "--tail=2000")
			if err := os.WriteFile(path.Join(dir, ns+"-"+path.Base(pod)+".log"), []byte(out), 0o644); err != nil {
				t.Log(err)
			}
		}
	}
	t.Log("logs are in", dir)
}
