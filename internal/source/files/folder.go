package files

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/manifest"
)

// Bounds of what is read: beyond them somebody gave the wrong folder.
const (
	maxFile  = 16 << 20 // bytes; etcd takes 1.5 MiB an object, this is a List of many
	maxFiles = 20_000
	maxDepth = 16 // folders below folders
)

const (
	// quiet is how long a file written in place must rest before it is read:
	// longer than a writer pauses between two writes of one document.
	quiet = 50 * time.Millisecond
	// settle is how long a change that may be half a change must rest: a file
	// with a mistake, with fewer objects, or gone. Editors and truncating
	// writers are done by then.
	settle = 300 * time.Millisecond
	// patience bounds how long a file that never rests is left unread: while
	// it reads well, and, five times as long, while it may be half a change.
	patience = 2 * time.Second
)

// stat tells contents of a file apart without reading it.
type stat struct {
	mtime, ctime int64 // Unix nanoseconds
	size         int64
	dev, ino     uint64
}

func statOf(fi fs.FileInfo) stat {
	s := stat{mtime: fi.ModTime().UnixNano(), size: fi.Size()}
	if sys, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.ctime, s.dev, s.ino = sys.Ctim.Nano(), uint64(sys.Dev), sys.Ino
	}
	return s
}

// entry is what is known of one file.
type entry struct {
	good  *version // in force; nil: none yet
	seen  stat     // newest look
	gone  bool     // newest look found nothing
	since time.Time
	first time.Time // of the first look that is not in force; zero: settled
	dirty bool      // an event came, so read it even if seen is good's
}

// folder is the tree as far as it was looked at. Only Run's goroutine uses it.
type folder struct {
	root     string
	skip     []string // absolute paths that are not read
	entries  map[string]*entry
	dirs     map[string]stat
	problems []source.Problem // of the walk
	onDir    func(path string, s stat)
}

func newFolder(root string, skip ...string) *folder {
	return &folder{root: root, skip: skip, entries: map[string]*entry{}, dirs: map[string]stat{}, onDir: func(string, stat) {}}
}

// isManifest says whether a name is one we read.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") || name == jwksFile {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func (f *folder) rel(path string) string {
	if r, err := filepath.Rel(f.root, path); err == nil {
		return r
	}
	return path
}

func (f *folder) problem(path, err, fix string) {
	f.problems = append(f.problems, source.Problem{File: f.rel(path), Err: err, Fix: fix})
}

// walk looks at everything. A folder that cannot be read keeps what it had.
func (f *folder) walk(now time.Time) {
	f.problems = nil
	w := &walk{folder: f, now: now, files: map[string]bool{}, dirs: map[string]bool{}, inodes: map[[2]uint64]bool{}}
	w.dir(f.root, 0)
	for path, e := range f.entries {
		if !w.files[path] && !w.covered(path) {
			e.look(stat{}, true, now)
		}
	}
	for path := range f.dirs {
		if !w.dirs[path] && !w.covered(path) {
			delete(f.dirs, path)
		}
	}
}

// walk is one walk.
type walk struct {
	*folder
	now     time.Time
	files   map[string]bool
	dirs    map[string]bool
	inodes  map[[2]uint64]bool // folders been in, against loops of links
	blind   []string           // folders that could not be read
	tooMany bool
}

// covered: below a folder that could not be read.
func (w *walk) covered(path string) bool {
	return slices.ContainsFunc(w.blind, func(d string) bool { return path == d || strings.HasPrefix(path, d+"/") })
}

func (w *walk) dir(path string, depth int) {
	fi, err := os.Stat(path)
	if err == nil && !fi.IsDir() {
		return
	}
	var list []fs.DirEntry
	if err == nil {
		s := statOf(fi)
		if w.inodes[[2]uint64{s.dev, s.ino}] {
			return
		}
		w.inodes[[2]uint64{s.dev, s.ino}] = true
		w.dirs[path], w.folder.dirs[path] = true, s
		w.onDir(path, s) // watched before it is listed, so that nothing slips between
		list, err = os.ReadDir(path)
	}
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || path == w.root) {
		w.blind = append(w.blind, path)
		w.problem(path, err.Error(), "make it readable; until then what was read of it stays")
		return
	}
	for _, e := range list {
		w.child(filepath.Join(path, e.Name()), e, depth)
	}
}

func (w *walk) child(path string, e fs.DirEntry, depth int) {
	if slices.Contains(w.skip, path) || strings.HasPrefix(e.Name(), ".") {
		return
	}
	fi, err := os.Stat(path) // through links
	switch {
	case err != nil: // gone meanwhile, or a dangling link: walk finds it missing
	case fi.IsDir():
		if depth+1 > maxDepth {
			w.problem(path, fmt.Sprintf("more than %d folders deep", maxDepth), "put it higher up; it is not read")
			return
		}
		w.dir(path, depth+1)
	case !isManifest(e.Name()):
	case !fi.Mode().IsRegular():
		w.problem(path, "is no regular file", "a manifest is a file; it is not read")
	case len(w.files) >= maxFiles:
		if !w.tooMany {
			w.tooMany = true
			w.problem(path, fmt.Sprintf("more than %d files", maxFiles), "join some; this one and later ones are not read")
		}
	default:
		w.files[path] = true
		w.entry(path).look(statOf(fi), false, w.now)
	}
}

