package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/e2e/driver"
	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/lab/cluster"
)

// benchmark is one run.
type benchmark struct {
	lab    *driver.Lab
	rounds int
	length time.Duration
	self   string // our own program
	result result
	paths  []path
}

// path is one way from client to backend.
type path struct {
	name    string
	pod     string // client pod, in namespace bench or plain
	ns      string
	target  string
	proxies []int // processes whose CPU counts
	backend []int
}

// cell is one path in one round at one load.
type cell struct {
	Path        string     `json:"path"`
	Load        string     `json:"load"`
	Round       int        `json:"round"`
	Result      loadResult `json:"result"`
	ProxyMicros float64    `json:"proxy_cpu_us_per_request"`
	TotalMicros float64    `json:"all_cpu_us_per_request"` // client, proxies and backend
}

// result is everything, as kept in the raw file.
type result struct {
	Started  time.Time         `json:"started"`
	Machine  map[string]string `json:"machine"`
	Missing  []string          `json:"missing,omitempty"` // rows that could not be run, and why
	Cells    []cell            `json:"cells"`
	Sidecars []memory          `json:"idle_sidecars"`
	Control  memory            `json:"control_plane"`
	HAProxy  memory            `json:"idle_haproxy"`
}

// loads are what each path is put under.
var loads = []struct {
	name              string
	connections, rate int
}{
	{"32 connections, saturated", 32, 0},
	{"1 connection, saturated", 1, 0},
	{"4 connections, 1000 requests a second", 4, 1000},
}

const (
	readyLimit = 90 * time.Second
	idleFor    = 10 * time.Second // before memory is read
	idlePods   = 10
)

func (b *benchmark) run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.self = self
	if err := b.lab.Up(ctx, "--nodes", "2"); err != nil {
		return err
	}
	if err := b.idle(ctx); err != nil {
		return err
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for round := range b.rounds {
		for _, load := range loads {
			for i := range b.paths {
				p := b.paths[(i+round)%len(b.paths)] // nobody is always first
				c, err := b.measure(ctx, p, load.connections, load.rate)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", p.name, load.name, err)
				}
				c.Load, c.Round = load.name, round
				b.result.Cells = append(b.result.Cells, c)
				fmt.Fprintf(os.Stderr, "round %d  %-22s %-38s %7d requests  proxies %6.1f us  p50 %v\n", round+1, p.name, load.name, c.Result.Requests, c.ProxyMicros, c.Result.P50)
			}
		}
	}
	return nil
}

// idle measures ten sidecars on one node that have nothing to do.
func (b *benchmark) idle(ctx context.Context) error {
	manifest := `
apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {heddle.dev/inject: enabled}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: idle, namespace: bench}
spec:
  replicas: ` + fmt.Sprint(idlePods) + `
  selector: {matchLabels: {app: idle}}
  template:
    metadata: {labels: {app: idle}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node2}
      terminationGracePeriodSeconds: 2
      containers: [{name: app, image: bench, command: ["SELF", "backend"]}]
`
	if err := b.lab.Write("idle.yaml", manifest, "SELF", b.self); err != nil {
		return err
	}
	if err := b.lab.Wait(ctx, "the idle pods", readyLimit, driver.Ready("bench", idlePods)); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(idleFor):
	}
	pods, err := b.lab.Pods("bench", "idle")
	if err != nil {
		return err
	}
	for _, p := range pods {
		pids, err := b.processes(p, "heddle-sidecar run")
		if err != nil {
			return err
		}
		m, err := memoryOf(pids[0])
		if err != nil {
			return err
		}
		b.result.Sidecars = append(b.result.Sidecars, m)
	}
	control, err := find("heddle-controlplane --source=files:" + lab.ObjectsDir("", b.lab.Name))
	if err != nil || len(control) == 0 {
		return fmt.Errorf("find the control plane: %w", err)
	}
	if b.result.Control, err = memoryOf(control[0]); err != nil {
		return err
	}
	if err := b.lab.Remove("idle.yaml"); err != nil {
		return err
	}
	return b.lab.Wait(ctx, "the idle pods to end", readyLimit, func(s *lab.Status) bool {
		return !slices.ContainsFunc(s.Pods, func(p cluster.PodStatus) bool { return p.Namespace == "bench" })
	})
}

// processes gives those of a pod whose command line holds the word; none is
// an error.
func (b *benchmark) processes(p cluster.PodStatus, word string) ([]int, error) {
	pids, err := b.lab.Processes(p)
	if err != nil {
		return nil, err
	}
	all, err := find(word)
	if err != nil {
		return nil, err
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool { return !slices.Contains(all, pid) })
	if len(pids) == 0 {
		return nil, fmt.Errorf("pod %s has no process %q", p.Name, word)
	}
	return pids, nil
}

