package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// The test binary is also the program in the containers: HEDDLE_TEST says what
// it does there.
func TestMain(m *testing.M) {
	MaybeShim()
	switch os.Getenv("HEDDLE_TEST") {
	case "":
		os.Exit(m.Run())
	case "look":
		_ = json.NewEncoder(os.Stdout).Encode(look())
	case "wait": // until SIGTERM
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("waiting")
		<-c
		os.Exit(7)
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
		os.Exit(3)
	}
	os.Exit(0)
}

// view is what a program sees of its container.
type view struct {
	PID, UID, GID   int
	Groups          []int
	Hostname, Dir   string
	Status          map[string]string // of /proc/self/status
	Interfaces, Sys []string
	Processes       int
	Files           map[string]string // content, or the error
	Writes          map[string]string // error of creating a file in a folder
	Sysctl          string            // error of opening one to write
	Env             []string
	Descriptors     []string
	Mounts          []string // of namespaces
}

func look() view {
	v := view{PID: os.Getpid(), UID: os.Getuid(), GID: os.Getgid(), Env: os.Environ(),
		Status: map[string]string{}, Files: map[string]string{}, Writes: map[string]string{}}
	v.Groups, _ = os.Getgroups()
	v.Hostname, _ = os.Hostname()
	v.Dir, _ = os.Getwd()
	raw, _ := os.ReadFile("/proc/self/status")
	for _, l := range strings.Split(string(raw), "\n") {
		k, val, _ := strings.Cut(l, ":")
		v.Status[k] = strings.TrimSpace(val)
	}
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		v.Interfaces = append(v.Interfaces, i.Name)
	}
	names := func(dir string) (out []string) {
		es, _ := os.ReadDir(dir)
		for _, e := range es {
			out = append(out, e.Name())
		}
		return out
	}
	v.Sys = names("/sys/class/net")
	for _, p := range names("/proc") {
		// A zombie waits for the machine's own init, not for us.
		if stat, _ := os.ReadFile("/proc/" + p + "/stat"); p[0] >= '0' && p[0] <= '9' && !strings.Contains(string(stat), ") Z ") {
			v.Processes++
		}
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds { // the test harness's own and the folder being read are no leak
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "pipe:") {
			v.Descriptors = append(v.Descriptors, fd.Name()+" "+to)
		}
	}
	if _, err := os.OpenFile("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY, 0); err != nil {
		v.Sysctl = err.Error()
	}
	for _, f := range strings.Fields(os.Getenv("READ")) {
		b, err := os.ReadFile(f)
		if v.Files[f] = string(b); err != nil {
			v.Files[f] = err.Error()
		}
	}
	for _, d := range strings.Fields(os.Getenv("WRITE")) {
		v.Writes[d] = ""
		if err := os.WriteFile(filepath.Join(d, "written"), []byte("x"), 0o600); err != nil {
			v.Writes[d] = err.Error()
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for _, l := range strings.Split(string(mounts), "\n") {
		if strings.Contains(l, " - nsfs ") {
			v.Mounts = append(v.Mounts, l)
		}
	}
	return v
}

// bed is a network namespace and a folder for one test's containers.
type bed struct {
	netns, root, dir, program string
}

func newBed(t *testing.T) bed {
	t.Helper()
	meshtest.RequireRoot(t)
	run := t.TempDir()
	f, err := fabric.Up(fabric.Config{Lab: "container", RunDir: run})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fabric.Down(run, "container"); err != nil {
			t.Error(err)
		}
	})
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := bed{netns: f.BackboneNetNS(), dir: t.TempDir(), program: program}
	b.root = filepath.Join(b.dir, "root")
	if err := os.Mkdir(b.root, 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b bed) spec(job string, env ...string) Spec {
	caps, _ := Capabilities(false, nil, nil)
	return Spec{NetNS: b.netns, Root: b.root, Hostname: "pod-1", Program: Program{
		Argv: []string{b.program}, Env: append([]string{"HEDDLE_TEST=" + job}, env...), Caps: caps}}
}

// output runs a container to its end.
func output(t *testing.T, s Spec) ([]byte, int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := Start(s, w, w)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	return out, p.Code()
}

func see(t *testing.T, s Spec) view {
	t.Helper()
	out, code := output(t, s)
	var v view
	if err := json.Unmarshal(out, &v); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	return v
}

