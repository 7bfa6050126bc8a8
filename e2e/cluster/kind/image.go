// Package kind makes the node image and the cluster of `make e2e`: three nodes
// in three zones, dual-stack, without kube-proxy, with a pod network of ptp
// interfaces and static routes. Heddle is no part of what it makes. e2e/cluster
// calls it.
package kind

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/imagetar"
	"github.com/heddle-mesh/heddle/e2e/cluster/programs"
	"github.com/heddle-mesh/heddle/e2e/cluster/store"
)

// What the node image is made with, besides programs: a change makes another.
var (
	//go:embed stage.sh
	stage string
	//go:embed pause/main.go
	pauseSource string
)

// containerdLimit is for a fresh containerd to answer.
const containerdLimit = 30 * time.Second

// NodeImage is an archive of a node image for `docker load`, and its name.
type NodeImage struct {
	Tar string
	Ref string
}

// parts are the folders that a node image is assembled from.
type parts struct {
	dirs   map[programs.Set]string
	rootFS string
}

// LocalImage assembles a node image from Debian and Go modules. It takes root.
func LocalImage(ctx context.Context, b programs.Builder) (NodeImage, error) {
	p := parts{dirs: map[programs.Set]string{}}
	var err error
	if p.rootFS, err = b.RootFS(ctx); err != nil {
		return NodeImage{}, err
	}
	sets := []programs.Set{programs.Kind, programs.Cluster, programs.Kubectl, programs.Etcd, programs.Containerd, programs.CoreDNS, programs.Crictl}
	in := []any{"node", 1, stage, pauseSource, filepath.Base(filepath.Dir(p.rootFS)), programs.CoreDNSTag, programs.EtcdTag, programs.PauseTag}
	for _, set := range sets {
		if p.dirs[set], err = b.Build(ctx, set); err != nil {
			return NodeImage{}, err
		}
		in = append(in, set, filepath.Base(p.dirs[set])) // its key: what it was made from
	}
	key, err := store.Key(in...)
	if err != nil {
		return NodeImage{}, err
	}
	ref := "heddle/kind-node:" + key
	dir, err := b.Store.Get(ctx, "node", key, func(ctx context.Context, dir string) error {
		return p.assemble(ctx, dir, ref)
	})
	return NodeImage{Tar: filepath.Join(dir, "node.tar"), Ref: ref}, err
}

// assemble makes dir/node.tar.
func (p parts) assemble(ctx context.Context, dir, ref string) error {
	root := filepath.Join(dir, "root")
	if err := p.files(ctx, root); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "chroot", root, "/bin/bash", "-s")
	cmd.Stdin = strings.NewReader(stage)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "KUBERNETES=v" + programs.Kubernetes}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("stage the node: %w\n%s", err, out)
	}
	if err := p.images(ctx, dir, root); err != nil {
		return err
	}
	layer := filepath.Join(dir, "layer.tar")
	if err := command(ctx, "tar", "-C", root, "--numeric-owner", "-cf", layer, "."); err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(dir, "node.tar"))
	if err != nil {
		return err
	}
	err = imagetar.Write(out, imagetar.Image{
		Ref: ref, Layer: layer, Env: []string{"container=docker"}, StopSignal: "SIGRTMIN+3",
		Entrypoint: []string{"/usr/local/bin/entrypoint", "/sbin/init"},
	})
	return errors.Join(err, out.Close(), os.RemoveAll(root), os.Remove(layer))
}

// files puts Debian, kind's files and the programs of a node together.
func (p parts) files(ctx context.Context, root string) error {
	if err := command(ctx, "cp", "-a", p.rootFS, root); err != nil {
		return err
	}
	from := filepath.Join(p.dirs[programs.Kind], "module/images/base/files")
	for _, sub := range []string{"usr/local/bin", "kind", "etc"} {
		if err := command(ctx, "cp", "-rT", filepath.Join(from, sub), filepath.Join(root, sub)); err != nil {
			return err
		}
	}
	for _, f := range []string{
		p.dirs[programs.Cluster] + "/kubelet", p.dirs[programs.Cluster] + "/kubeadm", p.dirs[programs.Kubectl] + "/kubectl",
		p.dirs[programs.Crictl] + "/crictl", p.dirs[programs.Containerd] + "/containerd",
		p.dirs[programs.Containerd] + "/ctr", p.dirs[programs.Containerd] + "/containerd-shim-runc-v2",
	} {
		if err := command(ctx, "cp", f, filepath.Join(root, "usr/local/bin")+"/"); err != nil {
			return err
		}
	}
	return nil
}