// prepare starts the pods of all paths and finds their processes. The pods of
// the direct and HAProxy paths are not in the mesh.
func (b *benchmark) prepare(ctx context.Context) error {
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		b.result.Missing = append(b.result.Missing, "two HAProxy hops: haproxy is not installed (Debian: haproxy)")
	}
	dir := filepath.Join(b.lab.Dir, "haproxy")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	_, serverCfg, err := haproxyFiles(dir, "127.0.0.1:1")
	if err != nil {
		return err
	}
	words := []string{"SELF", b.self, "HAPROXY", haproxy, "CONFIG", serverCfg}
	if err := b.lab.Write("servers.yaml", serversManifest(haproxy != ""), words...); err != nil {
		return err
	}
	if err := b.lab.Wait(ctx, "the backends", readyLimit, func(s *lab.Status) bool { return driver.Ready("bench", 2)(s) && driver.Ready("plain", 2)(s) }); err != nil {
		return err
	}
	server, err := b.pod("plain", "server")
	if err != nil {
		return err
	}
	direct := server.IPs[0]
	if haproxy != "" {
		clientCfg, _, err := haproxyFiles(dir, direct+":8443")
		if err != nil {
			return err
		}
		if err := b.lab.Write("haproxy.yaml", haproxyManifest, "HAPROXY", haproxy, "CONFIG", clientCfg, "SELF", b.self); err != nil {
			return err
		}
		if err := b.lab.Wait(ctx, "haproxy", readyLimit, driver.Ready("plain", 3)); err != nil {
			return err
		}
	}
	return b.findPaths(direct, haproxy != "")
}

func (b *benchmark) findPaths(direct string, haproxy bool) error {
	backend, err := b.podProcesses("plain", "server", "backend")
	if err != nil {
		return err
	}
	b.paths = append(b.paths, path{name: "direct", ns: "plain", pod: "client", target: direct + ":8080", backend: backend})
	far, err := b.podProcesses("bench", "server", "heddle-sidecar run")
	if err != nil {
		return err
	}
	near, err := b.podProcesses("bench", "client", "heddle-sidecar run")
	if err != nil {
		return err
	}
	meshed, err := b.podProcesses("bench", "server", "backend")
	if err != nil {
		return err
	}
	b.paths = append(b.paths, path{name: "two Heddle sidecars", ns: "bench", pod: "client", target: "server:80", proxies: append(near, far...), backend: meshed})
	if !haproxy {
		return nil
	}
	a, err := b.podProcesses("plain", "haproxy", "haproxy -f")
	if err != nil {
		return err
	}
	z, err := b.podProcesses("plain", "server", "haproxy -f")
	if err != nil {
		return err
	}
	if b.result.HAProxy, err = memoryOf(z[0]); err != nil {
		return err
	}
	b.paths = append(b.paths, path{name: "two HAProxy hops", ns: "plain", pod: "haproxy", target: "127.0.0.1:9001", proxies: append(a, z...), backend: backend})
	return nil
}

func (b *benchmark) pod(namespace, name string) (cluster.PodStatus, error) {
	pods, err := b.lab.Pods(namespace, name)
	if err != nil || len(pods) == 0 {
		return cluster.PodStatus{}, fmt.Errorf("pod %s/%s: %w", namespace, name, errors.Join(err, errors.New("not there")))
	}
	return pods[0], nil
}

func (b *benchmark) podProcesses(namespace, name, word string) ([]int, error) {
	p, err := b.pod(namespace, name)
	if err != nil {
		return nil, err
	}
	return b.processes(p, word)
}

func (b *benchmark) measure(ctx context.Context, p path, connections, rate int) (cell, error) {
	const warm = time.Second
	type reading struct{ proxies, backend time.Duration }
	read := func() (r reading, err error) {
		if r.proxies, err = cpuOf(p.proxies); err != nil {
			return r, err
		}
		r.backend, err = cpuOf(p.backend)
		return r, err
	}
	done := make(chan error, 1)
	c := cell{Path: p.name}
	go func() {
		out, err := b.lab.Exec(ctx, p.ns, p.pod, b.self, "load", "-target", p.target, "-connections", fmt.Sprint(connections),
			"-rate", fmt.Sprint(rate), "-warm", warm.String(), "-for", (b.length + warm).String())
		if err == nil {
			err = json.Unmarshal(out, &c.Result)
		}
		done <- err
	}()
	// Read inside the generator's time, which is longer by the start of exec.
	if err := wait(ctx, done, 2*warm); err != nil {
		return c, err
	}
	before, err := read()
	if err != nil {
		return c, err
	}
	from := time.Now()
	if err := wait(ctx, done, b.length-warm); err != nil {
		return c, err
	}
	after, err := read()
	if err != nil {
		return c, err
	}
	span := time.Since(from)
	if err := <-done; err != nil {
		return c, err
	}
	if c.Result.Errors > 0 {
		return c, fmt.Errorf("%d connections failed, the first: %s", c.Result.Errors, c.Result.FirstErr)
	}
	requests := float64(c.Result.Requests) * float64(span) / float64(c.Result.Elapsed)
	proxies, backend := after.proxies-before.proxies, after.backend-before.backend
	c.ProxyMicros = float64(proxies.Nanoseconds()) / 1e3 / requests
	c.TotalMicros = float64((proxies+backend).Nanoseconds())/1e3/requests + float64(c.Result.CPU.Nanoseconds())/1e3/float64(max(c.Result.Requests, 1))
	return c, nil
}

// wait lets time pass while the generator runs; its early end is an error.
func wait(ctx context.Context, done <-chan error, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-done:
		return errors.Join(errors.New("the generator ended early"), err)
	case <-time.After(d):
		return nil
	}
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