func TestOwnWorld(t *testing.T) {
	b := newBed(t)
	v := see(t, b.spec("look", "A=b"))
	if v.PID != 1 || v.Hostname != "pod-1" || v.Dir != "/" || v.UID != 0 {
		t.Errorf("pid %d, hostname %q, dir %q, uid %d", v.PID, v.Hostname, v.Dir, v.UID)
	}
	if v.Processes != 1 {
		t.Errorf("/proc shows %d processes", v.Processes)
	}
	want := []string{"lo", "br0"}
	slices.Sort(want)
	slices.Sort(v.Interfaces)
	if !slices.Equal(v.Interfaces, want) || !slices.Equal(v.Sys, []string{"br0", "lo"}) {
		t.Errorf("interfaces %v, /sys/class/net %v", v.Interfaces, v.Sys)
	}
	if v.Status["CapEff"] != "00000000a80425fb" || v.Status["CapBnd"] != "00000000a80425fb" {
		t.Errorf("capabilities %s, bounding %s", v.Status["CapEff"], v.Status["CapBnd"])
	}
	if !strings.Contains(v.Sysctl, "read-only") {
		t.Errorf("opening a sysctl to write: %q", v.Sysctl)
	}
	if len(v.Mounts) != 0 {
		t.Errorf("holds other namespaces: %v", v.Mounts)
	}
	if len(v.Descriptors) != 2 { // stdout and stderr
		t.Errorf("pipes open: %v", v.Descriptors)
	}
	if !slices.Equal(v.Env, []string{"HEDDLE_TEST=look", "A=b"}) {
		t.Errorf("environment %q", v.Env)
	}
}

func TestUserAndCapabilities(t *testing.T) {
	b := newBed(t)
	netAdmin, err := Capabilities(false, []string{"NET_ADMIN", "CAP_NET_RAW"}, []string{"ALL"})
	if err != nil {
		t.Fatal(err)
	}
	s := b.spec("look")
	s.Caps = netAdmin
	v := see(t, s)
	if v.Status["CapEff"] != "0000000000003000" || v.Status["CapBnd"] != "0000000000003000" || v.Status["NoNewPrivs"] != "0" {
		t.Errorf("root with two: %s, bounding %s", v.Status["CapEff"], v.Status["CapBnd"])
	}
	s.UID, s.GID, s.Groups, s.NoNewPrivs = 16000, 16001, []uint32{5, 7}, true
	v = see(t, s) // the test binary stands in a folder that only root may enter
	if v.UID != 16000 || v.GID != 16001 || !slices.Equal(v.Groups, []int{5, 7}) {
		t.Errorf("uid %d, gid %d, groups %v", v.UID, v.GID, v.Groups)
	}
	if v.Status["CapEff"] != "0000000000000000" || v.Status["CapBnd"] != "0000000000003000" || v.Status["NoNewPrivs"] != "1" {
		t.Errorf("user: %s, bounding %s, no_new_privs %s", v.Status["CapEff"], v.Status["CapBnd"], v.Status["NoNewPrivs"])
	}
	if _, err := Capabilities(false, []string{"NET_ADMINS"}, nil); err == nil {
		t.Error("an unknown capability was accepted")
	}
}

