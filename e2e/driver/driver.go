// Package driver drives a lab for the demo, the benchmarks and the tests of
// whole meshes, through the heddle program as a user would. It decides nothing
// of what is tested.
package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/lab/cluster"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

// poll is how often Wait looks.
const poll = 50 * time.Millisecond

// Lab is a running lab that the driver started.
type Lab struct {
	Name string
	Bin  string // folder of Heddle's programs
	Dir  string // folder of manifests, and of whatever the caller keeps
	Apps string // folder of the applications; APPS in manifests
	Log  io.Writer
}

// New names a lab after what it is for and this process, so that two runs at
// once never meet. Bin must hold the programs and apps/.
func New(purpose, bin string) (*Lab, error) {
	abs, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "heddle-"+purpose+"-")
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, "manifests"), 0o755); err != nil {
		return nil, err
	}
	return &Lab{Name: fmt.Sprintf("%s-%d", purpose, os.Getpid()), Bin: abs, Apps: filepath.Join(abs, "apps"), Dir: dir, Log: io.Discard}, nil
}

// Up starts the lab, with further flags of `heddle lab up`, and waits for the
// mesh's own programs.
func (l *Lab) Up(ctx context.Context, flags ...string) error {
	args := append([]string{"up", "-f", filepath.Join(l.Dir, "manifests")}, flags...)
	_, err := l.heddle(ctx, args...)
	return err
}

// Down ends the lab and removes its folder.
func (l *Lab) Down(ctx context.Context) error {
	_, err := l.heddle(ctx, "down")
	return errors.Join(err, os.RemoveAll(l.Dir))
}

func (l *Lab) heddle(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.Bin, "heddle"), append([]string{"lab", "--name", l.Name}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second // a background daemon may hold our pipes
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("heddle lab %s: %w\n%s%s", strings.Join(args, " "), err, out.Bytes(), errs.Bytes())
	}
	fmt.Fprint(l.Log, out.String())
	return out.Bytes(), nil
}

// Write puts a manifest into the lab's folder, whole or not at all. APPS in it
// stands for the folder of the applications; further pairs are replaced too.
func (l *Lab) Write(name, manifest string, replace ...string) error {
	text := strings.NewReplacer(append([]string{"APPS/", l.Apps + "/"}, replace...)...).Replace(manifest)
	hidden := filepath.Join(l.Dir, name+".new")
	if err := os.WriteFile(hidden, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(hidden, filepath.Join(l.Dir, "manifests", name))
}

// Remove takes a manifest, and so its objects, away.
func (l *Lab) Remove(name string) error {
	return os.Remove(filepath.Join(l.Dir, "manifests", name))
}

// Status is what the lab says of itself.
func (l *Lab) Status() (*lab.Status, error) { return lab.ReadStatus("", l.Name) }

// Wait waits until ok says true of the lab's status; what says what for.
func (l *Lab) Wait(ctx context.Context, what string, limit time.Duration, ok func(*lab.Status) bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var last *lab.Status
	for {
		s, err := l.Status()
		if err == nil && ok(s) {
			return nil
		}
		if err == nil {
			last = s
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %v for %s: %w%s", limit, what, ctx.Err(), describe(last))
		case <-tick.C:
		}
	}
}

func describe(s *lab.Status) string {
	if s == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range s.Pods {
		fmt.Fprintf(&b, "\n  %s/%s on %s: %s ready=%v restarts=%d %s", p.Namespace, p.Name, p.Node, p.Phase, p.Ready, p.Restarts, p.Message)
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "\n  %v", p)
	}
	return b.String()
}

// Ready says whether a namespace has that many pods which are all ready; 0:
// any number but none.
func Ready(namespace string, pods int) func(*lab.Status) bool {
	return func(s *lab.Status) bool {
		n := 0
		for _, p := range s.Pods {
			if p.Namespace != namespace || p.Phase == "Succeeded" {
				continue
			}
			if !p.Ready || p.Terminating {
				return false
			}
			n++
		}
		return n > 0 && (pods == 0 || n == pods)
	}
}

