package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet"
)

const (
	// downWait is how long Down waits for a lab to end by itself: pods get
	// stopGrace, system pods too, and taking namespaces away takes a moment.
	downWait = 45 * time.Second
	// ownerPoll is how often Down looks whether the owner is gone.
	ownerPoll = 20 * time.Millisecond
	// letGo is how long a killed process may take to be gone; so long the
	// refusal of a name takes.
	letGo = 500 * time.Millisecond
	// stillOurs is how often a lab looks whether its name is still its own.
	stillOurs = time.Second
)

// ErrAlive says that a lab of that name runs already.
var ErrAlive = errors.New("a lab of that name is up")

// errTakenAway ends a lab whose folder was removed under it: nobody could find
// or end it any more.
var errTakenAway = errors.New("the lab's state dir was taken away")

// ErrNotUp says that there is no lab of that name.
var ErrNotUp = errors.New("no lab of that name is up")

// owner is the process that holds a lab. The lock on the lab's lock file says
// whether it lives: the kernel lets go of it however the process ends. Pid and
// start time only say whom to signal.
type owner struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // of the process, in clock ticks since boot (proc(5), stat field 22)
}

// claim takes a lab's lock for this process; ErrAlive if another has it.
func claim(p paths) (*os.File, error) {
	if err := os.MkdirAll(string(p), 0o755); err != nil {
		return nil, fmt.Errorf("make the lab's state dir: %w", err)
	}
	f, err := os.OpenFile(p.lock(), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lab's lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return nil, ErrAlive
	}
	if err == nil && !sameFile(f, p.lock()) {
		err = errors.New("it was taken away meanwhile, try again")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	return f, nil
}

// claimSoon is claim with patience for an owner that was killed a moment ago:
// the kernel lets go of its lock once its last thread is gone.
func claimSoon(p paths) (*os.File, error) {
	late := time.NewTimer(letGo)
	defer late.Stop()
	tick := time.NewTicker(ownerPoll)
	defer tick.Stop()
	for {
		lock, err := claim(p)
		if !errors.Is(err, ErrAlive) {
			return lock, err
		}
		select {
		case <-tick.C:
		case <-late.C:
			return nil, err
		}
	}
}

// sameFile holds that the file locked is still the one at path: another
// process may have taken the lab down between opening and locking.
func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

func writeOwner(p paths) error {
	start, err := startTime(os.Getpid())
	if err != nil {
		return fmt.Errorf("read our own start time: %w", err)
	}
	b, err := json.Marshal(owner{PID: os.Getpid(), Start: start})
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.owner(), b, 0o644); err != nil {
		return fmt.Errorf("write the lab's owner: %w", err)
	}
	return nil
}

// startTime is when a process that lives was started.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The command, in parentheses, may hold anything; what follows is plain.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	const start = 22 - 3 // field 3 is the first behind the command
	if len(fields) <= start {
		return 0, fmt.Errorf("/proc/%d/stat is short", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, fmt.Errorf("process %d has ended", pid) // nobody has asked for its exit code yet
	}
	return strconv.ParseUint(fields[start], 10, 64)
}

// Prepare makes way for a lab of that name: it takes away what a dead one left
// and says whether there was anything. ErrAlive if one lives.
func Prepare(runDir, name string) (cleared bool, err error) {
	p := paths(StateDir(runDir, name))
	if _, err := os.Stat(string(p)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	lock, err := claimSoon(p)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	return true, wipe(runDir, name)
}

// keepLock watches until ctx ends that the lock is still the one at its path,
// and calls lost if not.
func keepLock(ctx context.Context, lock *os.File, p paths, lost context.CancelCauseFunc) {
	tick := time.NewTicker(stillOurs)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !sameFile(lock, p.lock()) {
			lost(errTakenAway)
			return
		}
	}
}