func TestMounts(t *testing.T) {
	b := newBed(t)
	src := func(name, content string) string {
		p := filepath.Join(b.dir, name)
		if err := os.MkdirAll(p, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
		if content != "" {
			if err := os.WriteFile(filepath.Join(p, "f"), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return p
	}
	token, data, inner, etc := src("token", "token"), src("data", "data"), src("inner", "inner"), src("etc", "etc")
	for _, readOnly := range []bool{false, true} {
		s := b.spec("look",
			"READ=/var/run/secrets/heddle.dev/f /heddle-data/f /heddle-data/deep/inner/f /etc/heddle-test/x/f /etc/hosts",
			"WRITE=/heddle-data /heddle-data/deep/inner /var/run/secrets/heddle.dev /dev/shm /heddle-root")
		s.ReadOnlyRoot = readOnly
		s.Mounts = []Mount{
			{Source: inner, Target: "/heddle-data/deep/inner", ReadOnly: true},
			{Source: data, Target: "/heddle-data"},
			{Source: token, Target: "/var/run/secrets/heddle.dev", ReadOnly: true},
			{Source: etc, Target: "/etc/heddle-test/x"},
			{Source: filepath.Join(etc, "f"), Target: "/etc/hosts"},
			{Source: filepath.Join(etc, "f"), Target: "/heddle-root/file"},
		}
		v := see(t, s)
		for file, want := range map[string]string{
			"/var/run/secrets/heddle.dev/f": "token", "/heddle-data/f": "data", "/heddle-data/deep/inner/f": "inner",
			"/etc/heddle-test/x/f": "etc", "/etc/hosts": "etc",
		} {
			if v.Files[file] != want {
				t.Errorf("read-only root %v: %s: %q", readOnly, file, v.Files[file])
			}
		}
		for dir, ok := range map[string]bool{
			"/heddle-data": true, "/heddle-data/deep/inner": false, "/var/run/secrets/heddle.dev": false,
			"/dev/shm": true, "/heddle-root": !readOnly,
		} {
			if (v.Writes[dir] == "") != ok {
				t.Errorf("read-only root %v: writing into %s: %q", readOnly, dir, v.Writes[dir])
			}
		}
	}
	for _, made := range []string{"/heddle-data", "/etc/heddle-test", "/heddle-root", "/run/secrets/heddle.dev"} {
		if _, err := os.Lstat(made); err == nil {
			t.Errorf("%s was made on the machine itself", made)
		}
	}
	if es, _ := os.ReadDir(b.root); len(es) != 0 {
		t.Errorf("the root file system shows outside: %v", es)
	}
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	b := newBed(t)
	for want, change := range map[string]func(*Spec){
		"no such file":        func(s *Spec) { s.Argv = []string{"/no/such/program"} },
		"is in none of PATH":  func(s *Spec) { s.Argv = []string{"no-such-program"} },
		"is not executable":   func(s *Spec) { s.Argv = []string{"/etc/passwd"} },
		"workingDir /nowhere": func(s *Spec) { s.Dir = "/nowhere" },
		"mount /x":            func(s *Spec) { s.Mounts = []Mount{{Source: "/no/such/source", Target: "/x"}} },
		"must be absolute":    func(s *Spec) { s.Mounts = []Mount{{Source: "/etc", Target: "x"}} },
		"no such file or dir": func(s *Spec) { s.NetNS = "/no/such/netns" },
	} {
		s := b.spec("look")
		change(&s)
		if _, err := Start(s, os.Stdout, os.Stderr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// running starts a container that waits, with its record.
func running(t *testing.T, b bed, s Spec) (*Process, Record) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := Start(s, w, w)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Signal(syscall.SIGKILL); <-p.Done() })
	if _, err := r.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.dir, "record.json")
	rec := Record{Namespace: "ns", Pod: "p", UID: "u", Container: "c", PID: p.PID(), Program: s.Program}
	if err := rec.Write(file); err != nil {
		t.Fatal(err)
	}
	if rec, err = ReadRecord(file); err != nil {
		t.Fatal(err)
	}
	return p, rec
}

func TestExec(t *testing.T) {
	b := newBed(t)
	s := b.spec("wait")
	s.UID, s.GID = 16000, 16000
	_, rec := running(t, b, s)
	rec.Program.Env = []string{"HEDDLE_TEST=look"}
	var out, errs bytes.Buffer
	code, err := rec.Exec(t.Context(), []string{b.program}, Streams{Out: &out, Err: &errs})
	if err != nil || code != 0 {
		t.Fatalf("code %d, %v, %s", code, err, errs.String())
	}
	var v view
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if v.PID == 1 || v.Processes != 2 || v.Hostname != "pod-1" || v.UID != 16000 || v.Status["CapEff"] != "0000000000000000" {
		t.Errorf("inside: %+v", v)
	}
	rec.Program.Env = []string{"HEDDLE_TEST=cat"}
	out.Reset()
	code, err = rec.Exec(t.Context(), []string{b.program}, Streams{In: strings.NewReader("hello"), Out: &out})
	if err != nil || code != 3 || out.String() != "hello" {
		t.Errorf("code %d, %v, %q", code, err, out.String())
	}
	if _, err = rec.Exec(t.Context(), []string{"/no/such"}, Streams{}); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("a program that is not there: %v", err)
	}
	// Killed with its caller's patience, inside too.
	rec.Program.Env = []string{"HEDDLE_TEST=wait"}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err = rec.Exec(ctx, []string{b.program}, Streams{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an exec past its time: %v", err)
	}
	rec.Program.Env = []string{"HEDDLE_TEST=look"}
	deadline := time.Now().Add(5 * time.Second)
	for time.Now().Before(deadline) { // it dies with its parent, a moment after
		out.Reset()
		if _, err := rec.Exec(t.Context(), []string{b.program}, Streams{Out: &out}); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		if v.Processes == 2 {
			return
		}
	}
	t.Errorf("%d processes are left inside", v.Processes)
}

func TestSignalAndKill(t *testing.T) {
	b := newBed(t)
	p, rec := running(t, b, b.spec("wait"))
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if p.Code() != 7 {
		t.Errorf("exit code %d", p.Code())
	}
	if _, err := rec.Exec(t.Context(), []string{b.program}, Streams{}); !errors.Is(err, ErrEnded) {
		t.Errorf("exec in an ended container: %v", err)
	}
	if err := rec.Kill(); err != nil {
		t.Errorf("killing an ended container: %v", err)
	}
	p, rec = running(t, b, b.spec("wait"))
	stale := rec
	stale.Start--
	if err := stale.Kill(); err != nil { // the number belongs to another process now
		t.Fatal(err)
	}
	if unix.Kill(p.PID(), 0) != nil {
		t.Fatal("another process than the recorded one was killed")
	}
	if err := rec.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if p.Code() != 128+9 {
		t.Errorf("exit code %d", p.Code())
	}
}
