package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// readyFD is where the daemon says that it is ready, or why it is not.
	readyFD = 3
	// readyWord is what it says.
	readyWord = "ready"
	// statusPoll is how often up looks whether the pods are ready.
	statusPoll = 100 * time.Millisecond
)

// upFlags are what `lab up` is told.
type upFlags struct {
	*labFlags
	manifests, zones, hosts []string
	nodes                   int
	noMesh, foreground      bool
	daemon, wait            bool
	bin, trustDomain, level string
	timeout                 time.Duration
}

func newLabUp(f *labFlags) *cobra.Command {
	u := &upFlags{labFlags: f}
	cmd := &cobra.Command{
		Use:   "up -f MANIFESTS",
		Short: "Start a lab that runs a folder of manifests, and keep to the folder as it changes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if u.foreground || u.daemon {
				return u.run(cmd)
			}
			return u.start(cmd)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVarP(&u.manifests, "filename", "f", nil, "file or folder of manifests; may stand several times")
	fl.IntVar(&u.nodes, "nodes", 2, "how many")
	fl.StringSliceVar(&u.zones, "zones", nil, "of the nodes, in turn, such as a,b")
	fl.StringArrayVar(&u.hosts, "host", nil, "a host outside the cluster: NAME=IP[,IP...][=COMMAND]; may stand several times")
	fl.BoolVar(&u.noMesh, "no-mesh", false, "without Heddle: plain pods")
	fl.BoolVar(&u.foreground, "foreground", false, "stay; the lab ends with this command")
	fl.BoolVar(&u.wait, "wait", false, "wait for all pods, not only the mesh's own")
	fl.DurationVar(&u.timeout, "timeout", time.Minute, "how long to wait for readiness")
	fl.StringVar(&u.bin, "bin", "", "folder of Heddle's programs; without: where this program stands")
	fl.StringVar(&u.trustDomain, "trust-domain", "cluster.local", "of all identities")
	fl.StringVar(&u.level, "log-level", "info", "of the lab's own log")
	fl.BoolVar(&u.daemon, "daemon", false, "")
	cobra.CheckErr(fl.MarkHidden("daemon"))
	return cmd
}

// config turns flags into a Config.
func (u *upFlags) config() (lab.Config, error) {
	cfg := lab.Config{Name: u.name, RunDir: u.runDir}
	if len(u.manifests) == 0 {
		return cfg, errors.New("say what to run: -f FILE or -f FOLDER of manifests")
	}
	if u.nodes < 1 {
		return cfg, fmt.Errorf("--nodes %d: a lab has at least one", u.nodes)
	}
	for _, m := range u.manifests {
		if _, err := os.Stat(m); err != nil {
			return cfg, fmt.Errorf("find the manifests: %w", err) // it names the path
		}
		abs, err := filepath.Abs(m)
		if err != nil {
			return cfg, fmt.Errorf("manifests %s: %w", m, err)
		}
		cfg.Manifests = append(cfg.Manifests, abs)
	}
	for i := range u.nodes {
		n := lab.Node{Name: fmt.Sprintf("node%d", i+1)}
		if len(u.zones) > 0 {
			n.Zone = u.zones[i%len(u.zones)]
		}
		cfg.Nodes = append(cfg.Nodes, n)
	}
	for _, h := range u.hosts {
		host, err := parseHost(h)
		if err != nil {
			return cfg, err
		}
		cfg.Hosts = append(cfg.Hosts, host)
	}
	if u.noMesh {
		return cfg, nil
	}
	mesh, err := u.mesh()
	cfg.Mesh = mesh
	return cfg, err
}

// mesh finds Heddle's programs.
func (u *upFlags) mesh() (*lab.Mesh, error) {
	dir := u.bin
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find our own program: %w", err)
		}
		dir = filepath.Dir(self)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("--bin %s: %w", u.bin, err)
	}
	m := &lab.Mesh{TrustDomain: u.trustDomain}
	for name, at := range map[string]*string{"heddle-controlplane": &m.ControlPlane, "heddle-injector": &m.Injector, "heddle-sidecar": &m.Sidecar} {
		*at = filepath.Join(dir, name)
		if _, err := os.Stat(*at); err != nil {
			return nil, fmt.Errorf("find %s: %w (build it, name its folder with --bin, or use --no-mesh)", name, err)
		}
	}
	return m, nil
}

// parseHost reads NAME=IP[,IP...][=COMMAND].
func parseHost(s string) (lab.Host, error) {
	parts := strings.SplitN(s, "=", 3)
	if len(parts) < 2 {
		return lab.Host{}, fmt.Errorf("--host %q: want NAME=IP[,IP...][=COMMAND]", s)
	}
	h := lab.Host{Name: parts[0]}
	for ip := range strings.SplitSeq(parts[1], ",") {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return lab.Host{}, fmt.Errorf("--host %q: %w", s, err)
		}
		h.IPs = append(h.IPs, a)
	}
	if len(parts) == 3 {
		h.Command = strings.Fields(parts[2])
	}
	return h, nil
}