// Pods gives the pods of a namespace whose name starts with prefix.
func (l *Lab) Pods(namespace, prefix string) ([]cluster.PodStatus, error) {
	s, err := l.Status()
	if err != nil {
		return nil, err
	}
	var out []cluster.PodStatus
	for _, p := range s.Pods {
		if p.Namespace == namespace && strings.HasPrefix(p.Name, prefix) && !p.Terminating {
			out = append(out, p)
		}
	}
	return out, nil
}

// Exec runs a program in a pod's first application container.
func (l *Lab) Exec(ctx context.Context, namespace, pod string, command ...string) ([]byte, error) {
	return l.heddle(ctx, append([]string{"exec", "-n", namespace, pod, "--"}, command...)...)
}

// Logs gives what a container wrote.
func (l *Lab) Logs(ctx context.Context, namespace, pod, container string) ([]byte, error) {
	return l.heddle(ctx, "logs", "-n", namespace, "-c", container, pod)
}

// Network is the lab's network, to capture on, or to dial from inside.
func (l *Lab) Network() (*fabric.Fabric, error) { return fabric.Open("", l.Name) }

// Dial opens a connection from a node, as the node's agent or a scraper would.
func (l *Lab) Dial(ctx context.Context, node, address string) (net.Conn, error) {
	net, err := l.Network()
	if err != nil {
		return nil, err
	}
	return fabric.Dial(ctx, net.NodeNetNS(node), "tcp", address)
}

// Processes gives the processes that run in a pod, by its network namespace.
func (l *Lab) Processes(p cluster.PodStatus) ([]int, error) {
	if len(p.IPs) == 0 {
		return nil, fmt.Errorf("pod %s/%s has no address", p.Namespace, p.Name)
	}
	net, err := l.Network()
	if err != nil {
		return nil, err
	}
	var want unix.Stat_t
	if err := unix.Stat(net.PodNetNS(p.UID), &want); err != nil {
		return nil, fmt.Errorf("namespace of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var got unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &got) == nil && got.Ino == want.Ino && got.Dev == want.Dev {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Kill sends SIGKILL to the processes of a pod whose command line holds the
// word; an empty word is all of them.
func (l *Lab) Kill(p cluster.PodStatus, word string) error {
	pids, err := l.Processes(p)
	if err != nil {
		return err
	}
	n := 0
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.Contains(strings.ReplaceAll(string(b), "\x00", " "), word) {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err == nil {
			n++
		}
	}
	if n == 0 {
		return fmt.Errorf("pod %s/%s: no process holds %q", p.Namespace, p.Name, word)
	}
	return nil
}

// KillProgram sends SIGKILL to a program of the mesh itself, such as
// heddle-controlplane; the lab starts it again.
func (l *Lab) KillProgram(name string) error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		words := strings.Split(string(b), "\x00")
		if err != nil || filepath.Base(words[0]) != name || !strings.Contains(string(b), "files:"+lab.ObjectsDir("", l.Name)+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			return err
		}
		return unix.Kill(pid, unix.SIGKILL)
	}
	return fmt.Errorf("no process of %s runs in lab %s", name, l.Name)
}

// Metrics reads a sidecar's metrics from the pod's node: name, then each label
// as ",name=value", to value.
func (l *Lab) Metrics(ctx context.Context, p cluster.PodStatus, port int) (map[string]float64, error) {
	if len(p.IPs) == 0 {
		return nil, fmt.Errorf("pod %s/%s has no address", p.Namespace, p.Name)
	}
	b, err := l.Get(ctx, p.Node, netip.AddrPortFrom(netip.MustParseAddr(p.IPs[0]), uint16(port)), "/metrics")
	if err != nil {
		return nil, err
	}
	return parseMetrics(string(b)), nil
}

// JSON runs a program in a pod and reads the JSON it prints, also if it failed.
func (l *Lab) JSON(ctx context.Context, into any, namespace, pod string, command ...string) error {
	out, err := l.Exec(ctx, namespace, pod, command...)
	if jerr := json.Unmarshal(out, into); jerr != nil {
		return errors.Join(err, fmt.Errorf("%s in %s/%s printed %q: %w", strings.Join(command, " "), namespace, pod, out, jerr))
	}
	return nil
}