func (f *folder) entry(path string) *entry {
	e := f.entries[path]
	if e == nil {
		e = &entry{}
		f.entries[path] = e
	}
	return e
}

// touch looks at one file, after an event.
func (f *folder) touch(path string, now time.Time) {
	if fi, err := os.Stat(filepath.Dir(path)); err == nil {
		f.dirs[filepath.Dir(path)] = statOf(fi)
	}
	fi, err := os.Stat(path)
	switch {
	case err == nil && fi.Mode().IsRegular():
		if f.entries[path] == nil && len(f.entries) >= maxFiles {
			return // the next walk reports it
		}
		e := f.entry(path)
		e.look(statOf(fi), false, now)
		e.mark(now)
		e.dirty = true
	case f.entries[path] != nil:
		f.entries[path].look(stat{}, true, now)
	}
}

// look takes what a look at the file found.
func (e *entry) look(s stat, gone bool, now time.Time) {
	if s == e.seen && gone == e.gone && (e.good != nil || !e.first.IsZero()) {
		return
	}
	e.seen, e.gone, e.since = s, gone, now
	if e.good != nil && !gone && s == e.good.stat && !e.dirty {
		e.first = time.Time{} // back to what is in force
		return
	}
	e.mark(now)
}

func (e *entry) mark(now time.Time) {
	if e.first.IsZero() {
		e.first = now
	}
}

// judge decides about every file that is not settled; force judges at once. It
// gives how long until the next one may be ripe; 0: all are settled.
func (f *folder) judge(now time.Time, force bool) (wait time.Duration) {
	for path, e := range f.entries {
		if e.first.IsZero() {
			continue
		}
		left := f.judgeOne(path, e, now, force)
		if left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

func (f *folder) judgeOne(path string, e *entry, now time.Time, force bool) time.Duration {
	rest := now.Sub(e.since)
	ripe := func(need time.Duration) bool {
		most := patience
		if need == settle {
			most = 5 * patience
		}
		return force || rest >= need || now.Sub(e.first) >= most
	}
	if e.gone {
		if e.good != nil && !ripe(settle) {
			return settle - rest
		}
		delete(f.entries, path)
		return 0
	}
	inPlace := e.good != nil && e.good.stat.ino == e.seen.ino && e.good.stat.dev == e.seen.dev
	if inPlace && e.seen != e.good.stat && !ripe(quiet) {
		return quiet - rest
	}
	data, s, err := readStable(path)
	if err == nil && s != e.seen {
		e.seen, e.since, rest = s, now, 0 // it is being written right now
		if !force {
			return quiet
		}
	}
	v := &version{path: f.rel(path), stat: e.seen}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.look(stat{}, true, now)
		return settle
	case err != nil && !ripe(settle):
		return settle - rest
	case err != nil:
		if e.good != nil {
			kept := *e.good
			v = &kept
			v.stat = e.seen
		}
		v.hash = [32]byte{} // read it again when anything happens
		v.problems = []source.Problem{{File: f.rel(path), Err: err.Error(), Fix: "make it readable and smaller than the limit; until then what was read of it stays"}}
	default:
		hash := sha256.Sum256(data)
		if e.good != nil && e.good.hash == hash {
			same := *e.good
			same.stat = e.seen
			v = &same
			break
		}
		x := manifest.Read(f.rel(path), data)
		if (worse(e.good, x) || len(data) == 0 || lost(e.good, x)) && !ripe(settle) {
			return settle - rest
		}
		v = succeed(e.good, f.rel(path), x)
		v.hash, v.stat = hash, e.seen
	}
	e.good, e.first, e.dirty = v, time.Time{}, false
	return 0
}

// readStable reads a file and its stat; an error if it is too big.
func readStable(path string) ([]byte, stat, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO put in its place must not block us
	if err != nil {
		return nil, stat{}, fmt.Errorf("open: %w", err)
	}
	defer file.Close()
	before, err := file.Stat()
	if err != nil {
		return nil, stat{}, fmt.Errorf("stat: %w", err)
	}
	if before.Size() > maxFile || !before.Mode().IsRegular() {
		return nil, stat{}, fmt.Errorf("read: %d bytes, more than %d", before.Size(), maxFile)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, stat{}, fmt.Errorf("read: %w", err)
	}
	after, err := file.Stat()
	if err != nil {
		return nil, stat{}, fmt.Errorf("stat: %w", err)
	}
	if len(data) > maxFile {
		return nil, stat{}, fmt.Errorf("read: more than %d bytes", maxFile)
	}
	return data, statOf(after), nil
}

// versions are the files in force.
func (f *folder) versions() []*version {
	out := make([]*version, 0, len(f.entries))
	for _, e := range f.entries {
		if e.good != nil {
			out = append(out, e.good)
		}
	}
	return out
}