// run is the lab itself, in the foreground or as a daemon.
func (u *upFlags) run(cmd *cobra.Command) error {
	say := func(string) {}
	if u.daemon {
		syscall.CloseOnExec(readyFD) // or a host's program would hold it open, and up would wait for ever
		pipe := os.NewFile(readyFD, "ready")
		say = func(s string) {
			fmt.Fprint(pipe, s)
			pipe.Close() // twice is harmless
		}
	}
	err := u.runLab(cmd, say)
	if err != nil {
		say(err.Error())
	}
	return err
}

func (u *upFlags) runLab(cmd *cobra.Command, say func(string)) error {
	cfg, err := u.config()
	if err != nil {
		return err
	}
	if cfg.Log, err = telemetry.NewLogger(cmd.ErrOrStderr(), u.level); err != nil {
		return err
	}
	l, err := lab.New(cfg)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Run(cmd.Context()) }()
	select {
	case err := <-ended:
		return err
	case <-l.Ready():
	}
	say(readyWord)
	if u.foreground {
		u.welcome(cmd)
	}
	return <-ended
}

// start runs the lab as a process of its own and waits until it is ready.
func (u *upFlags) start(cmd *cobra.Command) error {
	cfg, err := u.config()
	if err != nil {
		return err
	}
	if _, err := lab.New(cfg); err != nil {
		return err
	}
	cleared, err := lab.Prepare(u.runDir, u.name)
	switch {
	case errors.Is(err, lab.ErrAlive):
		return fmt.Errorf("lab %[1]s is up already: look with `heddle lab status --name %[1]s`, end it with `heddle lab down --name %[1]s`, or choose another --name", u.name)
	case err != nil:
		return err
	case cleared:
		fmt.Fprintf(cmd.OutOrStdout(), "Cleared away what a killed lab %s had left.\n", u.name)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), u.timeout)
	defer cancel()
	if err := u.spawn(ctx); err != nil {
		return err
	}
	if u.wait {
		if err := u.waitForPods(ctx); err != nil {
			return err
		}
	}
	u.welcome(cmd)
	return nil
}

// spawn starts the daemon and waits for its word.
func (u *upFlags) spawn(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find our own program: %w", err)
	}
	dir := lab.StateDir(u.runDir, u.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the lab's state dir: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, "lab.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the lab's log: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close()
	daemon := exec.Command(self, append(os.Args[1:], "--daemon")...)
	daemon.Stdout, daemon.Stderr, daemon.ExtraFiles = log, log, []*os.File{w}
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives our terminal
	err = daemon.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start the lab: %w", err)
	}
	said := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(r) // an error is an early end, which says enough
		said <- b
	}()
	select {
	case b := <-said:
		switch {
		case string(b) == readyWord:
			return daemon.Process.Release()
		case len(bytes.TrimSpace(b)) > 0:
			return fmt.Errorf("the lab did not start: %s", b)
		}
		return fmt.Errorf("the lab's process ended without a word; its log is %s", log.Name())
	case <-ctx.Done():
		return fmt.Errorf("lab %s is not ready in time: %w; it runs on: look with `heddle lab status`, its log is %s", u.name, ctx.Err(), log.Name())
	}
}

func (u *upFlags) waitForPods(ctx context.Context) error {
	tick := time.NewTicker(statusPoll)
	defer tick.Stop()
	for {
		s, err := lab.ReadStatus(u.runDir, u.name)
		if err != nil {
			return err
		}
		waiting := ""
		for _, p := range s.Pods {
			if !p.Ready && p.Phase != "Succeeded" {
				waiting = fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, dash(p.Message))
			}
		}
		if waiting == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("pod %s is not ready: %w; the lab runs on", waiting, ctx.Err())
		}
	}
}

// welcome says how to look around.
func (u *upFlags) welcome(cmd *cobra.Command) {
	name := ""
	if u.name != "dev" {
		name = " --name " + u.name
	}
	fmt.Fprintf(cmd.OutOrStdout(), `Lab %s is up. Containers run programs of this machine; images are ignored.
  look:     heddle lab status%[2]s
  inside:   heddle lab exec%[2]s POD -- COMMAND
  logs:     heddle lab logs%[2]s POD
  packets:  heddle lab capture%[2]s --backbone -o FILE
  objects:  %[3]s
  change:   edit the manifests; the lab follows
  end:      heddle lab down%[2]s
`, u.name, name, lab.ObjectsDir(u.runDir, u.name))
}
