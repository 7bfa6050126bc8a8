package cell

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// keep is what an owner writes into the pipe so that its cell outlives it.
const keep = 'k'

// Inside is the first process of a cell: its arguments are the run folder and
// dockerd's data folder. It returns the exit code when dockerd has ended; when
// its owner has, it does not return.
func Inside(dir, data string) int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "cell: this is started by e2e/cluster, not by hand")
		return 2
	}
	if err := prepare(); err != nil {
		fmt.Fprintf(os.Stderr, "cell: %v\n", err)
		return 1
	}
	docker, err := startDocker(dir)
	if err != nil {
		fmt.Fprintf(os.Stderr, "cell: start dockerd: %v\n", err)
		return 1
	}
	go watchOwner(os.Stdin)
	return reapUntil(docker)
}

// watchOwner ends this process, and so the whole cell, when the pipe's other
// end is closed without a word.
func watchOwner(pipe *os.File) {
	var b [1]byte
	if n, _ := pipe.Read(b[:]); n == 1 && b[0] == keep {
		return
	}
	os.Exit(1)
}

// prepare makes the namespaces usable: mounts do not spread to the machine,
// /proc shows this cell, loopback is up.
func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts inside: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	return nil
}

// startDocker also hands on the locks, which we inherited behind standard
// error: the kernel closes a first process's files before it ends the others,
// and nobody may take over dockerd's data while one of them lives.
func startDocker(dir string) (pid int, err error) {
	path, err := exec.LookPath("dockerd")
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	p, err := os.StartProcess(path, []string{"dockerd", "--config-file", dir + "/docker.json"},
		&os.ProcAttr{Files: []*os.File{null, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	return p.Pid, p.Release()
}

// reapUntil waits for all processes, as a first process must, until the one
// has ended, and gives its exit code.
func reapUntil(pid int) int {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1
		case got == pid:
			return status.ExitStatus()
		}
	}
}
