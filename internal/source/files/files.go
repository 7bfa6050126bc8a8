// Package files is the door to a world that stands in a folder of ordinary
// manifests: it watches the folder, keeps the newest snapshot, reviews tokens
// against the folder's jwks.json and keeps secrets, status and events as files
// beside them. What a manifest says is read by internal/source/manifest. The
// control plane in standalone mode, the lab and scenario tests call it.
package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// holdOff gathers events: a tool that writes ten files makes one snapshot.
	holdOff = 10 * time.Millisecond
	// ceiling bounds the hold-off while events keep coming.
	ceiling = 100 * time.Millisecond
	// rescan looks at everything: for lost events, and for links into places
	// that are not watched.
	rescan = 2 * time.Second
	// poll replaces events where the system gives no watches.
	poll = 250 * time.Millisecond
)

// Config of the door.
type Config struct {
	Dir    string // watched, with its sub-folders
	Issuer string // of tokens; "": any that the keys of jwks.json sign
	// StatusDir takes status, events and the mark of the newest revision;
	// default Dir/status. It is not read as manifests, nor are SecretsDir and
	// names that begin with a dot.
	StatusDir string
	// SecretsDir takes secrets, mode 0600; default Dir/secrets.
	SecretsDir string
	Log        *slog.Logger // nil: discard
}

// Files is a source.Source over a folder.
type Files struct {
	cfg      Config
	log      *slog.Logger
	changed  chan struct{}
	snapshot atomic.Pointer[source.Snapshot]
	keys     keyCache
	mu       sync.Mutex
	next     chan struct{} // closed at the next snapshot
	secrets  sync.Mutex
	events   sync.Mutex
}

var _ source.Source = (*Files)(nil)

// New gives the door; it does nothing before Run.
func New(cfg Config) *Files {
	cfg.Dir = filepath.Clean(cfg.Dir)
	if cfg.StatusDir == "" {
		cfg.StatusDir = filepath.Join(cfg.Dir, statusDir)
	}
	if cfg.SecretsDir == "" {
		cfg.SecretsDir = filepath.Join(cfg.Dir, "secrets")
	}
	return &Files{cfg: cfg, log: telemetry.Discard(cfg.Log), changed: make(chan struct{}, 1), next: make(chan struct{})}
}

// Read reads a folder once, judging files as they stand: for tests and
// offline commands.
func Read(dir string) (*source.Snapshot, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	f := New(Config{Dir: dir})
	w := f.watch(nil)
	w.folder.walk(time.Now())
	w.folder.judge(time.Now(), true)
	w.publish()
	return f.Snapshot(), nil
}

func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("read manifests: %s is no folder", dir)
	}
	return nil
}

// Snapshot is the newest state, nil before the first.
func (f *Files) Snapshot() *source.Snapshot { return f.snapshot.Load() }

// Changed signals a new snapshot.
func (f *Files) Changed() <-chan struct{} { return f.changed }

// upcoming is closed when a snapshot follows the one that is there now.
func (f *Files) upcoming() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next
}

// Run watches until ctx ends. It fails only if there is no folder to begin
// with.
func (f *Files) Run(ctx context.Context) error {
	if err := checkDir(f.cfg.Dir); err != nil {
		return err
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		f.log.Warn("no watches from the system, looking at the folder instead", "every", poll, "error", err)
	} else {
		defer notify.Close()
	}
	w := f.watch(notify)
	w.folder.walk(time.Now())
	w.run(ctx)
	return nil
}

// watcher is one Run.
type watcher struct {
	*Files
	folder  *folder
	notify  *fsnotify.Watcher // nil: none to be had
	watches map[string]stat
	files   map[string]bool // touched since the last look
	all     bool            // everything may have changed
	wanted  time.Duration   // until a file may be ripe; 0: none waits
}

func (f *Files) watch(notify *fsnotify.Watcher) *watcher {
	w := &watcher{Files: f, notify: notify, watches: map[string]stat{}, files: map[string]bool{}}
	w.folder = newFolder(f.cfg.Dir, f.cfg.StatusDir, f.cfg.SecretsDir)
	w.folder.onDir = w.addWatch
	return w
}

// addWatch watches a folder; again if another stands at its path now.
func (w *watcher) addWatch(path string, s stat) {
	if w.notify == nil {
		return
	}
	had, ok := w.watches[path]
	if ok && had.ino == s.ino && had.dev == s.dev {
		return
	}
	if ok {
		_ = w.notify.Remove(path) // its inode is gone and the watch with it, most likely
	}
	if err := w.notify.Add(path); err != nil {
		w.log.Warn("cannot watch a folder, looking at it instead", "folder", path, "every", rescan, "error", err)
		delete(w.watches, path)
		return
	}
	w.watches[path] = s
}

