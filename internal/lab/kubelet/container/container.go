// Package container makes a process of this machine a container: its own PID,
// mount, UTS and IPC namespaces, a given network namespace, user, capabilities
// and volumes. There are no images: the root file system is the machine's,
// with what a container must have of its own on top (/proc, /sys, /run,
// /dev/shm, volumes, and folders that the machine does not have). It knows
// nothing of pods. internal/lab/kubelet calls it.
//
// A container is started through the calling program itself: Start runs
// /proc/self/exe again, whose main calls MaybeShim first, which sets the
// namespaces up from the inside and becomes the container's program.
//
// Containers have no parent-death signal: it fires when the parent *thread*
// ends, and ours ends with each start (fabric.Do). A process that died leaves
// its containers running; their Records say which they are (Record.Kill).
package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

// Spec is one container.
type Spec struct {
	NetNS    string // path of the network namespace
	Root     string // an empty folder outside all Mounts: the root file system is built on it, unseen by others
	Hostname string
	Mounts   []Mount
	Cgroups  []string // folders made by Limit, joined before the program runs
	// Privileged containers may write /proc/sys, as they may in a cluster.
	Privileged bool
	// ReadOnlyRoot makes everything read-only but Mounts, /proc and /dev.
	ReadOnlyRoot bool
	Program
}

// Program is what runs in a container, and as whom.
type Program struct {
	Argv       []string
	Env        []string // KEY=value, complete
	Dir        string   // empty: /
	UID, GID   uint32
	Groups     []uint32 // supplementary
	Caps       uint64   // bounding set; for UID 0 also what it has (see Capabilities)
	NoNewPrivs bool
}

// Mount shows a file or folder of the machine in the container. Target may be
// anywhere: folders that are missing appear in the container only.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Process is a container that was started.
type Process struct {
	pid  int
	cmd  *exec.Cmd
	done chan struct{}
	code int
}

// How our own program is called when it is about to become a container.
const (
	shimName  = "heddle-lab-container" // Start, inside the new namespaces
	enterName = "heddle-lab-enter"     // Exec, still outside
	dropName  = "heddle-lab-exec"      // Exec, inside
)

// Descriptors of the shim, after the standard three.
const (
	specFD  = 3 // JSON to read
	errFD   = 4 // why it failed; closed by a successful exec
	pidfdFD = 5 // Exec outside: the container's first process
	aliveFD = 5 // Exec inside: hangs up when the parent has died
)

// startWait bounds setting a container up: a few dozen system calls and
// reading one program, on a machine that may be very busy.
const startWait = 20 * time.Second

// Start starts a container. The error names what could not be set up. Output
// goes to stdout and stderr, which the caller still owns.
func Start(s Spec, stdout, stderr *os.File) (*Process, error) {
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{shimName}, Env: []string{}, Dir: "/",
		Stdout: stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
			Setsid:     true,
		},
	}
	start := func() error {
		if err := fabric.Do(s.NetNS, cmd.Start); err != nil {
			return err
		}
		return join(s.Cgroups, cmd.Process.Pid) // it waits for its Spec
	}
	if err := handOver(cmd, start, s); err != nil {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		return nil, err
	}
	p := &Process{pid: cmd.Process.Pid, cmd: cmd, done: make(chan struct{})}
	go p.wait()
	return p, nil
}

// handOver starts a shim, sends it what it shall do and waits until it did it,
// that is until it became the program.
func handOver(cmd *exec.Cmd, start func() error, what any) error {
	raw, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encode container: %w", err)
	}
	specR, specW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	defer specW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		specR.Close()
		return fmt.Errorf("start container: %w", err)
	}
	defer errR.Close()
	cmd.ExtraFiles = append([]*os.File{specR, errW}, cmd.ExtraFiles...)
	err = start()
	specR.Close()
	errW.Close()
	if err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	_, werr := specW.Write(raw)
	specW.Close()
	if err := errR.SetReadDeadline(time.Now().Add(startWait)); err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	msg, err := io.ReadAll(errR)
	switch {
	case len(msg) > 0:
		return errors.New(string(msg))
	case err != nil:
		return fmt.Errorf("start container: still not set up after %s: %w", startWait, err)
	case werr != nil:
		return fmt.Errorf("start container: its shim ended early (does main call MaybeShim?): %w", werr)
	}
	return nil
}

func (p *Process) wait() {
	err := p.cmd.Wait()
	p.code = exitCode(err)
	close(p.done)
}

// exitCode is 128 + n for a process killed by signal n, as shells and
// Kubernetes have it.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 255
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return exit.ExitCode()
}

// PID is the container's first process as this machine counts.
func (p *Process) PID() int { return p.pid }

// Done is closed when the container has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Code is the exit code once Done is closed.
func (p *Process) Code() int { return p.code }

// Signal sends a signal to the container's first process. SIGKILL ends all
// its processes. One that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal container: %w", err)
	}
	return nil
}
