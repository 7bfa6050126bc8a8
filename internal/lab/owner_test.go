package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/heddle-mesh/heddle/internal/lab/cluster"
	"github.com/heddle-mesh/heddle/internal/lab/manifest"
)

func serviceOf(s *Status, name string) cluster.ServiceStatus {
	for _, v := range s.Services {
		if v.Name == name {
			return v
		}
	}
	return cluster.ServiceStatus{}
}

func mustAddr(t *testing.T, s string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestClaim(t *testing.T) {
	p := paths(filepath.Join(t.TempDir(), "heddle-lab", "x"))
	first, err := claim(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim(p); !errors.Is(err, ErrAlive) {
		t.Errorf("a second claim: %v, want ErrAlive", err)
	}
	first.Close()
	again, err := claim(p)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// TestSignalOnlyTheOwner holds that a process which got a dead owner's number
// is left alone.
func TestSignalOnlyTheOwner(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := sendSignal(owner{PID: cmd.Process.Pid, Start: start - 1}, 9); err != nil {
		t.Fatal(err)
	}
	if _, err := startTime(cmd.Process.Pid); err != nil {
		t.Error("another's process was signalled")
	}
	if err := sendSignal(owner{PID: cmd.Process.Pid, Start: start}, 9); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the owner was not signalled")
	}
	if err := sendSignal(owner{PID: cmd.Process.Pid, Start: start}, 9); err != nil {
		t.Errorf("a dead owner: %v", err)
	}
}

func TestDownOfNothing(t *testing.T) {
	if err := Down(context.Background(), t.TempDir(), "none"); !errors.Is(err, ErrNotUp) {
		t.Errorf("got %v, want ErrNotUp", err)
	}
	if err := Down(context.Background(), t.TempDir(), "../x"); err == nil || errors.Is(err, ErrNotUp) {
		t.Errorf("a name that is a path: %v", err)
	}
}

// TestConfig holds the address plan and what is refused.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg Config
		ok  bool
	}{
		{Config{Name: "dev"}, true},
		{Config{Name: "Dev"}, false},
		{Config{Name: ""}, false},
		{Config{Name: "dev", Nodes: []Node{{Name: "a"}, {Name: "a"}}}, false},
		{Config{Name: "dev", Nodes: make([]Node, maxNodes+1)}, false},
		{Config{Name: "dev", Mesh: &Mesh{ControlPlane: "cp", Injector: "/i", Sidecar: "/s"}}, false},
		{Config{Name: "dev", Hosts: []Host{{Name: "db"}}}, false},
	} {
		if _, err := New(c.cfg); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	cfg, err := Config{Name: "dev"}.complete()
	if err != nil {
		t.Fatal(err)
	}
	net := cfg.network()
	if got := net.Nodes[1].PodCIDRs[0].String() + " " + net.Nodes[1].PodCIDRs[1].String() + " " + net.Nodes[1].Addresses[0].String(); got != "10.244.2.0/24 fd00:10:244:2::/64 172.30.0.12" {
		t.Errorf("second node: %s", got)
	}
}

// TestSystemManifests holds that the lab can read what it writes for the mesh.
func TestSystemManifests(t *testing.T) {
	cfg, err := Config{Name: "dev", RunDir: t.TempDir(), Mesh: &Mesh{ControlPlane: "/c", Injector: "/i", Sidecar: "/s"}}.complete()
	if err != nil {
		t.Fatal(err)
	}
	if err := writeSystem(cfg, cfg.network()); err != nil {
		t.Fatal(err)
	}
	p := paths(StateDir(cfg.RunDir, cfg.Name))
	set := readAll(t, p.system())
	if len(set.Problems) > 0 || len(set.Documents) != 8 {
		t.Errorf("%d documents, problems %v", len(set.Documents), set.Problems)
	}
	if info, err := os.Stat(p.in("webhook/tls.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v %v", info, err)
	}
}

func readAll(t *testing.T, dir string) *manifest.Set {
	t.Helper()
	return manifest.NewFolder([]string{dir}, nil).Read()
}
