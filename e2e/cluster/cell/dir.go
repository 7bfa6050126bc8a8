package cell

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
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
)

// Runs is where cells have their run folders. A socket's path is at most 107
// bytes long, so it is short.
const Runs = "/run/heddle-e2e"

// goneLimit is how long a killed cell may take to be gone: the kernel ends
// some two hundred processes and a few dozen mounts.
const goneLimit = 30 * time.Second

// Dir is the run folder of a cell. Whoever holds its lock, the owner or the
// cell itself, makes it a living one.
type Dir struct {
	path string
	lock *os.File
}

// state is what a run folder says of its processes. The lock says whether
// there are any; this says whom to signal.
type state struct {
	Owner process `json:"owner"`
	Cell  process `json:"cell"`
	Kept  bool    `json:"kept"`
}

// process is a process and no other that later has its number.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot: proc(5), stat, field 22
}

// Claim makes a new run folder below runs for this process.
func Claim(runs string) (*Dir, error) {
	unlock, err := lockRuns(runs)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var id [3]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	d := &Dir{path: filepath.Join(runs, hex.EncodeToString(id[:]))}
	for _, sub := range []string{"", "tools", "bin", "logs"} {
		if err := os.MkdirAll(d.Path(sub), 0o755); err != nil {
			return nil, fmt.Errorf("make a run folder: %w", err)
		}
	}
	f, ok, err := tryLock(d.Path("lock"))
	if err != nil || !ok {
		return nil, fmt.Errorf("lock the new run folder %s: %w", d.path, err)
	}
	d.lock = f
	return d, d.record(0, false)
}

// Path is a path below the run folder.
func (d *Dir) Path(rel string) string { return filepath.Join(d.path, rel) }

// ID names the cell among all.
func (d *Dir) ID() string { return filepath.Base(d.path) }

// Env is the environment in which docker, kubectl and tests find the cell.
func (d *Dir) Env() []string {
	return []string{
		"DOCKER_HOST=unix://" + d.Path("docker.sock"),
		"KUBECONFIG=" + d.Path("kubeconfig"),
		"HEDDLE_E2E_DIR=" + d.path,
		"PATH=" + d.Path("bin") + ":" + d.Path("tools") + ":" + os.Getenv("PATH"),
	}
}

// Remove removes the run folder; its cell has ended.
func (d *Dir) Remove() error {
	unlock, err := lockRuns(filepath.Dir(d.path))
	if err != nil {
		return err
	}
	defer unlock()
	defer d.lock.Close()
	return d.wipe()
}

// wipe takes away what a cell leaves behind.
func (d *Dir) wipe() error {
	removeCgroups(cellCgroups(d.ID()))
	if err := os.RemoveAll(d.path); err != nil {
		return fmt.Errorf("remove a run folder: %w", err)
	}
	return nil
}

func (d *Dir) cgroup() string { return cgroupPrefix + d.ID() }

// record writes who owns the folder and which process is its cell.
func (d *Dir) record(cell int, kept bool) error {
	s := state{Owner: process{PID: os.Getpid()}, Cell: process{PID: cell}, Kept: kept}
	for _, p := range []*process{&s.Owner, &s.Cell} {
		if p.PID == 0 {
			continue
		}
		start, err := startTime(p.PID)
		if err != nil {
			return fmt.Errorf("note process %d: %w", p.PID, err)
		}
		p.Start = start
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	// Renamed into place: a reader sees the old or the new, never half.
	if err := os.WriteFile(d.Path("state.new"), b, 0o644); err != nil {
		return err
	}
	return os.Rename(d.Path("state.new"), d.Path("state.json"))
}

func readState(dir string) (s state, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

// writeEnter writes the script by which people get in.
func (d *Dir) writeEnter(pid int) error {
	var b bytes.Buffer
	b.WriteString("#!/bin/sh\n# Runs a command inside this cluster's network, with its kubectl, docker and heddle.\n")
	for _, kv := range d.Env() {
		name, value, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&b, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
	fmt.Fprintf(&b, "exec nsenter %s \"$@\"\n", strings.Join(enter(pid, `"$PWD"`), " "))
	return os.WriteFile(d.Path("in"), b.Bytes(), 0o755)
}

// tail is the end of a file in the run folder.
func (d *Dir) tail(name string) string {
	const most = 2000 // bytes; what a person reads
	b, _ := os.ReadFile(d.Path(name))
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return string(b)
}

// startTime is when a process that lives was started. The first process of a
// cell lives until every other one has ended.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The command, in parentheses, may hold anything; what follows is plain.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const start = 22 - 3 // field 3 is the first behind the command
	if len(fields) <= start {
		return 0, fmt.Errorf("/proc/%d/stat is short", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, fmt.Errorf("process %d has ended", pid) // nobody has asked for its exit code yet
	}
	return strconv.ParseUint(fields[start], 10, 64)
}

// lives says whether the process is there.
func (p process) lives() bool {
	start, err := startTime(p.PID)
	return p.PID > 0 && err == nil && start == p.Start
}

// kill ends the process if it is still the one it was.
func (p process) kill() error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.lives() {
		return nil // it ended, and its number is another's
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return nil
}

// lockRuns keeps making and removing of run folders apart.
func lockRuns(runs string) (func(), error) {
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of runs: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(runs, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the folder of runs: %w", err)
	}
	return func() { f.Close() }, nil
}

func tryLock(path string) (*os.File, bool, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, true, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, false, nil
	}
	return nil, false, err
}

// cgroups are mounted here, version 1 one level deeper.
const (
	cgroups      = "/sys/fs/cgroup"
	cgroupPrefix = "/heddle-e2e-"
)

// cellCgroups are the cgroups of a cell, or of all, in every hierarchy.
func cellCgroups(id string) []string {
	one, _ := filepath.Glob(cgroups + "/*" + cgroupPrefix + id)
	two, _ := filepath.Glob(cgroups + cgroupPrefix + id)
	return append(one, two...)
}

// removeCgroups removes empty cgroups. Nothing depends on it: a cgroup that
// stays, as the kernel may still be busy with it, is an empty folder, and the
// next Reap tries again.
func removeCgroups(tops []string) {
	for _, top := range tops {
		var all []string
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for i := len(all) - 1; i >= 0; i-- {
			_ = unix.Rmdir(all[i])
		}
	}
}
