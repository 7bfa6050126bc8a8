// Package mesh tests a whole mesh in a lab: real sidecars, control plane,
// injector and redirects, between pods on two nodes. One lab serves all tests
// of the package; each test's promise stands in its first line.
package mesh

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/driver"
	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/lab/cluster"
	"github.com/heddle-mesh/heddle/internal/meshtest"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

//go:embed manifests/servers.yaml
var manifests string

const (
	readyLimit = 90 * time.Second
	oneTest    = 2 * time.Minute
	// outside is a machine that is not of the cluster.
	outside = "172.30.0.200"
)

// shared is the lab of this run; nil where one cannot be.
var shared *driver.Lab

var long63, long253 = strings.Repeat("n", 62) + "x", strings.Repeat("p", 61) + "." + strings.Repeat("q", 62) + "." + strings.Repeat("r", 62) + "." + strings.Repeat("s", 64-1)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Geteuid() != 0 {
			return m.Run() // each test says that it cannot run
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		end, err := up(ctx)
		defer end()
		if err != nil {
			fmt.Fprintln(os.Stderr, "the lab for these tests did not come up:", err)
			return 1
		}
		return m.Run()
	}())
}

// up builds the programs and starts the lab.
func up(ctx context.Context) (end func(), err error) {
	bin, err := os.MkdirTemp("", "heddle-mesh-bin-")
	if err != nil {
		return func() {}, err
	}
	end = func() { os.RemoveAll(bin) }
	for dir, packages := range map[string][]string{
		bin:                        {"./cmd/..."},
		filepath.Join(bin, "apps"): {"./e2e/apps/probe"},
	} {
		build := exec.CommandContext(ctx, "go", append([]string{"build", "-o", dir + "/"}, packages...)...)
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return end, err
		}
		if out, err := build.CombinedOutput(); err != nil {
			return end, fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	l, err := driver.New("mesh", bin)
	if err != nil {
		return end, err
	}
	end = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.RemoveAll(bin)
	}
	host := "outside=" + outside + ",fd00:172:30::200=" + filepath.Join(l.Apps, "probe") + " serve -http :8080 -echo :7000 -banner :7001"
	if err := l.Up(ctx, "--nodes", "2", "--zones", "east,west", "--host", host); err != nil {
		return end, err
	}
	if err := l.Write("servers.yaml", manifests, "LONG253", long253, "LONG63", long63, "LABEL63", long63); err != nil {
		return end, err
	}
	shared = l
	return end, l.Wait(ctx, "the pods", readyLimit, func(s *lab.Status) bool {
		ready := 0
		for _, p := range s.Pods {
			if p.Ready && p.Namespace != "heddle-system" {
				ready++
			}
		}
		return ready >= 9 // all but as-sidecar, which is refused
	})
}

// mesh gives the lab to a test, and a context that ends with it.
func mesh(t *testing.T) (context.Context, *driver.Lab) {
	t.Helper()
	meshtest.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), oneTest)
	t.Cleanup(cancel)
	return ctx, shared
}

// seen is what probe's clients print.
type seen struct {
	OK                        bool
	Err, Reason, Body, Remote string
	Status, Count, Failed     int
	Bytes, Millis             int64
	Answers, Failures         []string
}

// probe runs a client in a pod of the namespace mesh.
func probe(t *testing.T, pod string, args ...string) seen {
	t.Helper()
	ctx, l := mesh(t)
	var s seen
	if err := l.JSON(ctx, &s, "mesh", pod, append([]string{filepath.Join(l.Apps, "probe")}, args...)...); err != nil {
		t.Fatal(err)
	}
	return s
}

// must runs a client that has to succeed.
func must(t *testing.T, pod string, args ...string) seen {
	t.Helper()
	s := probe(t, pod, args...)
	if !s.OK {
		t.Errorf("%s from %s: %+v", strings.Join(args, " "), pod, s)
	}
	return s
}

func pod(t *testing.T, namespace, name string) cluster.PodStatus {
	t.Helper()
	_, l := mesh(t)
	ps, err := l.Pods(namespace, name)
	if err != nil || len(ps) == 0 || len(ps[0].IPs) == 0 {
		t.Fatalf("pod %s/%s: %v %v", namespace, name, ps, err)
	}
	return ps[0]
}

// ip gives a pod's address of a family.
func ip(t *testing.T, namespace, name string, v6 bool) string {
	t.Helper()
	for _, text := range pod(t, namespace, name).IPs {
		if a := netip.MustParseAddr(text); a.Is6() == v6 {
			return text
		}
	}
	t.Fatalf("pod %s/%s has no address of that family", namespace, name)
	return ""
}

func metrics(t *testing.T, name string) map[string]float64 {
	t.Helper()
	ctx, l := mesh(t)
	m, err := l.Metrics(ctx, pod(t, "mesh", name), redirect.AdminPort)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// sum adds up all series of a metric that have the labels.
func sum(m map[string]float64, name string, labels ...string) (n float64) {
next:
	for key, v := range m {
		if k, _, _ := strings.Cut(key, ","); k != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(key+",", ","+l+",") {
				continue next
			}
		}
		n += v
	}
	return n
}

// tellLog writes the lines of a sidecar's log that hold the word into the test's.
func tellLog(t *testing.T, pod, word string) {
	t.Helper()
	ctx, l := mesh(t)
	text, err := l.Logs(ctx, "mesh", pod, "heddle-sidecar")
	if err != nil {
		t.Log(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, word) {
			t.Log(strings.TrimSpace(line))
		}
	}
}
