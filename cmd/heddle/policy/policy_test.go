package policy

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
	"github.com/heddle-mesh/heddle/cmd/heddle/policy/place"
	"github.com/heddle-mesh/heddle/controlplane"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/files"
)

var update = flag.Bool("update", false, "write the outputs anew")

// noCluster stands for the flags of a cluster that nobody asks for.
func noCluster(*cobra.Command) func(*cobra.Command) (*cluster.Cluster, error) {
	return func(*cobra.Command) (*cluster.Cluster, error) { return nil, errors.New("no cluster here") }
}

// desk is a folder to run commands on.
type desk struct{ dir, policies string }

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t.TempDir(), t.TempDir()}
	for from, to := range map[string]string{"testdata/world": d.dir, "testdata/policies": d.policies} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

var age = regexp.MustCompile(`(yes|no word|Invalid)(  +)\d+s`)

// run gives what a command prints, on both streams, and its exit code.
func (d *desk) run(ctx context.Context, line string) string {
	args := strings.Fields(strings.NewReplacer("P/", d.policies+"/", "-f P ", "-f "+d.policies+" ", "W/", d.dir+"/").Replace(line + " "))
	if !strings.Contains(line, "--source") {
		args = append(args, "--source=files:"+d.dir)
	}
	root := &cobra.Command{Use: "heddle", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(New(noCluster))
	root.SetArgs(append([]string{"policy"}, args...))
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	code := run.Main(&out, "heddle", func(context.Context) error { return root.ExecuteContext(ctx) })
	text := strings.NewReplacer(d.policies, "P", d.dir, "W").Replace(out.String())
	text = age.ReplaceAllString(text, "${1}${2}0s")
	if code != 0 {
		text += fmt.Sprintf("[exit %d]\n", code)
	}
	return text
}

// Each case is a session on a folder: commands, and what they say.
func TestCases(t *testing.T) {
	cases, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil || len(cases) == 0 {
		t.Fatal(cases, err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			d := newDesk(t)
			var got strings.Builder
			for line := range strings.Lines(string(want)) {
				if command, ok := strings.CutPrefix(line, "$ "); ok {
					got.WriteString(line)
					got.WriteString(d.run(t.Context(), strings.TrimSpace(command)))
				}
			}
			if *update {
				if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got.String(), want)
			}
		})
	}
}

// With a control plane on the folder, apply waits for its word on what stands,
// be it good or bad, and get shows it.
func TestApplyWaits(t *testing.T) {
	d := newDesk(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended, listening := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- controlplane.Run(ctx, controlplane.Config{Source: files.New(files.Config{Dir: d.dir}), Listen: "127.0.0.1:0", CADir: t.TempDir(),
			TrustDomain: "cluster.local", Listening: func(net.Addr, net.Addr) { close(listening) }})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	<-listening
	want := func(line string, parts ...string) {
		t.Helper()
		got := d.run(ctx, line)
		for _, p := range parts {
			if !strings.Contains(got, p) {
				t.Errorf("%s says\n%swithout %q", line, got, p)
			}
		}
	}
	began := time.Now()
	want("apply -f P/orders.yaml --wait=30s", "AccessPolicy shop/orders created\n", "AccessPolicy shop/orders accepted after ", "in force; selects 2 pods\n",
		"TrafficPolicy shop/orders accepted after ", "in force; is for 1 Service\n")
	t.Logf("accepted %v after the start", time.Since(began))
	text, err := os.ReadFile(filepath.Join(d.policies, "orders.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	again := strings.Replace(string(text), "ports: [8080]", "ports: [8081]", 1)
	if err := os.WriteFile(filepath.Join(d.policies, "orders.yaml"), []byte(again), 0o644); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	want("apply -f P/orders.yaml --wait=30s", "AccessPolicy shop/orders configured\n", "TrafficPolicy shop/orders unchanged\n", "AccessPolicy shop/orders accepted after ")
	t.Logf("a change accepted after %v", time.Since(began))
	want("get -n shop", "orders  pods app=orders  mtls strict, 1 allow, 1 deny, 1 audit  yes")
	mesh := "apiVersion: heddle.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: default}\nspec: {trustDomain: other.test}\n"
	if err := os.WriteFile(filepath.Join(d.policies, "mesh.yaml"), []byte(mesh), 0o644); err != nil {
		t.Fatal(err)
	}
	want("apply -f P/mesh.yaml --wait=30s", "MeshConfig default created\n", "put in place, but not accepted: spec.trustDomain: ", "1 of 1 object not in force\n[exit 1]")
	want("get -A", "no: Invalid", "\nMeshConfig default: spec.trustDomain: ")
}

// What "kubectl get --show-managed-fields -o yaml" wrote can be applied again.
func TestReadAgain(t *testing.T) {
	text := `apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: p, namespace: shop, managedFields: [{manager: kubectl, operation: Apply}]}
spec: {rules: [{action: allow}]}
status: {conditions: []}
`
	r, err := read(strings.NewReader(text), []string{"-"}, namespaced{"default", false})
	if err != nil || len(r.problems) > 0 || len(r.objects) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := string(r.objects[0].json); strings.Contains(got, "managedFields") || strings.Contains(got, "status") || !strings.Contains(got, `"namespace":"shop"`) {
		t.Error(got)
	}
}

// slow is a place that takes its time for each look.
type slow struct {
	place.Place
	look   time.Duration
	silent bool // the control plane says nothing
}

func (s slow) Put(context.Context, source.Ref, []byte) (place.Done, error) {
	return place.Done{What: "created"}, nil
}

func (s slow) One(ctx context.Context, ref source.Ref) (*place.Object, error) {
	time.Sleep(s.look)
	o := &place.Object{Ref: ref, Generation: 1}
	if !s.silent {
		o.Conditions = []source.Condition{{Type: "Accepted", Status: "True", ObservedGeneration: 1}}
	}
	return o, ctx.Err()
}

// Hundreds of policies take longer to look at than one may wait; a control
// plane that is silent does not keep us waiting for each.
func TestApplyMany(t *testing.T) {
	var list []*given
	for i := range 400 {
		list = append(list, &given{ref: source.Ref{Kind: "AccessPolicy", Namespace: "shop", Name: fmt.Sprint("p", i)}})
	}
	synctest.Test(t, func(t *testing.T) {
		var notes bytes.Buffer
		a := &applying{Place: slow{look: 40 * time.Millisecond}, out: io.Discard, notes: &notes, wait: defaultWait}
		if err := a.all(t.Context(), list); err != nil || notes.Len() > 0 {
			t.Errorf("%v\n%.200s", err, notes.String())
		}
		a.Place = slow{look: 40 * time.Millisecond, silent: true}
		began := time.Now()
		err := a.all(t.Context(), list)
		if took := time.Since(began); err == nil || !strings.HasPrefix(err.Error(), "400 of 400") || took > 2*time.Minute {
			t.Errorf("%v after %v", err, took)
		}
	})
}