// images puts the images of the control plane into the node's containerd,
// under the names that kubeadm asks for.
func (p parts) images(ctx context.Context, dir, root string) error {
	pause := filepath.Join(dir, "pause")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", pause, "github.com/heddle-mesh/heddle/e2e/cluster/kind/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build pause: %w\n%s", err, out)
	}
	file := filepath.Join(dir, "images.tar")
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(imagetar.Write(out, p.controlPlane(pause)...), out.Close()); err != nil {
		return err
	}
	if err := p.importInto(ctx, filepath.Join(root, "var/lib/containerd"), file); err != nil {
		return err
	}
	return errors.Join(os.Remove(file), os.Remove(pause))
}

func (p parts) controlPlane(pause string) []imagetar.Image {
	const registry = "registry.k8s.io/"
	image := func(ref, from, to string) imagetar.Image {
		return imagetar.Image{Ref: registry + ref, Files: []imagetar.File{{From: from, To: to}}, Entrypoint: []string{to}, Env: []string{"PATH=/usr/local/bin:/"}}
	}
	out := []imagetar.Image{
		image("pause:"+programs.PauseTag, pause, "/pause"),
		image("coredns/coredns:"+programs.CoreDNSTag, p.dirs[programs.CoreDNS]+"/coredns", "/coredns"),
		image("etcd:"+programs.EtcdTag, p.dirs[programs.Etcd]+"/etcd", "/usr/local/bin/etcd"),
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		out = append(out, image(name+":v"+programs.Kubernetes, p.dirs[programs.Cluster]+"/"+name, "/usr/local/bin/"+name))
	}
	return out
}

// importInto imports images into the data folder of a containerd that does not
// run yet, by running one over it, in a network of its own. They are not
// unpacked: a node does that once it has its disk.
func (p parts) importInto(ctx context.Context, data, file string) error {
	work, err := os.MkdirTemp("", "heddle-ctr-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	conf := fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = %q
`, data, filepath.Join(work, "state"), filepath.Join(work, "sock"))
	if err := os.WriteFile(filepath.Join(work, "config.toml"), []byte(conf), 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bin := p.dirs[programs.Containerd]
	daemon := exec.CommandContext(ctx, "unshare", "--net", filepath.Join(bin, "containerd"), "--config", filepath.Join(work, "config.toml"))
	var log strings.Builder
	daemon.Stdout, daemon.Stderr = io.Discard, &log
	daemon.Cancel = func() error { return daemon.Process.Signal(os.Interrupt) }
	daemon.WaitDelay = containerdLimit
	if err := daemon.Start(); err != nil {
		return err
	}
	ctr := []string{filepath.Join(bin, "ctr"), "--address", filepath.Join(work, "sock"), "--connect-timeout", containerdLimit.String(), "-n", "k8s.io"}
	if err = listens(ctx, filepath.Join(work, "sock")); err == nil {
		err = command(ctx, append(ctr, "images", "import", "--local", "--no-unpack", file)...)
	}
	cancel()
	_ = daemon.Wait() // it was told to end; what matters is what it kept
	if err != nil {
		return fmt.Errorf("%w\n%s", err, log.String())
	}
	return nil
}

// listens waits until a socket is there.
func listens(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, containerdLimit)
	defer cancel()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if _, err := os.Stat(socket); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", socket, ctx.Err())
		case <-tick.C:
		}
	}
}

// command runs a program of the machine.
func command(ctx context.Context, argv ...string) error {
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return nil
}
