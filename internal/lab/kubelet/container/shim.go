package container

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// shimFailed is the exit code of a container that could not be set up; the
// reason went to whoever started it.
const shimFailed = 127

// MaybeShim must be the first thing in main (and in TestMain) of a program
// that starts containers: where this process is to become one, it does so and
// never returns.
func MaybeShim() {
	if len(os.Args) == 0 {
		return
	}
	var err error
	code := shimFailed
	switch os.Args[0] {
	case shimName:
		err = becomeContainer()
	case enterName:
		code, err = enter()
	case dropName:
		err = becomeProgram()
	default:
		return
	}
	if err != nil {
		_, _ = os.NewFile(errFD, "err").WriteString(err.Error())
	}
	os.Exit(code)
}

func readSpec(v any) error {
	// Neither these descriptors nor any that our parent inherited from its own
	// may reach the program.
	if err := unix.CloseRange(specFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	f := os.NewFile(specFD, "spec")
	defer f.Close()
	raw, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("read container: %w", err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("decode container: %w", err)
	}
	return nil
}

// becomeContainer runs as the first process of the new namespaces, except for
// the network's, which the parent chose.
func becomeContainer() error {
	runtime.LockOSThread() // credentials below are this thread's, and it execs
	var s Spec
	if err := readSpec(&s); err != nil {
		return err
	}
	if err := buildRoot(s); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	return s.exec(false)
}

// becomeProgram runs inside all namespaces of a running container.
func becomeProgram() error {
	runtime.LockOSThread()
	var p Program
	if err := readSpec(&p); err != nil {
		return err
	}
	return p.exec(true)
}

// exec gives up what the program must not have and becomes it. The program
// file is opened before: a user who may not walk the path to it (it stands
// in someone's home) may still run it, as from an image.
func (p Program) exec(dieWithParent bool) error {
	path, err := p.find()
	if err != nil {
		return err
	}
	file, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open program %s: %w", path, err)
	}
	dir := p.Dir
	if dir == "" {
		dir = "/"
	}
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("go to workingDir %s: %w", dir, err)
	}
	if err := p.dropPrivileges(); err != nil {
		return err
	}
	if dieWithParent { // a change of user clears it, so not earlier
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return fmt.Errorf("set parent death signal: %w", err)
		}
		fds := []unix.PollFd{{Fd: aliveFD}}
		if n, _ := unix.Poll(fds, 0); n > 0 {
			return fmt.Errorf("the caller has gone")
		}
	}
	if unix.Access(path, unix.X_OK) == nil {
		err = syscall.Exec(path, p.Argv, p.Env)
	} else {
		err = execveat(file, p.Argv, p.Env)
	}
	return fmt.Errorf("run %s as user %d: %w", path, p.UID, err)
}

// find looks a program up as a shell would, in the container's PATH.
func (p Program) find() (string, error) {
	if len(p.Argv) == 0 {
		return "", fmt.Errorf("no program to run")
	}
	name := p.Argv[0]
	if strings.Contains(name, "/") {
		st, err := os.Stat(name)
		switch {
		case err != nil:
			return "", fmt.Errorf("find program: %w", err)
		case st.IsDir() || st.Mode()&0o111 == 0:
			return "", fmt.Errorf("find program: %s is not executable", name)
		}
		return name, nil
	}
	path := ""
	for _, e := range p.Env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("find program: %q is in none of PATH=%s", name, path)
}

// dropPrivileges acts on the calling thread alone; the exec that follows makes it
// the only one.
func (p Program) dropPrivileges() error {
	raiseFileLimit()
	if err := limitCaps(p.Caps); err != nil {
		return err
	}
	groups := make([]uint32, 0, len(p.Groups)+1)
	groups = append(groups, p.Groups...)
	if err := rawSetgroups(groups); err != nil {
		return fmt.Errorf("set supplementary groups: %w", err)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(p.GID), uintptr(p.GID), uintptr(p.GID)); e != 0 {
		return fmt.Errorf("set group %d: %w", p.GID, e)
	}
	// From root to another user the kernel clears all capabilities, which is
	// what Kubernetes' containers see too (no ambient ones).
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(p.UID), uintptr(p.UID), uintptr(p.UID)); e != 0 {
		return fmt.Errorf("set user %d: %w", p.UID, e)
	}
	if p.UID == 0 {
		if err := setCaps(p.Caps); err != nil {
			return err
		}
	}
	if p.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	unix.Umask(0o022)
	return nil
}

// raiseFileLimit gives containers the many descriptors that runtimes of real
// clusters give, as far as the machine lets us.
func raiseFileLimit() {
	const want = 1 << 20 // containerd's unit asks for it
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return
	}
	for _, max := range []uint64{want, l.Max} {
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: max, Max: max}) == nil {
			return
		}
	}
}

// enter joins a running container's namespaces and runs a program there as its
// child: a process cannot change its own PID namespace.
func enter() (int, error) {
	runtime.LockOSThread()
	unix.CloseOnExec(pidfdFD)
	// SIGUSR1 asks us to kill the program and wait for its end. Were we killed
	// ourselves, its zombie would wait for the machine's init, and so would
	// the end of the container's PID namespace.
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	// Threads share a root folder; one that is to change mount namespaces must not.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return shimFailed, fmt.Errorf("unshare root folder: %w", err)
	}
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if err := unix.Setns(pidfdFD, all); err != nil {
		return shimFailed, fmt.Errorf("enter container: %w", err)
	}
	aliveR, aliveW, err := os.Pipe()
	if err != nil {
		return shimFailed, fmt.Errorf("start in container: %w", err)
	}
	defer aliveW.Close()
	spec, errs := os.NewFile(specFD, "spec"), os.NewFile(errFD, "err")
	cmd := &exec.Cmd{
		// In the child /proc/self is the child, and its program still ours.
		Path: "/proc/self/exe", Args: []string{dropName}, Env: []string{}, Dir: "/",
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		ExtraFiles: []*os.File{spec, errs, aliveR},
		// No SysProcAttr.Pdeathsig: Go compares getppid with our number, and
		// inside the container that is 0. The child sets it itself; this
		// thread lives as long as this process (LockOSThread).
	}
	if err := cmd.Start(); err != nil {
		return shimFailed, fmt.Errorf("start in container: %w", err)
	}
	aliveR.Close()
	spec.Close()
	errs.Close() // else the caller waits for our end instead of the exec
	go func() {
		for s := range sigs {
			if s == syscall.SIGUSR1 {
				s = syscall.SIGKILL
			}
			_ = cmd.Process.Signal(s)
		}
	}()
	return exitCode(cmd.Wait()), nil
}

func rawSetgroups(groups []uint32) error {
	if len(groups) == 0 {
		_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		return errnoErr(e)
	}
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), ptr(&groups[0]), 0)
	return errnoErr(e)
}

func errnoErr(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
