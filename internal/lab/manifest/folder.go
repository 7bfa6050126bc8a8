package manifest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// settle is how long a folder must be quiet before it is read: an editor or
	// a script writes several files, or one in several pieces.
	settle = 100 * time.Millisecond
	// settleMax bounds the wait when something writes all the time.
	settleMax = time.Second
	// rescan finds what notifications miss: a path that did not exist, a
	// symlink swapped far up, a file system without notifications.
	rescan = 2 * time.Second
)

// Set is everything that stands in the watched paths. It is never changed.
type Set struct {
	Documents []Document // sorted by file and line; one per object
	Problems  []source.Problem
}

// Folder watches files and folders of manifests.
type Folder struct {
	paths []string
	log   *slog.Logger
	out   chan *Set
	// last is what each file held when it was last read without losing anything.
	last map[string][]Document
	seen string // fingerprint of the last set sent
	sent bool
}

// NewFolder watches paths: each a file, or a folder whose *.yaml, *.yml and
// *.json count. A path need not exist yet.
func NewFolder(paths []string, log *slog.Logger) *Folder {
	return &Folder{paths: paths, log: telemetry.Discard(log), out: make(chan *Set, 1), last: map[string][]Document{}}
}

// Sets receives the newest set; it has room for one.
func (f *Folder) Sets() <-chan *Set { return f.out }

// Run watches until ctx ends.
func (f *Folder) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch manifests: %w", err)
	}
	defer w.Close()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	var first time.Time // of the events that are not read yet
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.Events:
			if first.IsZero() {
				first = time.Now()
			}
			quiet.Reset(min(settle, max(0, settleMax-time.Since(first))))
		case err := <-w.Errors:
			f.log.Warn("watching manifests", "err", err)
		case <-quiet.C:
			first = time.Time{}
			f.watch(w)
			f.send(f.Read())
		case <-tick.C:
			if first.IsZero() { // else somebody is writing right now
				f.watch(w)
				f.send(f.Read())
			}
		}
	}
}

// watch (re)adds the folders; adding one twice is harmless, and a folder that
// was swapped is a new one behind the same name.
func (f *Folder) watch(w *fsnotify.Watcher) {
	for _, p := range f.paths {
		dir := p
		if info, err := os.Stat(p); err != nil || !info.IsDir() {
			dir = filepath.Dir(p)
		}
		if err := w.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.log.Warn("watch manifests", "path", dir, "err", err)
		}
	}
}

// send hands on a set that differs from the last one, replacing one that
// nobody took yet.
func (f *Folder) send(s *Set) {
	var b strings.Builder
	for _, d := range s.Documents {
		fmt.Fprintln(&b, d.File, d.Line, d.Ref, d.Hash)
	}
	for _, p := range s.Problems {
		fmt.Fprintln(&b, p)
	}
	fp := b.String()
	if f.sent && fp == f.seen {
		return
	}
	f.sent, f.seen = true, fp
	select {
	case <-f.out:
	default:
	}
	f.out <- s
}

// Read reads everything once. A file with a document that cannot be used keeps those objects of its
// last good reading that it does not give now: an edit that breaks a file
// deletes nothing. Not for use while Run runs.
func (f *Folder) Read() *Set {
	s := &Set{}
	taken := map[source.Ref]Document{}
	files := f.files(s)
	present := map[string]bool{}
	for _, file := range files {
		present[file] = true
		docs, problems := readFile(file)
		if lost(docs, problems) {
			docs = keep(docs, f.last[file])
		}
		f.last[file] = docs
		s.Problems = append(s.Problems, problems...)
		for _, d := range docs {
			if other, twice := taken[d.Ref]; twice {
				s.Problems = append(s.Problems, source.Problem{File: d.File, Line: d.Line, Ref: d.Ref,
					Err: fmt.Sprintf("stands also in %s:%d, which counts", other.File, other.Line), Fix: "remove one of them"})
				continue
			}
			taken[d.Ref] = d
			s.Documents = append(s.Documents, d)
		}
	}
	for file := range f.last {
		if !present[file] {
			delete(f.last, file)
		}
	}
	return s
}

// lost says whether a problem stands for an object that is not among docs.
func lost(docs []Document, problems []source.Problem) bool {
	have := map[source.Ref]bool{}
	for _, d := range docs {
		have[d.Ref] = true
	}
	return slices.ContainsFunc(problems, func(p source.Problem) bool { return !have[p.Ref] })
}

// keep adds to now what before has and now has not.
func keep(now, before []Document) []Document {
	have := map[source.Ref]bool{}
	for _, d := range now {
		have[d.Ref] = true
	}
	for _, d := range before {
		if !have[d.Ref] {
			now = append(now, d)
		}
	}
	return now
}

func readFile(file string) ([]Document, []source.Problem) {
	data, err := readRegular(file)
	if err != nil {
		return nil, []source.Problem{{File: file, Err: "cannot be read: " + err.Error(), Fix: "check the file's mode and, for a link, its target"}}
	}
	return Parse(file, data)
}

// readRegular reads at most one byte more than a file may have. A FIFO or a
// device under a manifest's name would stop the whole lab, or fill its memory.
func readRegular(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO must not wait for a writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// files lists the manifests, sorted within each path.
func (f *Folder) files(s *Set) []string {
	var out []string
	for _, p := range f.paths {
		info, err := os.Stat(p)
		if err != nil {
			s.Problems = append(s.Problems, source.Problem{File: p, Err: "cannot be read: " + err.Error(), Fix: "create it; the lab looks again every 2 s"})
			if !errors.Is(err, fs.ErrNotExist) { // perhaps for a moment only
				for file := range f.last {
					if file == p || filepath.Dir(file) == p {
						out = append(out, file)
					}
				}
			}
			continue
		}
		if !info.IsDir() {
			out = append(out, p)
			continue
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			s.Problems = append(s.Problems, source.Problem{File: p, Err: "cannot be listed: " + err.Error(), Fix: "check its mode"})
			continue
		}
		var names []string
		for _, e := range entries {
			switch ext := filepath.Ext(e.Name()); {
			case strings.HasPrefix(e.Name(), "."): // editors' and ConfigMaps' own
			case ext == ".yaml" || ext == ".yml" || ext == ".json":
				names = append(names, filepath.Join(p, e.Name()))
			}
		}
		sort.Strings(names)
		out = append(out, names...)
	}
	return out
}