// run is the loop: events are gathered, then looked at, then judged; a file
// that is not ripe is judged again when it may be.
func (w *watcher) run(ctx context.Context) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	every := poll
	if w.notify != nil {
		events, errs, every = w.notify.Events, w.notify.Errors, rescan
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	timer := time.NewTimer(0) // judges the first walk
	defer timer.Stop()
	var since time.Time // of the first event gathered
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.all = true
			timer.Reset(0)
		case err := <-errs:
			w.log.Warn("events lost, looking at the whole folder", "error", err)
			w.all = true
			timer.Reset(0)
		case e := <-events:
			if !w.note(e) {
				break
			}
			now := time.Now()
			if since.IsZero() {
				since = now
			}
			timer.Reset(max(0, min(holdOff, ceiling-now.Sub(since))))
		case <-timer.C:
			since = time.Time{}
			if w.look(time.Now()); w.wanted > 0 {
				timer.Reset(w.wanted)
			}
		}
	}
}

// note takes an event; false: it is about nothing we read.
func (w *watcher) note(e fsnotify.Event) bool {
	name := filepath.Base(e.Name)
	switch {
	case e.Name == w.cfg.StatusDir || e.Name == w.cfg.SecretsDir:
		return false
	case isManifest(name):
		w.files[e.Name] = true
	case strings.HasPrefix(name, ".") && !e.Has(fsnotify.Create) && !e.Has(fsnotify.Remove) && !e.Has(fsnotify.Rename):
		return false // an editor's swap file
	case strings.HasPrefix(name, "."):
		// A hidden link that was swapped, as in a mounted ConfigMap, changes
		// what every file of its folder is; a hidden file changes nothing.
		if fi, err := os.Lstat(e.Name); err != nil || fi.Mode()&fs.ModeSymlink == 0 && !fi.IsDir() {
			return false
		}
		w.all = true
	case e.Op == fsnotify.Chmod || e.Op == fsnotify.Write:
		return false // of a file we do not read; of a folder: its files tell
	default:
		w.all = true // a folder came or went
	}
	return true
}

// look sees what changed, judges what is ripe, and publishes.
func (w *watcher) look(now time.Time) {
	if w.all {
		w.folder.walk(now)
	}
	for path := range w.files {
		if _, watched := w.folder.dirs[filepath.Dir(path)]; watched {
			w.folder.touch(path, now)
		}
	}
	w.all = false
	clear(w.files)
	w.wanted = w.folder.judge(now, false)
	if w.Snapshot() == nil && w.wanted > 0 {
		return // the first one waits until everything is listed
	}
	w.publish()
}

// publish makes a snapshot if anything differs.
func (w *watcher) publish() {
	prev := w.Snapshot()
	next := assemble(prev, w.folder.versions())
	next.Problems = append(next.Problems, w.folder.problems...)
	next.Tidy() // sorts only: maps may be those of prev by now
	next.Revision = w.revision(prev, !equal(prev, next))
	if prev != nil && next.Revision == prev.Revision {
		return
	}
	w.snapshot.Store(next)
	w.mu.Lock()
	close(w.next)
	w.next = make(chan struct{})
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// statusDir is where status stands in a folder, if nobody says otherwise.
const statusDir = "status"

// floorFile marks, by its time, a revision that no file's time reaches.
const floorFile = "revision"

// revision is the newest modification time, in Unix nanoseconds, of the files
// in force and of the folders (which change when a file comes, goes or is
// renamed). So it is equal on all replicas that share the folder, and after a
// restart it is what it was. Folders count only while no file waits to be
// judged: what they tell is not in force yet.
//
// A change that leaves the newest time as it was, because the writer's clock
// went back or a file from the future stands in the folder, takes the next
// number and marks it by the time of StatusDir/revision. Where that cannot be
// written, a restarted replica comes back with a lower revision; peers keep
// what they hold until the clock has passed it.
func (w *watcher) revision(prev *source.Snapshot, differs bool) uint64 {
	var newest int64 = 1
	for _, e := range w.folder.entries {
		if e.good != nil {
			newest = max(newest, e.good.stat.mtime)
		}
	}
	if w.wanted == 0 {
		for _, d := range w.folder.dirs {
			newest = max(newest, d.mtime)
		}
	}
	floor := filepath.Join(w.cfg.StatusDir, floorFile)
	if fi, err := os.Stat(floor); err == nil {
		newest = max(newest, fi.ModTime().UnixNano())
	}
	if prev == nil || uint64(newest) > prev.Revision {
		return uint64(newest)
	}
	if !differs {
		return prev.Revision
	}
	next := prev.Revision + 1
	if err := mark(floor, time.Unix(0, int64(next))); err != nil {
		w.log.Warn("cannot mark the revision; it may go back over a restart", "revision", next, "error", err)
	}
	return next
}

func mark(path string, t time.Time) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make status folder: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("mark revision: %w", err)
	}
	if err := errors.Join(file.Close(), os.Chtimes(path, t, t)); err != nil {
		return fmt.Errorf("mark revision: %w", err)
	}
	return nil
}
