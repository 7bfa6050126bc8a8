package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Record says which process a container is and how to run more in it, for
// other processes and for after a crash. It holds the environment, so its
// file is root's alone.
type Record struct {
	Namespace, Pod, UID, Container string
	Init                           bool
	PID                            int
	Start                          uint64 // /proc/<pid>/stat field 22: PIDs are used again
	Program                        Program
	Cgroups                        []string
}

// ErrEnded says that a container's process is no more.
var ErrEnded = errors.New("the container is not running")

// killWait bounds the wait for a killed process; milliseconds unless the
// kernel itself hangs.
const killWait = 5 * time.Second

// Write keeps the record of a process just started.
func (r Record) Write(file string) error {
	start, err := startOf(r.PID)
	if err != nil {
		return fmt.Errorf("record container: %w", err)
	}
	r.Start = start
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record container: %w", err)
	}
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		return fmt.Errorf("record container: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("record container: %w", err)
	}
	return nil
}

// ReadRecord reads what Write kept.
func ReadRecord(file string) (Record, error) {
	var r Record
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, ErrEnded
	}
	if err != nil {
		return r, fmt.Errorf("read record: %w", err)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("read record %s: %w", filepath.Base(file), err)
	}
	return r, nil
}

func startOf(pid int) (uint64, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is a name that may hold anything, in parentheses.
	i := strings.LastIndexByte(string(raw), ')')
	fields := strings.Fields(string(raw)[i+1:])
	const start = 22 - 3
	if i < 0 || len(fields) <= start {
		return 0, fmt.Errorf("read start time of process %d: unknown form", pid)
	}
	return strconv.ParseUint(fields[start], 10, 64)
}

// open holds the recorded process, and no other that got its number later.
func (r Record) open() (*os.File, error) {
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrEnded
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", r.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// Looked at after it is held: see above.
	if start, err := startOf(r.PID); err != nil || start != r.Start {
		f.Close()
		return nil, ErrEnded
	}
	return f, nil
}

// Kill ends all processes of the container and removes its control groups;
// ended ones are no error.
func (r Record) Kill() error {
	defer Unlimit(r.Cgroups)
	f, err := r.open()
	if errors.Is(err, ErrEnded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill container %s of %s/%s: %w", r.Container, r.Namespace, r.Pod, err)
	}
	deadline := time.Now().Add(killWait)
	for time.Now().Before(deadline) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, int(killWait.Milliseconds()))
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for container: %w", err)
		}
	}
	return fmt.Errorf("container %s of %s/%s is still there after SIGKILL", r.Container, r.Namespace, r.Pod)
}

// Streams are the standard three of a program; nil is nothing.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// outputWait bounds the wait for output after the program itself has ended:
// something it left running may hold the pipe open.
const outputWait = time.Second

// Exec runs a program in the recorded container, with its user and
// environment, and gives the exit code. When ctx ends the program is killed.
func (r Record) Exec(ctx context.Context, argv []string, s Streams) (int, error) {
	pidfd, err := r.open()
	if err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", r.Container, err)
	}
	defer pidfd.Close()
	p := r.Program
	p.Argv = argv
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Dir = []string{enterName}, []string{}, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.Err
	cmd.ExtraFiles = []*os.File{pidfd}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGUSR1) }
	cmd.WaitDelay = outputWait // also the patience with that
	start := func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		return join(r.Cgroups, cmd.Process.Pid)
	}
	if err := handOver(cmd, start, p); err != nil {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		return 0, fmt.Errorf("exec in container %s: %w", r.Container, err)
	}
	code := exitCode(withoutDelay(cmd.Wait()))
	if ctx.Err() != nil {
		return code, fmt.Errorf("exec in container %s: %w", r.Container, ctx.Err())
	}
	return code, nil
}

// withoutDelay forgives output that stayed open: the program itself ended well.
func withoutDelay(err error) error {
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return err
}
