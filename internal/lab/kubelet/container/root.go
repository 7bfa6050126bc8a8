package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// tree is a detached copy of a mount, to be attached elsewhere.
type tree struct {
	fd     int
	isFile bool
}

// buildRoot makes the container's view of files in its new mount namespace:
// a small tmpfs as root with the machine's folders in it, so that a volume
// may stand anywhere and nothing is ever made on the machine's own disks.
func buildRoot(s Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := dropPins(); err != nil {
		return err
	}
	// Outer mounts first: inner ones then stand inside them.
	sort.SliceStable(s.Mounts, func(a, b int) bool { return depth(s.Mounts[a].Target) < depth(s.Mounts[b].Target) })
	volumes, err := copySources(s.Mounts)
	if err != nil {
		return err
	}
	if err := newRoot(s.Root); err != nil {
		return err
	}
	if err := pivot(s.Root); err != nil {
		return err
	}
	for i, m := range s.Mounts {
		if err := attachVolume(volumes[i], m.Target); err != nil {
			return err
		}
	}
	return protect(s)
}

func depth(path string) int { return strings.Count(filepath.Clean(path), "/") }

// dropPins takes mounts of namespaces (nsfs) out of this container's view: a
// copy here would keep a pod's network alive after the pod is gone.
func dropPins() error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for _, line := range strings.Split(string(raw), "\n") {
		left, right, ok := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		if !ok || len(fields) < 5 || !strings.HasPrefix(right, "nsfs ") {
			continue
		}
		_ = unix.Unmount(fields[4], unix.MNT_DETACH) // may lie under another mount
	}
	return nil
}

func copyTree(path string) (tree, error) {
	st, err := os.Stat(path)
	if err != nil {
		return tree{}, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return tree{}, &fs.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return tree{fd: fd, isFile: !st.IsDir()}, nil
}

func (t tree) attach(path string) error {
	defer unix.Close(t.fd)
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &fs.PathError{Op: "move_mount", Path: path, Err: err}
	}
	return nil
}

func copySources(mounts []Mount) ([]tree, error) {
	out := make([]tree, len(mounts))
	for i, m := range mounts {
		t, err := copyTree(m.Source)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Target, err)
		}
		out[i] = t
	}
	return out, nil
}

// newRoot fills the tmpfs. Copies are taken before it is mounted, so that it
// never holds itself.
func newRoot(root string) error {
	entries, err := os.ReadDir("/")
	if err != nil {
		return fmt.Errorf("read root folder: %w", err)
	}
	trees := map[string]tree{}
	links := map[string]string{}
	for _, e := range entries {
		name := e.Name()
		switch {
		case name == "proc" || name == "sys" || name == "run" || name == "lost+found":
		case e.Type()&fs.ModeSymlink != 0:
			if links[name], err = os.Readlink("/" + name); err != nil {
				return fmt.Errorf("read root folder: %w", err)
			}
		case e.IsDir():
			t, err := copyTree("/" + name)
			if err != nil {
				return fmt.Errorf("copy root folder: %w", err)
			}
			trees[name] = t
		}
	}
	if err := unix.Mount("heddle-lab", root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount root file system: %w", err)
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			return fmt.Errorf("fill root folder: %w", err)
		}
	}
	for name, t := range trees {
		at := filepath.Join(root, name)
		if err := os.Mkdir(at, 0o755); err != nil {
			return fmt.Errorf("fill root folder: %w", err)
		}
		if err := t.attach(at); err != nil {
			return fmt.Errorf("fill root folder: %w", err)
		}
	}
	return ownMounts(root)
}

// ownMounts are what no container shares with the machine.
func ownMounts(root string) error {
	for _, name := range []string{"proc", "sys", "run"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return fmt.Errorf("fill root folder: %w", err)
		}
	}
	const strict = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", strict, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("heddle-lab", filepath.Join(root, "run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	// Its own sysfs, because /sys/class/net shows the network namespace it was mounted in.
	sys := filepath.Join(root, "sys")
	if err := unix.Mount("sysfs", sys, "sysfs", strict|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if t, err := copyTree("/sys/fs/cgroup"); err == nil {
		// Runtimes read their limits there; doing without is no harm.
		_ = t.attach(filepath.Join(sys, "fs/cgroup"))
	}
	shm := filepath.Join(root, "dev/shm")
	if _, err := os.Stat(shm); err == nil {
		if err := unix.Mount("heddle-lab", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
			return fmt.Errorf("mount /dev/shm: %w", err)
		}
	}
	return nil
}

// pivot makes root the root, and lets go of the old one (pivot_root(2), "pivot_root(".", ".")").
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("change root: leave the old one: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	return nil
}

