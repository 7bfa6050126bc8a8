// Package programs makes the programs of others that a cluster runs, from
// their Go modules and Debian's packages, so that no image registry is needed:
// Kubernetes, etcd, containerd, CoreDNS, kind, Jaeger and a node's root file
// system. Versions are pinned in versions.go and nowhere else. It starts none
// of them.
package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/store"
)

// stillAt is how often a long build says that it goes on.
const stillAt = 30 * time.Second

// Builder makes programs and keeps them in a store.
type Builder struct {
	Store *store.Store
	Say   func(format string, args ...any)
}

// recipe is one throw-away module and the programs built in it. All of it goes
// into the key.
type recipe struct {
	Name     string
	Module   string            // module@version of the first package
	Packages []string          // main packages, the program's name last in the path
	Replace  map[string]string // module paths
	Tags     string
	LDFlags  string
	Rename   string // of the one program, where its path does not end in its name
	KeepDir  string // module whose folder is copied to module/
	Cold     string // how long it takes on two cold cores, for the one who waits
}

// Set names the recipes.
type Set string

// The sets of programs, each kept in one folder.
const (
	Cluster    Set = "kubernetes" // kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubeadm
	Kubectl    Set = "kubectl"
	Etcd       Set = "etcd"
	Containerd Set = "containerd" // containerd, ctr, containerd-shim-runc-v2
	CoreDNS    Set = "coredns"
	Crictl     Set = "crictl"
	Kind       Set = "kind" // and module/, kind's own files
	JaegerSet  Set = "jaeger"
)

func recipes() map[Set]recipe {
	const (
		k8s = "k8s.io/kubernetes"
		v   = "k8s.io/component-base/version"
		ctd = "github.com/containerd/containerd/v2"
	)
	minor := strings.Split(Kubernetes, ".")[1]
	replace := map[string]string{}
	for _, lib := range staging {
		replace["k8s.io/"+lib] = "k8s.io/" + lib + "@v0." + strings.TrimPrefix(Kubernetes, "1.")
	}
	stamp := fmt.Sprintf("-X %[1]s.gitVersion=v%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=clean", v, Kubernetes, minor)
	kube := recipe{Name: "kubernetes", Module: k8s + "@v" + Kubernetes, Replace: replace, LDFlags: stamp}
	cluster, kubectl := kube, kube
	cluster.Packages, cluster.Cold = under(k8s+"/cmd/", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubeadm"), "8 min"
	kubectl.Packages, kubectl.Cold = under(k8s+"/cmd/", "kubectl"), "1 min"
	return map[Set]recipe{
		Cluster: cluster,
		Kubectl: kubectl,
		Etcd:    {Name: "etcd", Module: "go.etcd.io/etcd/server/v3@v" + etcd, Packages: []string{"go.etcd.io/etcd/server/v3"}, Rename: "etcd", Cold: "1 min"},
		Containerd: {Name: "containerd", Module: ctd + "@v" + containerd, Packages: under(ctd+"/cmd/", "containerd", "ctr", "containerd-shim-runc-v2"),
			Tags: "no_btrfs,no_devmapper,no_zfs,no_aufs", LDFlags: "-X " + ctd + "/version.Version=" + containerd, Cold: "2 min"},
		CoreDNS:   {Name: "coredns", Module: "github.com/coredns/coredns@v" + coreDNS, Packages: []string{"github.com/coredns/coredns"}, Cold: "2 min"},
		Crictl:    {Name: "crictl", Module: "sigs.k8s.io/cri-tools@v" + criTools, Packages: []string{"sigs.k8s.io/cri-tools/cmd/crictl"}, Cold: "1 min"},
		Kind:      {Name: "kind", Module: "sigs.k8s.io/kind@v" + kind, Packages: []string{"sigs.k8s.io/kind"}, KeepDir: "sigs.k8s.io/kind", Cold: "20 s"},
		JaegerSet: {Name: "jaeger", Module: "github.com/jaegertracing/jaeger@v" + Jaeger, Packages: []string{"github.com/jaegertracing/jaeger/cmd/jaeger"}, Cold: "4 min"},
	}
}

func under(prefix string, names ...string) []string {
	var out []string
	for _, n := range names {
		out = append(out, prefix+n)
	}
	return out
}

// Build gives the folder with the programs of a set.
func (b Builder) Build(ctx context.Context, set Set) (string, error) {
	r, ok := recipes()[set]
	if !ok {
		return "", fmt.Errorf("there are no programs %q", set)
	}
	key, err := r.key()
	if err != nil {
		return "", err
	}
	return b.Store.Get(ctx, string(set), key, func(ctx context.Context, dir string) error {
		b.Say("%s: building from Go modules, about %s on two cold cores", set, r.Cold)
		defer b.heartbeat(string(set))()
		return r.build(ctx, dir)
	})
}

// key changes with the recipe, the compiler and the machine's kind.
func (r recipe) key() (string, error) {
	const made = 1 // raise it when build() changes what it makes
	return store.Key(made, runtime.Version(), runtime.GOARCH, r)
}

// heartbeat says now and then that something goes on, until it is ended.
func (b Builder) heartbeat(what string) (end func()) {
	done := make(chan struct{})
	start := time.Now()
	go func() {
		tick := time.NewTicker(stillAt)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				b.Say("%s: still at it, %v", what, time.Since(start).Round(time.Second))
			}
		}
	}()
	return func() { close(done) }
}

// build makes a throw-away module that has the packages as its tools, so that
// Go picks the versions that the packages' own module asks for.
func (r recipe) build(ctx context.Context, dir string) error {
	work, err := os.MkdirTemp("", "heddle-"+r.Name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	mod := fmt.Sprintf("module throwaway\n\ngo %s\n", strings.TrimPrefix(runtime.Version(), "go"))
	for from, to := range r.Replace {
		path, version, _ := strings.Cut(to, "@")
		mod += fmt.Sprintf("\nreplace %s => %s %s", from, path, version)
	}
	if err := os.WriteFile(filepath.Join(work, "go.mod"), []byte(mod+"\n"), 0o644); err != nil {
		return err
	}
	_, version, _ := strings.Cut(r.Module, "@")
	get := []string{"get", "-tool"}
	for _, p := range r.Packages {
		get = append(get, p+"@"+version)
	}
	if _, err := goTool(ctx, work, get...); err != nil {
		return err
	}
	out := dir + "/"
	if r.Rename != "" {
		out += r.Rename
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-tags=" + r.Tags, "-ldflags=-s -w " + r.LDFlags, "-o", out}, r.Packages...)
	if _, err := goTool(ctx, work, args...); err != nil {
		return err
	}
	if r.KeepDir == "" {
		return nil
	}
	from, err := goTool(ctx, work, "list", "-m", "-f", "{{.Dir}}", r.KeepDir)
	if err != nil {
		return err
	}
	return os.CopyFS(filepath.Join(dir, "module"), os.DirFS(strings.TrimSpace(from)))
}

// goTool runs the go command in a module of its own.
func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", errors.Join(fmt.Errorf("go %s: %w\n%s", strings.Join(args[:2], " "), err, lastLines(errs.Bytes())), ctx.Err())
	}
	return out.String(), nil
}

// lastLines are what a person needs of a failed command's words.
func lastLines(b []byte) []byte {
	const most = 4000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return b
}
