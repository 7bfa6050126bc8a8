// Package cell runs dockerd, and whatever should live with it, in PID, mount
// and network namespaces of its own. The network has loopback and no way out.
// The first process in it is our own program and watches a pipe to its owner:
// when the owner is gone, however it ended, it ends, and the kernel ends every
// process of the cell and takes its mounts and its network away. What can stay
// behind is a folder and empty cgroups; Reap removes them.
//
// It knows nothing of Kubernetes. e2e/cluster calls it.
package cell

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// upLimit is for dockerd to answer; it takes a second or two, on a machine
	// with other work many more.
	upLimit = 2 * time.Minute
	// look is how often a start or an end is looked for.
	look = 50 * time.Millisecond
)

// Config says where a cell lives.
type Config struct {
	Dir  *Dir       // its run folder, claimed
	Data string     // dockerd's data folder; no other dockerd may use it
	Hold []*os.File // locks that the cell holds as long as it lives
}

// Cell is a running cell.
type Cell struct {
	dir      *Dir
	pid      int
	lifeline *os.File // the cell ends when the last copy is closed
	ended    chan error
}

// Start starts a cell and its dockerd, and waits until that answers. The cell
// ends with this process, unless Keep is called.
func Start(ctx context.Context, cfg Config) (*Cell, error) {
	if err := stayDown(cfg.Data); err != nil {
		return nil, err
	}
	c, err := cfg.launch()
	if err != nil {
		return nil, fmt.Errorf("start a cell: %w", err)
	}
	if err := c.awaitDocker(ctx); err != nil {
		return nil, errors.Join(err, c.End())
	}
	return c, cfg.Dir.writeEnter(c.pid)
}

// launch starts the cell's first process.
func (cfg Config) launch() (*Cell, error) {
	if err := cfg.write(); err != nil {
		return nil, err
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	log, err := os.Create(cfg.Dir.Path("cell.log"))
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer log.Close()
	cmd := exec.Command(cfg.Dir.Path("tools/self"), "cell", cfg.Dir.path, cfg.Data)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, log, log
	cmd.ExtraFiles = append([]*os.File{cfg.Dir.lock}, cfg.Hold...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Setpgid:    true, // Ctrl-C is for us; we end the cell in order
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w (it takes root)", err), ours.Close())
	}
	c := &Cell{dir: cfg.Dir, pid: cmd.Process.Pid, lifeline: ours, ended: make(chan error, 1)}
	go func() { c.ended <- cmd.Wait() }()
	if err := cfg.Dir.record(c.pid, false); err != nil {
		return nil, errors.Join(err, c.End())
	}
	return c, nil
}

// awaitDocker waits until dockerd answers, or the cell ends.
func (c *Cell) awaitDocker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case err := <-c.ended:
			c.ended <- err
			return fmt.Errorf("dockerd ended: %v\n%s", err, c.dir.tail("cell.log"))
		case <-ctx.Done():
			return fmt.Errorf("dockerd does not answer: %w\n%s", ctx.Err(), c.dir.tail("cell.log"))
		case <-tick.C:
		}
		if _, err := os.Stat(c.dir.Path("docker.sock")); err != nil {
			continue
		}
		if _, err := c.Output(ctx, "docker", "version", "--format", "{{.Server.Version}}"); err == nil {
			return nil
		}
	}
}

// Command is a command that will run inside the cell, in the current folder.
// It ends with the cell at the latest.
func (c *Cell) Command(ctx context.Context, argv ...string) *exec.Cmd {
	here, err := os.Getwd()
	if err != nil {
		here = "/"
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter(c.pid, here), argv...)...)
	cmd.Env = append(os.Environ(), c.dir.Env()...)
	cmd.WaitDelay = 2 * time.Second // what it started may hold our pipes
	return cmd
}

// enter are nsenter's arguments to get into a cell; the command follows.
func enter(pid int, folder string) []string {
	return []string{"--target", strconv.Itoa(pid), "--pid", "--mount", "--net", "--", "env", "-C", folder}
}

// Output runs a command inside the cell and gives its standard output; an
// error holds what it wrote to standard error.
func (c *Cell) Output(ctx context.Context, argv ...string) (string, error) {
	return c.Pipe(ctx, "", argv...)
}

// Pipe is Output for a command with something on its standard input.
func (c *Cell) Pipe(ctx context.Context, in string, argv ...string) (string, error) {
	cmd := c.Command(ctx, argv...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, errs.String())
	}
	return out.String(), nil
}

// Keep lets the cell live on after this process.
func (c *Cell) Keep() error {
	if err := c.dir.record(c.pid, true); err != nil {
		return err
	}
	_, err := c.lifeline.Write([]byte{keep})
	return err
}

// End ends the cell and waits until all of it has ended. What dockerd should
// forget, it is told before: it is not asked to end, since what it leaves must
// be fit for the next one anyway when a run was killed.
func (c *Cell) End() error {
	defer c.lifeline.Close()
	_ = syscall.Kill(c.pid, syscall.SIGKILL) // our child, not waited for yet: it is no other process
	late := time.NewTimer(goneLimit)
	defer late.Stop()
	select {
	case <-c.ended:
		return nil
	case <-late.C:
		return fmt.Errorf("cell %s: killed, and not gone after %v", c.dir.ID(), goneLimit)
	}
}

// write writes dockerd's configuration, and our own program for the cell to
// run: a rebuild must not change it under a cell that is kept.
func (cfg Config) write() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := copyProgram(cfg.Dir.Path("tools/self"), self); err != nil {
		return err
	}
	d := map[string]any{
		"data-root": cfg.Data,
		"exec-root": cfg.Dir.Path("exec"),
		"pidfile":   cfg.Dir.Path("docker.pid"),
		"hosts":     []string{"unix://" + cfg.Dir.Path("docker.sock")},
		"bridge":    "none", // kind makes its own network
		// systemd's driver would ask the machine's systemd, which is outside.
		"exec-opts":     []string{"native.cgroupdriver=cgroupfs"},
		"cgroup-parent": cfg.Dir.cgroup(),
	}
	missing, err := lacksResource()
	if err != nil {
		return err
	}
	if missing {
		d["runtimes"] = map[string]any{"wrapped": map[string]any{"path": cfg.Dir.Path("tools/self"), "runtimeArgs": []string{"runtime"}}}
		d["default-runtime"] = "wrapped"
	}
	b, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(cfg.Dir.Path("docker.json"), b, 0o644)
}

// inotifyInstances is what kubelet, systemd and containerd of a few clusters
// need; each node takes some twenty. Linux gives a user 128 by default.
const inotifyInstances = 1024

// AllowInotify raises the machine's bound on inotify instances if it is too
// low for several nodes, and says from what; 0 if it was high enough. Nothing
// inside a cell can do without: the bound is on the user.
func AllowInotify() (was int, err error) {
	const file = "/proc/sys/fs/inotify/max_user_instances"
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	was, err = strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || was >= inotifyInstances {
		return 0, err
	}
	return was, os.WriteFile(file, []byte(strconv.Itoa(inotifyInstances)), 0o644)
}

// lacksResource says whether this machine withholds CAP_SYS_RESOURCE from us,
// which docker gives to every privileged container.
func lacksResource() (bool, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		if hex, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return set&(1<<unix.CAP_SYS_RESOURCE) == 0, err
		}
	}
	return false, errors.New("/proc/self/status has no CapBnd")
}

func copyProgram(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