func attachVolume(t tree, target string) error {
	at, err := makeTarget(target, t.isFile)
	if err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	if err := t.attach(at); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// maxLinks bounds the symbolic links followed to a target, as the kernel does.
const maxLinks = 40

// makeTarget gives a path without symbolic links that exists, making what is
// missing without touching the machine's disks.
func makeTarget(target string, isFile bool) (string, error) {
	if !filepath.IsAbs(target) {
		return "", fmt.Errorf("the path must be absolute")
	}
	rest := split(target)
	at := "/"
	links := 0
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		st, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return grow(at, rest, isFile)
		case err != nil:
			return "", err
		case st.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", fmt.Errorf("too many symbolic links")
			}
			to, err := os.Readlink(next)
			if err != nil {
				return "", err
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(at, to)
			}
			at, rest = "/", append(split(to), rest[1:]...)
		default:
			at, rest = next, rest[1:]
		}
	}
	return at, nil
}

func split(path string) []string {
	return strings.FieldsFunc(filepath.Clean(path), func(r rune) bool { return r == '/' })
}

// grow makes folders below an existing one. Unless that stands in memory
// already, it is first covered by a tmpfs that shows what was in it.
func grow(at string, missing []string, isFile bool) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return "", err
	}
	if !inMemory(at, st) {
		if err := cover(at); err != nil {
			return "", err
		}
	}
	target := filepath.Join(append([]string{at}, missing...)...)
	dir := target
	if isFile {
		dir = filepath.Dir(target)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if isFile {
		if err := os.WriteFile(target, nil, 0o644); err != nil {
			return "", err
		}
	}
	return target, nil
}

// inMemory says whether a folder is on one of this container's own tmpfs: by
// its mount's source, which is the name we gave.
func inMemory(at string, st unix.Statfs_t) bool {
	if st.Type != unix.TMPFS_MAGIC {
		return false
	}
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	best, own := "", false
	for _, line := range strings.Split(string(raw), "\n") {
		left, right, _ := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		if len(fields) < 5 {
			continue
		}
		p := fields[4]
		if p != "/" && p != at && !strings.HasPrefix(at, p+"/") {
			continue
		}
		if len(p) >= len(best) {
			best, own = p, strings.HasPrefix(right, "tmpfs heddle-lab ")
		}
	}
	return own
}

func cover(dir string) error {
	old, err := os.Open(dir) // still shows what was there once it is covered
	if err != nil {
		return err
	}
	defer old.Close()
	entries, err := old.ReadDir(-1)
	if err != nil {
		return err
	}
	if err := unix.Mount("heddle-lab", dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("cover %s: %w", dir, err)
	}
	for _, e := range entries {
		if err := showAgain(old, dir, e); err != nil {
			return fmt.Errorf("cover %s: %w", dir, err)
		}
	}
	return nil
}

func showAgain(old *os.File, dir string, e fs.DirEntry) error {
	at := filepath.Join(dir, e.Name())
	var err error
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(old.Fd()), e.Name(), buf)
		if err != nil {
			return err
		}
		return os.Symlink(string(buf[:n]), at)
	case e.IsDir():
		err = os.Mkdir(at, 0o755)
	default:
		err = os.WriteFile(at, nil, 0o644)
	}
	if err != nil {
		return err
	}
	fd, err := unix.OpenTree(int(old.Fd()), e.Name(), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	return tree{fd: fd}.attach(at)
}

// protect makes read-only what shall be.
func protect(s Spec) error {
	ro := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	rw := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	set := func(path string, attr *unix.MountAttr) error {
		if err := unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, attr); err != nil {
			return &fs.PathError{Op: "mount_setattr", Path: path, Err: err}
		}
		return nil
	}
	if s.ReadOnlyRoot {
		if err := set("/", &ro); err != nil {
			return err
		}
		for _, own := range []string{"/proc", "/dev"} {
			if err := set(own, &rw); err != nil {
				return err
			}
		}
	}
	if !s.Privileged { // what runtimes of clusters protect, too: an init container must not rest on more
		for _, path := range []string{"/proc/sys", "/proc/sysrq-trigger"} {
			if err := unix.Mount(path, path, "", unix.MS_BIND, ""); errors.Is(err, unix.ENOENT) {
				continue // a kernel without it
			} else if err != nil {
				return fmt.Errorf("protect %s: %w", path, err)
			}
			if err := set(path, &ro); err != nil {
				return err
			}
		}
	}
	for _, m := range s.Mounts { // outer first: an inner one has the last word
		attr := &rw
		if m.ReadOnly {
			attr = &ro
		} else if !s.ReadOnlyRoot {
			continue
		}
		if err := set(m.Target, attr); err != nil {
			return err
		}
	}
	return nil
}