// leave takes the lab away. If the name is no longer locked by this process, it
// may be another lab's by now, which is left alone.
func (l *Lab) leave(lock *os.File) error {
	if !sameFile(lock, l.paths.lock()) {
		again, err := claim(l.paths)
		if errors.Is(err, ErrAlive) {
			return nil
		}
		if err != nil {
			return err
		}
		defer again.Close()
	}
	return wipe(l.cfg.RunDir, l.cfg.Name)
}

// alive says whether a lab of that name is up.
func alive(runDir, name string) bool {
	f, err := os.Open(paths(StateDir(runDir, name)).lock())
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Down ends a lab and takes everything of it away. It asks the process that
// owns it first, and works as well when that is dead. ErrNotUp if there is
// nothing of such a lab.
func Down(ctx context.Context, runDir, name string) error {
	if !labelOK.MatchString(name) {
		return fmt.Errorf("lab name %q: want a DNS label", name)
	}
	p := paths(StateDir(runDir, name))
	if _, err := os.Stat(string(p)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s", ErrNotUp, name)
	}
	lock, err := claim(p)
	if errors.Is(err, ErrAlive) {
		if lock, err = stopOwner(ctx, p); err == nil && lock == nil {
			return nil // it cleaned up itself
		}
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	return wipe(runDir, name)
}

// stopOwner asks the owner to end and waits until it has, or has taken the
// whole state dir away; then it takes the lock. A nil lock without error says
// that nothing is left to lock.
func stopOwner(ctx context.Context, p paths) (*os.File, error) {
	var o owner
	b, err := os.ReadFile(p.owner())
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		return nil, fmt.Errorf("find the lab's owner: %w", err)
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := sendSignal(o, sig); err != nil {
			return nil, err
		}
		done, err := waitOwner(ctx, p, o)
		if err != nil {
			return nil, err
		}
		if done {
			if _, err := os.Stat(string(p)); errors.Is(err, fs.ErrNotExist) {
				return nil, nil
			}
			return claimSoon(p)
		}
	}
	return nil, fmt.Errorf("the lab's owner, process %d, does not end", o.PID)
}

// waitOwner waits, at most downWait, until the owner is gone or its lab is.
func waitOwner(ctx context.Context, p paths, o owner) (bool, error) {
	late := time.NewTimer(downWait)
	defer late.Stop()
	tick := time.NewTicker(ownerPoll)
	defer tick.Stop()
	for {
		start, err := startTime(o.PID)
		if err != nil || start != o.Start {
			return true, nil
		}
		if _, err := os.Stat(string(p)); errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
		select {
		case <-tick.C:
		case <-late.C:
			return false, nil
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the lab to end: %w", ctx.Err())
		}
	}
}

// sendSignal reaches the owner only if the process of that number is still it.
func sendSignal(o owner, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(o.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find process %d: %w", o.PID, err)
	}
	defer unix.Close(fd)
	if start, err := startTime(o.PID); err != nil || start != o.Start {
		return nil // it ended, and its number is another's
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", o.PID, err)
	}
	return nil
}

// wipe takes away whatever a lab left. The caller holds its lock.
func wipe(runDir, name string) error {
	p := paths(StateDir(runDir, name))
	if err := fabric.Down(runDir, name); err != nil {
		return err
	}
	if _, err := os.Stat(p.kubelet()); err == nil {
		if err := kubelet.Clean(p.kubelet()); err != nil {
			return fmt.Errorf("clean up the pods of lab %s: %w", name, err)
		}
	}
	if err := noMounts(string(p)); err != nil {
		return err
	}
	if err := os.RemoveAll(string(p)); err != nil {
		return fmt.Errorf("remove the state of lab %s: %w", name, err)
	}
	_ = os.Remove(filepath.Dir(string(p))) // stays where other labs are
	return nil
}

// noMounts refuses to remove a tree into which something is still mounted:
// removing it would remove what is behind the mount.
func noMounts(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			return fmt.Errorf("%s is still mounted: unmount it, then run down again", f[4])
		}
	}
	return nil
}
