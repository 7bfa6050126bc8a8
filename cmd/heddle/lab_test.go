package main

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/lab/cluster"
	"github.com/heddle-mesh/heddle/internal/source"
)

func testStatus() *lab.Status {
	deployment := func(ns, name string) source.Ref { return source.Ref{Kind: "Deployment", Namespace: ns, Name: name} }
	return &lab.Status{Status: cluster.Status{
		Nodes: []cluster.NodeStatus{{Name: "node1", Zone: "a", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}, Pods: 2}},
		Pods: []cluster.PodStatus{
			{Namespace: "shop", Name: "web-1", Owner: deployment("shop", "web"), Phase: "Pending", Containers: []string{"web"}, Message: "waiting"},
			{Namespace: "shop", Name: "web-2", Owner: deployment("shop", "web"), Phase: "Running", Ready: true, ReadyCount: 2, Containers: []string{"web", "heddle-sidecar"}, Node: "node1", IPs: []string{"10.244.1.2"}, Meshed: true},
			{Namespace: "a", Name: "same", Phase: "Running", Terminating: true}, {Namespace: "b", Name: "same"},
			{Namespace: "a", Name: "x", Owner: deployment("a", "both")}, {Namespace: "b", Name: "y", Owner: deployment("b", "both")},
		},
		Services: []cluster.ServiceStatus{{Namespace: "shop", Name: "web", Type: "ClusterIP", ClusterIPs: []string{"10.96.0.1"}, Ready: 1, Total: 2}},
		Problems: []source.Problem{{File: "m.yaml", Line: 3, Ref: source.Ref{Kind: "Pod", Namespace: "shop", Name: "z"}, Err: "bad", Fix: "mend it"}},
	}}
}

func TestFindPod(t *testing.T) {
	for _, c := range []struct{ namespace, name, want, err string }{
		{"", "web-1", "shop/web-1", ""},
		{"", "shop/web-1", "shop/web-1", ""},
		{"", "web", "shop/web-2", ""}, // the ready one
		{"b", "same", "b/same", ""},
		{"", "same", "", "a and b"},
		{"", "both", "", "a and b"},
		{"a", "both", "a/x", ""},
		{"shop", "same", "", "no pod"},
		{"", "nothing", "", "no pod"},
	} {
		p, err := findPod(testStatus(), c.namespace, c.name)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s %s: %v, want %q", c.namespace, c.name, err, c.err)
			}
			continue
		}
		if err != nil || p.Namespace+"/"+p.Name != c.want {
			t.Errorf("%s %s: %v %v, want %s", c.namespace, c.name, p, err, c.want)
		}
	}
}

func TestPrintStatus(t *testing.T) {
	var b bytes.Buffer
	if err := printStatus(&b, testStatus()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"shop/web-2  2/2    Running      0         node1  10.244.1.2  yes", "Terminating", "waiting",
		"shop/web  ClusterIP  10.96.0.1    1 of 2", "BAD MANIFESTS", "m.yaml:3: Pod shop/z: bad (mend it)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// TestMistakes holds what a person is told who calls the lab wrongly; nothing
// is made before.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	gone := filepath.Join(dir, "gone")
	for _, c := range []struct {
		args string
		err  string
	}{
		{"bogus", "there is no heddle lab bogus; there are capture, down, exec, logs, status, up"},
		{"up", "-f FILE"},
		{"up -f " + gone, gone + ": no such file"},
		{"up -f " + dir + " --nodes 0", "--nodes 0: a lab has at least one"},
		{"capture --backbone -o " + gone, ""},
		{"status", "no lab"},
	} {
		if os.Geteuid() != 0 && c.args != "bogus" {
			c.err = "run as root"
		}
		root := newRoot()
		root.SetArgs(append([]string{"lab", "--run-dir", filepath.Join(dir, "run")}, strings.Fields(c.args)...))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.args, err, c.err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if needRoot(1000) == nil || needRoot(0) != nil {
		t.Error("root is not asked for")
	}
}

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 1, "c"}, {"a\nb\n", 5, "a\nb\n"}, {"a\nb\n", 0, ""}, {"a\nb\n", -1, "a\nb\n"}, {"", 3, ""}, {"\n\n", 1, "\n"},
	} {
		if got := string(lastLines([]byte(c.in), c.n)); got != c.want {
			t.Errorf("%q, %d: %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestParseHost(t *testing.T) {
	got, err := parseHost("db.example.org=203.0.113.10,fd00::1=/bin/db --listen=:5432")
	want := lab.Host{Name: "db.example.org", IPs: []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("fd00::1")},
		Command: []string{"/bin/db", "--listen=:5432"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"db", "db=", "db=x"} {
		if _, err := parseHost(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestFollowLog follows a log over what is added and over a rotation.
func TestFollowLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("old\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lines := make(chan string, 10)
	ended := make(chan error, 1)
	go func() { ended <- followLog(ctx, lineWriter(lines), file, 4) }()
	for want, flags := range map[string]int{"added\n": os.O_APPEND, "x\n": os.O_TRUNC} {
		f, err := os.OpenFile(file, os.O_WRONLY|flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(want); err != nil {
			t.Fatal(err)
		}
		f.Close()
		select {
		case got := <-lines:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("never saw %q", want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}
