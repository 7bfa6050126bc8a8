package cell

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// TestMain lets this test be the first process of a cell.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "cell" {
		os.Exit(Inside(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// sleeping is a process that does nothing. It is waited for from the start, as
// the kernel waits for a cell whose owner is dead.
type sleeping struct {
	pid  int
	kill func() // and until it is gone
}

// sleeper starts one, with what it inherits.
func sleeper(t *testing.T, files ...*os.File) sleeping {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { defer close(gone); _ = cmd.Wait() }()
	s := sleeping{pid: cmd.Process.Pid, kill: func() { _ = cmd.Process.Kill(); <-gone }}
	t.Cleanup(s.kill)
	return s
}

// aRun makes a run folder with a cell that holds its lock. The test's own
// process plays no part in it any more.
func aRun(t *testing.T, runs string) (*Dir, sleeping) {
	t.Helper()
	d, err := Claim(runs)
	if err != nil {
		t.Fatal(err)
	}
	cell := sleeper(t, d.lock)
	d.lock.Close()
	return d, cell
}

func self(t *testing.T, pid int) process {
	t.Helper()
	start, err := startTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	return process{PID: pid, Start: start}
}

func TestReap(t *testing.T) {
	dead := process{PID: os.Getpid(), Start: 1} // our number, another's time
	for _, c := range []struct {
		name    string
		owner   bool // lives
		kept    bool
		reused  bool // the cell's number is another process's by now
		remains bool
	}{
		{name: "owner dead", remains: false},
		{name: "owner dead, cell kept", kept: true, remains: true},
		{name: "owner at work", owner: true, remains: true},
		{name: "owner and cell dead", reused: true, remains: false},
		{name: "kept, but the cell is dead", kept: true, reused: true, remains: false},
	} {
		t.Run(c.name, func(t *testing.T) {
			runs := t.TempDir()
			d, cell := aRun(t, runs)
			s := state{Owner: dead, Cell: self(t, cell.pid), Kept: c.kept}
			if c.owner {
				s.Owner = self(t, os.Getpid())
			}
			stranger := sleeper(t)
			if c.reused {
				cell.kill()
				s.Cell = process{PID: stranger.pid, Start: 1}
			}
			put(t, d, s)
			alive, err := Reap(runs)
			if err != nil {
				t.Fatal(err)
			}
			_, gone := os.Stat(d.path)
			if c.remains != (gone == nil) || c.remains != (len(alive) == 1) {
				t.Errorf("after reaping: alive %v, folder %v; want it to remain: %v", alive, gone, c.remains)
			}
			if !self(t, stranger.pid).lives() {
				t.Error("a process that never was the cell's is dead")
			}
		})
	}
}

func put(t *testing.T, d *Dir, s state) {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Path("state.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRemove(t *testing.T) {
	runs := t.TempDir()
	d, cell := aRun(t, runs)
	put(t, d, state{Owner: self(t, os.Getpid()), Cell: self(t, cell.pid)})
	if err := Remove(runs, d.ID()); err == nil || !strings.Contains(err.Error(), "at work") {
		t.Errorf("removing a run under its owner: %v", err)
	}
	for _, id := range []string{"", ".", "..", "../etc", ".lock", "nobody"} {
		if err := Remove(runs, id); err == nil {
			t.Errorf("removing %q is no error", id)
		}
	}
	put(t, d, state{Owner: self(t, os.Getpid()), Cell: self(t, cell.pid), Kept: true})
	if err := Remove(runs, d.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.path); !os.IsNotExist(err) {
		t.Errorf("the run folder: %v", err)
	}
}

// TestOwnerGone: a cell whose owner closes the pipe, as the kernel does for
// one that is killed, ends with all that ran in it, and lets go of its locks.
func TestOwnerGone(t *testing.T) {
	meshtest.RequireRoot(t)
	bin := t.TempDir()
	// It does not end by itself, and its child not even when asked.
	script := fmt.Sprintf("#!/bin/sh\ntrap '' TERM\nsetsid sleep 1000 &\necho up > %s/up\nwait\n", bin)
	if err := os.WriteFile(filepath.Join(bin, "dockerd"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	d, err := Claim(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	slot, err := os.Create(filepath.Join(bin, "slot"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(slot.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	c, err := Config{Dir: d, Data: bin, Hold: []*os.File{slot}}.launch()
	if err != nil {
		t.Fatal(err)
	}
	slot.Close()
	d.lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !exists(bin + "/up") {
		if pause(ctx) != nil {
			t.Fatalf("dockerd did not start:\n%s", d.tail("cell.log"))
		}
	}
	out, err := c.Output(ctx, "sh", "-c", "echo $$; ip -o link; ip route show table main")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out, "\n"); n != 2 || !strings.Contains(out, "lo: <LOOPBACK,UP") {
		t.Errorf("inside there is more or less than loopback:\n%s", out)
	}
	if free(t, bin+"/slot") || free(t, d.Path("lock")) {
		t.Error("the cell holds its locks no more")
	}
	c.lifeline.Close()
	select {
	case <-c.ended:
	case <-ctx.Done():
		t.Fatal("the cell lives on without its owner")
	}
	for !free(t, bin+"/slot") || !free(t, d.Path("lock")) {
		if pause(ctx) != nil {
			t.Fatal("something still holds the cell's locks")
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func free(t *testing.T, path string) bool {
	t.Helper()
	f, ok, err := tryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if ok {
		f.Close()
	}
	return ok
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(look):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestEnterScript(t *testing.T) {
	t.Setenv("PATH", "/it's/here:"+os.Getenv("PATH"))
	d, err := Claim(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Remove()
	if err := d.writeEnter(4711); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(d.Path("in"))
	if err != nil {
		t.Fatal(err)
	}
	// What a shell makes of it, with echo in place of nsenter.
	script := strings.Replace(string(b), "exec nsenter", "echo $PATH; echo", 1)
	cmd := exec.Command("sh", "-c", script, "in", "kubectl", "get", "pods")
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/it's/here:", "--target 4711 --pid --mount --net -- env -C / kubectl get pods"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
