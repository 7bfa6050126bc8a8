package fabric

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A killed process is gone within milliseconds unless the kernel itself hangs.
const killWait = 5 * time.Second

// Processes may start others while we look; each round finds those.
const killRounds = 10

// Down ends every process that runs in one of the lab's namespaces, then
// takes the namespaces and the network's files away; the lab's folder too, if
// nobody else put anything in it. It works whatever became of the process that
// made the lab, and a second time.
func Down(runDir, lab string) error {
	if !nameOK.MatchString(lab) {
		return fmt.Errorf("lab %q: the name must be a DNS label", lab)
	}
	dir := labDir(runDir, lab)
	netns := filepath.Join(dir, "netns")
	if err := killAll(netns); err != nil {
		return fmt.Errorf("take lab %s down: %w", lab, err)
	}
	if err := unmountAll(netns); err != nil {
		return fmt.Errorf("take lab %s down: %w", lab, err)
	}
	if err := removePins(netns); err != nil {
		return fmt.Errorf("take lab %s down: %w", lab, err)
	}
	if err := os.Remove(filepath.Join(dir, configFile)); err != nil && !isGone(err) {
		return fmt.Errorf("take lab %s down: %w", lab, err)
	}
	// Not empty: somebody else's. Not there: done before.
	_ = os.Remove(dir)
	_ = os.Remove(filepath.Dir(dir))
	return nil
}

type inode struct {
	dev uint64
	ino uint64
}

func inodeOf(path string) (inode, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return inode{}, false
	}
	return inode{st.Dev, st.Ino}, true
}

// killAll kills every process inside a namespace pinned in dir, but this one.
func killAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	own := map[inode]bool{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if pinned(path) {
			if i, ok := inodeOf(path); ok {
				own[i] = true
			}
		}
	}
	if len(own) == 0 {
		return nil
	}
	for range killRounds {
		n, err := killRound(own)
		if n == 0 || err != nil {
			return err
		}
	}
	return errors.New("processes in its namespaces keep starting others")
}

func killRound(own map[inode]bool) (killed int, err error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	var dying []int
	defer func() {
		for _, fd := range dying {
			unix.Close(fd)
		}
	}()
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() || !insideOf(pid, own) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // ended meanwhile
		}
		dying = append(dying, fd)
		// Looked at again now that the descriptor holds the process: were the
		// number given to another process meanwhile, the signal goes nowhere.
		if insideOf(pid, own) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			killed++
		}
	}
	deadline := time.Now().Add(killWait)
	for _, fd := range dying {
		if err := waitGone(fd, deadline); err != nil {
			return killed, err
		}
	}
	return killed, nil
}

func insideOf(pid int, own map[inode]bool) bool {
	i, ok := inodeOf("/proc/" + strconv.Itoa(pid) + "/ns/net")
	return ok && own[i]
}

func waitGone(pidfd int, deadline time.Time) error {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("a killed process is still there after %s", killWait)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for a killed process: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}

// unmountAll takes away every mount at or below dir, newest first.
func unmountAll(dir string) error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(raw), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		if len(fields) < 5 {
			continue
		}
		at := unescape(fields[4])
		if at != dir && !strings.HasPrefix(at, dir+"/") {
			continue
		}
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !isGone(err) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

// unescape undoes mountinfo's octal escapes (proc(5)).
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// removePins removes the files that carried mounts. They are empty and flat:
// removing them one by one can never reach anything else.
func removePins(dir string) error {
	entries, err := os.ReadDir(dir)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !isGone(err) {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !isGone(err) {
		return err
	}
	return nil
}
