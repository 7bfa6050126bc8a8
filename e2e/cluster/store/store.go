// Package store keeps what took long to make, outside the repository: folders
// named after what they were made from, so that a change of a version or of a
// recipe makes a new one and two runs at once make each only once. It knows
// nothing of what is in them. Programs, root file system, node image and
// dockerd's data are in it.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// unused is how long a folder may lie around without being asked for.
	unused = 14 * 24 * time.Hour
	// lockPoll is how often a waiting run looks whether another is done; what
	// it waits for takes minutes.
	lockPoll = 200 * time.Millisecond
	// keyLen of a hash in hex is short enough for paths and never meets another.
	keyLen = 16
)

// Store is a folder of folders.
type Store struct {
	root string
	say  func(format string, args ...any)
}

// New gives the store in root, which need not exist. What takes long is told
// to say.
func New(root string, say func(format string, args ...any)) *Store {
	return &Store{root: root, say: say}
}

// Root is where the store is by default: $HEDDLE_CACHE, or heddle/ in the
// user's cache folder.
func Root() (string, error) {
	if dir := os.Getenv("HEDDLE_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder: %w (set HEDDLE_CACHE)", err)
	}
	return filepath.Join(dir, "heddle"), nil
}

// Key is a name for what is made from ingredients: anything JSON can hold, in
// this order.
func Key(ingredients ...any) (string, error) {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, in := range ingredients {
		if err := enc.Encode(in); err != nil {
			return "", fmt.Errorf("make a cache key: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:keyLen], nil
}

// Get gives the folder kind/key, which make fills if there is none yet. A make
// that fails or is killed leaves nothing behind that a later Get would take.
func (s *Store) Get(ctx context.Context, kind, key string, make func(ctx context.Context, dir string) error) (string, error) {
	dir := filepath.Join(s.root, kind, key)
	if touch(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	lock, err := s.lock(ctx, dir+".lock", kind)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if touch(dir) {
		return dir, nil // made by another meanwhile
	}
	if err := s.fill(ctx, kind, dir, make); err != nil {
		return "", err
	}
	return dir, s.prune(kind)
}

// fill makes a folder beside its place and then puts it there. The lock is
// held.
func (s *Store) fill(ctx context.Context, kind, dir string, make func(ctx context.Context, dir string) error) error {
	half := dir + ".half"
	if err := remove(half); err != nil {
		return fmt.Errorf("remove a half-made %s: %w", kind, err)
	}
	if err := os.MkdirAll(half, 0o755); err != nil {
		return err
	}
	s.say("%s: making it, once", kind)
	start := time.Now()
	if err := make(ctx, half); err != nil {
		return errors.Join(fmt.Errorf("make %s: %w", kind, err), remove(half))
	}
	if err := os.Rename(half, dir); err != nil {
		return fmt.Errorf("keep %s: %w", kind, err)
	}
	s.say("%s: made in %v", kind, time.Since(start).Round(time.Second))
	return nil
}

// touch says whether a folder exists, and that it is used today.
func touch(dir string) bool {
	now := time.Now()
	return os.Chtimes(dir, now, now) == nil
}

// prune removes folders of a kind that nobody asked for in a long time.
func (s *Store) prune(kind string) error {
	entries, err := os.ReadDir(filepath.Join(s.root, kind))
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || time.Since(info.ModTime()) < unused {
			continue
		}
		lock, ok, err := tryLock(filepath.Join(s.root, kind, strings.TrimSuffix(e.Name(), ".half")+".lock"))
		if err != nil || !ok {
			continue // somebody is at it
		}
		err = remove(filepath.Join(s.root, kind, e.Name()))
		lock.Close()
		if err != nil {
			return fmt.Errorf("remove an old %s: %w", kind, err)
		}
	}
	return nil
}

// Claim gives the first numbered folder of a kind that no process holds. Who
// has the lock, or a copy of its descriptor, holds the folder; the kernel lets
// go of it however they end. Unlike Get's, these folders change while in use.
func (s *Store) Claim(kind string, max int) (dir string, lock *os.File, err error) {
	if err := os.MkdirAll(filepath.Join(s.root, kind), 0o755); err != nil {
		return "", nil, fmt.Errorf("make the cache: %w", err)
	}
	for i := range max {
		dir := filepath.Join(s.root, kind, strconv.Itoa(i))
		lock, ok, err := tryLock(dir + ".lock")
		if err != nil {
			return "", nil, err
		}
		if ok {
			return dir, lock, os.MkdirAll(dir, 0o755)
		}
	}
	return "", nil, fmt.Errorf("all %d folders of %s in %s are in use: end a run, or remove a kept one", max, kind, s.root)
}

// lock waits for a lock and says so.
func (s *Store) lock(ctx context.Context, path, what string) (*os.File, error) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for told := false; ; told = true {
		f, ok, err := tryLock(path)
		if ok || err != nil {
			return f, err
		}
		if !told {
			s.say("%s: another run is making it, waiting", what)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another run to make %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

func tryLock(path string) (*os.File, bool, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, false, fmt.Errorf("open a lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, true, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("lock %s: %w", path, err)
}

// remove removes a folder even where its folders are read-only, as those of Go
// modules are.
func remove(dir string) error {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// CopyFile copies a file with its mode; a program that is being replaced or
// removed at its source stays whole at its copy.
func CopyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
