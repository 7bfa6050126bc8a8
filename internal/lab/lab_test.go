package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet"
	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// TestMain is also the programs that the tests' pods run, and the process that
// owns a lab: go test builds one binary.
func TestMain(m *testing.M) {
	kubelet.MaybeShim()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "pod-serve":
			os.Exit(serve())
		case "pod-ask":
			os.Exit(ask(os.Args[2]))
		case "lab-owner":
			os.Exit(own(os.Args[2:]))
		}
	}
	os.Exit(m.Run())
}

// serve says its host name to whoever connects, until SIGTERM.
func serve() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", "[::]:8080")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		<-ctx.Done()
		l.Close()
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return 0
		}
		host, _ := os.Hostname()
		fmt.Fprintln(c, host)
		c.Close()
	}
}

// ask looks a name up as any program would, connects to each address at port
// 8080 and prints "address host name" lines.
func ask(name string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	addrs, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, name)
	if err != nil {
		fmt.Println("lookup:", err)
		return 3
	}
	for _, a := range addrs {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(a, "8080"))
		if err != nil {
			fmt.Println("dial:", err)
			return 4
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			fmt.Println("read:", err)
			return 5
		}
		c.Close()
		fmt.Print(a, " ", line)
	}
	return 0
}

// own runs a lab until SIGTERM: run dir, name, manifests.
func own(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := New(Config{RunDir: args[0], Name: args[1], Manifests: []string{args[2]},
		Nodes: []Node{{Name: "node1", Zone: "a"}, {Name: "node2", Zone: "b"}}})
	if err == nil {
		err = l.Run(ctx)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// world is a lab in a process of its own.
type world struct {
	t              *testing.T
	run, name, dir string
	owner          *exec.Cmd
	ownerOut       bytes.Buffer
}

func startWorld(t *testing.T, name, manifests string) *world {
	t.Helper()
	meshtest.RequireRoot(t)
	top := t.TempDir()
	w := &world{t: t, run: filepath.Join(top, "run"), name: name, dir: filepath.Join(top, "manifests")}
	for _, d := range []string{w.run, w.dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.write(manifests)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w.owner = exec.Command(self, "lab-owner", w.run, w.name, w.dir)
	w.owner.Stdout, w.owner.Stderr = &w.ownerOut, &w.ownerOut
	if err := w.owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Down(context.Background(), w.run, w.name); err != nil && !errors.Is(err, ErrNotUp) {
			t.Error(err)
		}
		_ = w.owner.Wait() // perhaps waited for already
		if t.Failed() {
			t.Logf("the owner said: %s", w.ownerOut.String())
		}
	})
	return w
}

func (w *world) write(text string) {
	w.t.Helper()
	tmp := filepath.Join(w.dir, ".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(w.dir, "m.yaml")); err != nil {
		w.t.Fatal(err)
	}
}

// until waits for a status that holds what is wanted.
func (w *world) until(what string, ok func(*Status) bool) *Status {
	w.t.Helper()
	late := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last *Status
	for {
		if s, err := ReadStatus(w.run, w.name); err == nil {
			if ok(s) {
				return s
			}
			last = s
		}
		select {
		case <-tick.C:
		case <-late:
			w.t.Fatalf("never: %s; last status %+v", what, last)
		}
	}
}

func readyPods(n int) func(*Status) bool {
	return func(s *Status) bool {
		for _, p := range s.Pods {
			if !p.Ready || p.Terminating {
				return false
			}
		}
		return len(s.Pods) == n
	}
}

// in runs the test program inside a pod and gives its lines, sorted.
func (w *world) in(pod, name string) (lines []string, code int) {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	code, err = kubelet.Exec(ctx, kubelet.ExecConfig{StateDir: KubeletDir(w.run, w.name), Namespace: "shop", Pod: pod,
		Command: []string{self, "pod-ask", name}, Stdout: &out, Stderr: &out})
	if err != nil {
		w.t.Fatal(err)
	}
	lines = strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(lines)
	return lines, code
}

func shop(t *testing.T, replicas int) string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, clusterIP: None, ports: [{name: line, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: vip, namespace: shop}
spec: {selector: {app: web}, ports: [{name: line, port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: %d
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: web
        command: [%s, pod-serve]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`, replicas, self)
}

// TestWholeLab runs a lab without a mesh: a Deployment over two nodes, its
// name, connections between its pods, scaling, deletion, the end.
func TestWholeLab(t *testing.T) {
	w := startWorld(t, "whole", shop(t, 2))
	s := w.until("two pods ready", readyPods(2))
	if s.Pods[0].Node == s.Pods[1].Node {
		t.Errorf("both pods on %s", s.Pods[0].Node)
	}
	var want []string
	for _, p := range s.Pods {
		want = append(want, p.IPs[0]+" "+p.Name)
	}
	slices.Sort(want)
	for _, name := range []string{"web", "web.shop.svc.cluster.local", "WEB.shop"} {
		if got, code := w.in(s.Pods[0].Name, name); code != 0 || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, exit %d, want %q", name, got, code, want)
		}
	}
	if got, code := w.in(s.Pods[0].Name, "nobody.shop.svc.cluster.local."); code != 3 || !strings.Contains(got[0], "no such host") {
		t.Errorf("a name of nobody: %q, exit %d", got, code)
	}
	if ips := serviceOf(s, "vip").ClusterIPs; len(ips) != 1 || !serviceV4.Contains(mustAddr(t, ips[0])) {
		t.Errorf("ClusterIPs %v", ips)
	}
	second, err := New(Config{RunDir: w.run, Name: w.name})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); !errors.Is(err, ErrAlive) {
		t.Errorf("a second lab of the name: %v, want ErrAlive", err)
	}

	w.write(shop(t, 4))
	s = w.until("four pods ready", readyPods(4))
	if v := serviceOf(s, "web"); v.Ready != 4 {
		t.Errorf("endpoints %+v", v)
	}
	w.write(shop(t, 1))
	s = w.until("one pod left", readyPods(1))
	if got, code := w.in(s.Pods[0].Name, "web"); code != 0 || len(got) != 1 {
		t.Errorf("after scaling down: %q, exit %d", got, code)
	}
	w.write("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	w.until("nothing left", func(s *Status) bool { return len(s.Pods) == 0 && len(s.Services) == 0 })
	objects, err := filepath.Glob(filepath.Join(ObjectsDir(w.run, w.name), "*shop*"))
	if err != nil || len(objects) != 2 { // the namespace and its default service account
		t.Errorf("objects %v, %v", objects, err)
	}

	if err := w.owner.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := w.owner.Wait(); err != nil {
		t.Errorf("the owner ended with %v: %s", err, w.ownerOut.String())
	}
	w.nothingIsLeft()
}

// TestKilledLab kills the lab's process: the pods run on, Down takes all away,
// and a lab of the name can be started at once, also without Down.
func TestKilledLab(t *testing.T) {
	w := startWorld(t, "killed", shop(t, 2))
	s := w.until("two pods ready", readyPods(2))
	first := serviceOf(s, "vip").ClusterIPs
	kill := func() {
		t.Helper()
		if err := w.owner.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = w.owner.Wait() // killed: it says so
		if alive(w.run, w.name) {
			t.Fatal("a killed lab counts as alive")
		}
	}
	kill()
	again := exec.Command(w.owner.Path, w.owner.Args[1:]...)
	again.Stdout, again.Stderr = io.Discard, io.Discard
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	w.owner = again
	s = w.until("two pods ready again", readyPods(2))
	if got := serviceOf(s, "vip").ClusterIPs; !slices.Equal(got, first) {
		t.Errorf("ClusterIPs %v, in its first life %v", got, first)
	}
	kill()
	if err := Down(t.Context(), w.run, w.name); err != nil {
		t.Fatal(err)
	}
	w.nothingIsLeft()
	if err := Down(t.Context(), w.run, w.name); !errors.Is(err, ErrNotUp) {
		t.Errorf("a second down: %v, want ErrNotUp", err)
	}
}

// nothingIsLeft looks for files, mounts and processes of the lab.
func (w *world) nothingIsLeft() {
	w.t.Helper()
	if left, _ := os.ReadDir(w.run); len(left) > 0 {
		w.t.Errorf("files are left: %v", left)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), w.run) {
		w.t.Errorf("a mount is left (%v)", err)
	}
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && strings.HasPrefix(string(b), self+"\x00pod-serve") {
			w.t.Errorf("a process is left: %s", p)
		}
	}
	if _, err := fabric.Open(w.run, w.name); err == nil {
		w.t.Error("the network is left")
	}
}

// TestFolderTakenAway holds that a lab whose state dir is removed under it ends
// by itself and takes the rest away: nobody could find it to end it.
func TestFolderTakenAway(t *testing.T) {
	w := startWorld(t, "lab-t-gone", shop(t, 1))
	w.until("a pod is ready", readyPods(1))
	_ = os.RemoveAll(StateDir(w.run, w.name)) // what is mounted stays
	ended := make(chan error, 1)
	go func() { ended <- w.owner.Wait() }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(w.ownerOut.String(), errTakenAway.Error()) {
			t.Errorf("the owner ended with %v", err)
		}
	case <-time.After(downWait):
		t.Fatal("the owner lives on")
	}
	if _, err := os.Stat(StateDir(w.run, w.name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(b), w.run) {
		t.Errorf("mounts are left: %v", err)
	}
}
