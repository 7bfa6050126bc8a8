package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

// runHost makes a host outside the cluster and runs its program until ctx ends.
// A program that ends by itself is not started again.
func (b *brain) runHost(ctx context.Context, h Host) error {
	netns, err := b.fab.AddHost(h.Name, h.IPs)
	if err != nil {
		return err
	}
	if len(h.Command) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := os.MkdirAll(b.lab.paths.hosts(), 0o755); err != nil {
		return fmt.Errorf("make the hosts' log dir: %w", err)
	}
	log, err := os.Create(filepath.Join(b.lab.paths.hosts(), h.Name+".log"))
	if err != nil {
		return fmt.Errorf("make the log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(h.Command[0], h.Command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	// The process belongs to the namespace of the thread that starts it.
	if err := fabric.Do(netns, cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", h.Command[0], err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		b.lab.log.Warn("a host's program ended", "host", h.Name, "err", err)
		<-ctx.Done()
	case <-ctx.Done():
		// The group, for what it started; there is nothing to do if it is gone.
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		<-ended
	}
	return ctx.Err()
}
