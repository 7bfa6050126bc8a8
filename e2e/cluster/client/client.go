// Package client is how tests reach the cluster that `make e2e` made: kubectl,
// the heddle program, commands on nodes, and the names of the images loaded
// into all of them. It makes no cluster and judges nothing. Tests with the
// build tag e2e call it; they run inside the cluster's network namespace.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// EnvDir names the folder of a running cluster, laid out as the Dir… names
// say. `make e2e` sets it for the tests.
const EnvDir = "HEDDLE_E2E_DIR"

// commandLimit bounds one command of the forms that take no context: the
// longest is `heddle install`, which waits for rollouts itself.
const commandLimit = 3 * time.Minute

// Cluster is a running cluster. Its methods without Try end the test when the
// command fails.
type Cluster struct {
	t      testing.TB
	dir    string
	images map[string]string
}

// Connect finds the cluster of EnvDir.
func Connect(t testing.TB) *Cluster {
	t.Helper()
	dir := os.Getenv(EnvDir)
	if dir == "" {
		t.Fatalf("%s is not set: run this by `make e2e RUN=...`", EnvDir)
	}
	c, err := open(dir)
	if err != nil {
		t.Fatalf("connect to the cluster in %s: %v", dir, err)
	}
	c.t = t
	return c
}

// open reads what a run folder says of its cluster.
func open(dir string) (*Cluster, error) {
	b, err := os.ReadFile(filepath.Join(dir, "images.json"))
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if err := json.Unmarshal(b, &c.images); err != nil {
		return nil, fmt.Errorf("read images.json: %w", err)
	}
	return c, nil
}

// Dir is the cluster's run folder: kubeconfig, bin/ (our programs), tools/
// (kubectl, docker's socket beside it) and images.json. What a test writes
// into Dir()/logs stays for who looks into a failure.
func (c *Cluster) Dir() string { return c.dir }

// Image is the full reference of an image in all nodes, by its short name:
// heddle-controlplane, heddle-injector, heddle-sidecar, heddle-node, e2e-apps,
// jaeger. Pods must not pull: imagePullPolicy IfNotPresent or Never.
func (c *Cluster) Image(name string) string {
	ref, ok := c.images[name]
	if !ok {
		c.t.Helper()
		c.t.Fatalf("no image %q in this cluster; there are %v", name, c.images)
	}
	return ref
}

// Tag is the tag that all of Heddle's own images have: what the chart wants as
// image.tag.
func (c *Cluster) Tag() string {
	_, tag, _ := strings.Cut(c.Image("heddle-controlplane"), ":")
	return tag
}

// Kubectl runs kubectl and gives its standard output.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return must(t, "kubectl", args)(c.TryKubectl(limited(t), args...))
}

// TryKubectl is Kubectl for commands that may fail; the error holds what it
// wrote to standard error.
func (c *Cluster) TryKubectl(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, nil, "kubectl", args...)
}

// Heddle runs our CLI and gives its standard output.
func (c *Cluster) Heddle(t testing.TB, args ...string) string {
	t.Helper()
	return must(t, "heddle", args)(c.TryHeddle(limited(t), args...))
}

// TryHeddle is Heddle for commands that may fail; the error holds what it
// wrote to standard error.
func (c *Cluster) TryHeddle(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, nil, "heddle", args...)
}

// Apply applies manifests (server-side, as field manager e2e).
func (c *Cluster) Apply(t testing.TB, yaml string) {
	t.Helper()
	if err := c.TryApply(limited(t), yaml); err != nil {
		t.Fatal(err)
	}
}

// TryApply is Apply for manifests that may be refused.
func (c *Cluster) TryApply(ctx context.Context, yaml string) error {
	_, err := c.run(ctx, strings.NewReader(yaml), "kubectl", "apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "-f", "-")
	return err
}

// Nodes are the names of the nodes, the control plane first. Node i is in zone
// "zone-a", "zone-b", "zone-c" of label topology.kubernetes.io/zone.
func (c *Cluster) Nodes(t testing.TB) []string {
	t.Helper()
	return strings.Fields(c.Kubectl(t, "get", "nodes", "--sort-by=.metadata.creationTimestamp", "-o", "jsonpath={.items[*].metadata.name}"))
}

// OnNode runs a command inside a node and gives its standard output.
func (c *Cluster) OnNode(t testing.TB, node string, argv ...string) string {
	t.Helper()
	return must(t, "on "+node, argv)(c.TryOnNode(limited(t), node, argv...))
}

// TryOnNode is OnNode for commands that may fail. The command lives on in the
// node when ctx ends before it: bound it there, with timeout(1).
func (c *Cluster) TryOnNode(ctx context.Context, node string, argv ...string) (string, error) {
	return c.run(ctx, nil, "docker", append([]string{"exec", node}, argv...)...)
}

// Eventually asks again until look gives no error, and ends the test when it
// still does after limit.
func (c *Cluster) Eventually(t testing.TB, limit time.Duration, what string, look func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := poll(ctx, look); err != nil {
		t.Fatalf("%s: not within %v: %v", what, limit, err)
	}
}

// lookAgain is how often Eventually asks; asking costs a process or two.
const lookAgain = 200 * time.Millisecond

func poll(ctx context.Context, look func(ctx context.Context) error) error {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	var last error
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // what the last full look said, not that time was up
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// run runs one program with the cluster's environment.
func (c *Cluster) run(ctx context.Context, in io.Reader, program string, args ...string) (string, error) {
	path := program
	for _, dir := range []string{"bin", "tools"} {
		if p := filepath.Join(c.dir, dir, program); executable(p) {
			path = p
			break
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "kubeconfig"), "DOCKER_HOST=unix://"+filepath.Join(c.dir, "docker.sock"))
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	cmd.WaitDelay = time.Second // a child of it may hold our pipes
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, ctx.Err())
		}
		return out.String(), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// limited is a context for one command of a test.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	t.Cleanup(cancel)
	return ctx
}

// must ends the test on a command's error.
func must(t testing.TB, what string, args []string) func(string, error) string {
	return func(out string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", what, strings.Join(args, " "), err, out)
		}
		return out
	}
}
