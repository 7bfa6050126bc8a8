package ca

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Storage keeps a few small named files, with versions so that two writers
// cannot overwrite each other's work: a folder, later a Secret.
type Storage interface {
	// Read gives content and version; an error that is fs.ErrNotExist: there
	// is no such file.
	Read(ctx context.Context, name string) (data []byte, version string, err error)
	// Write replaces a file whose version still is the one given (empty: it
	// must not exist yet), else ErrConflict, and gives the new version. All of
	// it or nothing, also through a crash.
	Write(ctx context.Context, name string, data []byte, version string) (written string, err error)
	// Where names a file for error messages.
	Where(name string) string
}

// ErrConflict tells that another writer was first: read again.
var ErrConflict = errors.New("written by another meanwhile")

// lockFile serialises writers; the kernel frees the lock of one that dies.
const lockFile = ".lock"

// Folder is a Storage in a directory of this machine, made at need. Only the
// roots are readable by others; the folder itself is, so that the injector can
// read them under another user.
func Folder(dir string) Storage { return folder(dir) }

type folder string

func (f folder) Where(name string) string { return filepath.Join(string(f), name) }

func (f folder) Read(ctx context.Context, name string) ([]byte, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	data, err := os.ReadFile(f.Where(name))
	if err != nil {
		return nil, "", err // names file and operation by itself
	}
	return data, contentVersion(data), nil
}

func contentVersion(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (f folder) Write(ctx context.Context, name string, data []byte, version string) (string, error) {
	if err := os.MkdirAll(string(f), 0o755); err != nil {
		return "", err
	}
	unlock, err := f.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	_, now, err := f.Read(ctx, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if now != version {
		return "", ErrConflict
	}
	perm := os.FileMode(0o600)
	if name == rootsFile {
		perm = 0o644
	}
	if err := f.replace(name, data, perm); err != nil {
		return "", err
	}
	return contentVersion(data), nil
}

func (f folder) lock() (unlock func(), err error) {
	l, err := os.OpenFile(f.Where(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	// Blocks for as long as another writer needs for a file of a few KB.
	if err := syscall.Flock(int(l.Fd()), syscall.LOCK_EX); err != nil {
		l.Close()
		return nil, fmt.Errorf("lock %s: %w", l.Name(), err)
	}
	return func() { l.Close() }, nil // closing unlocks
}

// replace writes beside the file, makes it durable, then renames: a crash at
// any point leaves the old file or the new one whole. The name beside it is
// fixed, so that what a crash left there is cleaned by the next write.
func (f folder) replace(name string, data []byte, perm os.FileMode) (err error) {
	beside := f.Where("." + name + ".new")
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(beside, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Chmod(perm) // whatever the umask
	}
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(beside, f.Where(name))
	}
	if err != nil {
		os.Remove(beside)
		return err
	}
	dir, err := os.Open(string(f))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", string(f), err)
	}
	return nil
}
