package ca

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestKilledBetweenWrites puts the folder into each state that a kill during
// the first Open can leave, and opens again.
func TestKilledBetweenWrites(t *testing.T) {
	made := t.TempDir()
	first := open(t, Folder(made))
	authority, roots := read(t, made, authorityFile), read(t, made, rootsFile)
	besideA, besideR := "."+authorityFile+".new", "."+rootsFile+".new"
	steps := []struct {
		name  string
		files map[string][]byte
		same  bool // the root must be the one made before
	}{
		{"folder made", nil, false},
		{"lock taken", map[string][]byte{lockFile: nil}, false},
		{"file begun", map[string][]byte{lockFile: nil, besideA: nil}, false},
		{"half written", map[string][]byte{lockFile: nil, besideA: authority[:len(authority)/2]}, false},
		{"written, not renamed", map[string][]byte{lockFile: nil, besideA: authority}, false},
		{"renamed", map[string][]byte{lockFile: nil, authorityFile: authority}, true},
		{"roots begun", map[string][]byte{lockFile: nil, authorityFile: authority, besideR: nil}, true},
		{"roots half written", map[string][]byte{lockFile: nil, authorityFile: authority, besideR: roots[:50]}, true},
		{"roots not renamed", map[string][]byte{lockFile: nil, authorityFile: authority, besideR: roots}, true},
		{"done", map[string][]byte{lockFile: nil, authorityFile: authority, rootsFile: roots}, true},
		{"roots of before", map[string][]byte{lockFile: nil, authorityFile: authority, rootsFile: roots[:50]}, true},
	}
	for _, tt := range steps {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, data := range tt.files {
				write(t, dir, name, data)
			}
			c := open(t, Folder(dir))
			if same := bytes.Equal(c.RootsPEM(), first.RootsPEM()); same != tt.same {
				t.Errorf("same root: %v, want %v", same, tt.same)
			}
			if !bytes.Equal(read(t, dir, rootsFile), c.RootsPEM()) {
				t.Error(rootsFile + " is not the bundle")
			}
			again := open(t, Folder(dir))
			if !bytes.Equal(again.RootsPEM(), c.RootsPEM()) {
				t.Error("another root at the next start")
			}
			for _, left := range []string{besideA, besideR} {
				if _, err := os.Stat(filepath.Join(dir, left)); err == nil && tt.files[left] == nil {
					t.Error(left + " is left")
				}
			}
		})
	}
}

// TestKilledForReal kills a process while it opens and adds roots, again and
// again: the folder always opens, with the same first root.
func TestKilledForReal(t *testing.T) {
	if dir := os.Getenv("HEDDLE_TEST_CA_DIR"); dir != "" {
		churn(t, dir)
		return
	}
	dir := t.TempDir()
	var root []byte
	for i := range 20 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledForReal$")
		cmd.Env = append(os.Environ(), "HEDDLE_TEST_CA_DIR="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(10+7*i)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		timer.Stop()
		c := open(t, Folder(dir))
		if root == nil {
			root = c.Roots()[0].Raw
		}
		if !bytes.Equal(root, c.Roots()[0].Raw) {
			t.Fatal("another root after a kill")
		}
	}
}

func churn(t *testing.T, dir string) {
	for {
		c := open(t, Folder(dir))
		a, err := newAuthority(td, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Roots()) < 20 {
			err = c.AddRoot(t.Context(), a.root)
		} else {
			err = c.write(t.Context(), c.current.Load(), c.current.Load().version)
		}
		if err != nil && !errors.Is(err, ErrConflict) {
			t.Fatal(err)
		}
	}
}

// TestDamage: whatever is wrong with the storage, Open says which file and
// what to do, and leaves it as it is.
func TestDamage(t *testing.T) {
	made := t.TempDir()
	c := open(t, Folder(made))
	good := read(t, made, authorityFile)
	other := t.TempDir()
	open(t, Folder(other))
	swap := func(field string) []byte { return replaceField(t, good, read(t, other, authorityFile), field) }
	tests := []struct {
		name string
		data []byte // nil: the file is removed
		says string
	}{
		{"removed", nil, "is missing"},
		{"empty", []byte{}, "half-written"},
		{"cut short", good[:len(good)/2], "half-written"},
		{"zeroes", make([]byte, len(good)), "damaged"},
		{"something behind", append(bytes.Clone(good), "{}"...), "follows its end"},
		{"newer format", bytes.Replace(good, []byte(`"format": 1`), []byte(`"format": 2`), 1), "format is 2"},
		{"unknown field", bytes.Replace(good, []byte(`"format"`), []byte(`"colour": 1, "format"`), 1), "colour"},
		{"other domain", bytes.Replace(good, []byte(`demo.test`), []byte(`else.test`), 1), "configured is"},
		{"other root's key", swap("rootKey"), "not the key of its certificate"},
		{"other issuer's key", swap("issuerKey"), "not the key of its certificate"},
		{"other issuer", swap("issuer"), "not signed by the first root"},
		{"other root", swap("roots"), "rootKey"},
		{"no roots", replaceField(t, good, []byte(`{"roots": ""}`), "roots"), "no certificate"},
		{"no PEM", replaceField(t, good, []byte(`{"roots": "x"}`), "roots"), "not PEM"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, rootsFile, c.RootsPEM())
			if tt.data != nil {
				write(t, dir, authorityFile, tt.data)
			}
			_, err := Open(t.Context(), Config{TrustDomain: td, Storage: Folder(dir)})
			if err == nil {
				t.Fatal("opened")
			}
			for _, s := range []string{filepath.Join(dir, authorityFile), "Restore the file from a backup", tt.says} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v\ndoes not say %q", err, s)
				}
			}
			if strings.Contains(err.Error(), "PRIVATE KEY") {
				t.Error("the key is in the message")
			}
			now, _ := os.ReadFile(filepath.Join(dir, authorityFile))
			if !bytes.Equal(now, tt.data) || !bytes.Equal(read(t, dir, rootsFile), c.RootsPEM()) {
				t.Error("the storage was changed")
			}
		})
	}
}

func replaceField(t *testing.T, data, from []byte, field string) []byte {
	t.Helper()
	cut := func(b []byte) (start, end int) {
		key := fmt.Appendf(nil, "%q: ", field)
		start = bytes.Index(b, key) + len(key)
		return start, start + 1 + bytes.IndexByte(b[start+1:], '"') + 1
	}
	start, end := cut(data)
	fs, fe := cut(from)
	return bytes.Join([][]byte{data[:start], from[fs:fe], data[end:]}, nil)
}

// TestDamageWhileRunning: a running control plane goes on with what it has.
func TestDamageWhileRunning(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	c, err := Open(t.Context(), Config{TrustDomain: td, Storage: Folder(dir), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	good, roots := read(t, dir, authorityFile), c.RootsPEM()
	other := t.TempDir()
	open(t, Folder(other))
	for name, data := range map[string][]byte{"half": good[:100], "another mesh's": read(t, other, authorityFile)} {
		write(t, dir, authorityFile, data)
		if err := c.upkeep(t.Context()); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := os.Remove(filepath.Join(dir, authorityFile)); err != nil {
		t.Fatal(err)
	}
	if err := c.upkeep(t.Context()); err == nil || !strings.Contains(err.Error(), "it is gone") {
		t.Errorf("removed: %v", err)
	}
	if !bytes.Equal(c.RootsPEM(), roots) {
		t.Error("roots changed")
	}
	if err := verify(t, signOne(t, c, web), c.Roots()); err != nil {
		t.Error(err)
	}
	write(t, dir, authorityFile, good)
	if err := c.upkeep(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestManyAtOnce: replicas that start together on an empty folder agree.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	cas := make([]*CA, 8)
	var wg sync.WaitGroup
	for i := range cas {
		wg.Go(func() {
			var err error
			if cas[i], err = Open(context.Background(), Config{TrustDomain: td, Storage: Folder(dir)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, c := range cas {
		if !bytes.Equal(c.RootsPEM(), cas[0].RootsPEM()) {
			t.Fatal("two roots")
		}
	}
	// And each adds a root at the same time: none is lost.
	for _, c := range cas {
		wg.Go(func() {
			a, err := newAuthority(td, time.Now())
			if err != nil {
				t.Error(err)
				return
			}
			for {
				if err := c.AddRoot(context.Background(), a.root); err == nil {
					return
				} else if !errors.Is(err, ErrConflict) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if c := open(t, Folder(dir)); len(c.Roots()) != 1+len(cas) || c.Bundle().GetSequence() != uint64(1+len(cas)) {
		t.Errorf("%d roots, sequence %d", len(c.Roots()), c.Bundle().GetSequence())
	}
}

func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "at need")
	s, ctx := Folder(dir), t.Context()
	if _, _, err := s.Read(ctx, authorityFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read of nothing: %v", err)
	}
	v1, err := s.Write(ctx, authorityFile, []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(ctx, authorityFile, []byte("x"), ""); !errors.Is(err, ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	if _, err := s.Write(ctx, authorityFile, []byte("two"), v1); err != nil {
		t.Error(err)
	}
	if _, err := s.Write(ctx, authorityFile, []byte("x"), v1); !errors.Is(err, ErrConflict) {
		t.Errorf("an old version written over: %v", err)
	}
	if _, err := s.Write(ctx, rootsFile, []byte("r"), ""); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]os.FileMode{authorityFile: 0o600, rootsFile: 0o644} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if _, err := s.Write(stopped, rootsFile, []byte("s"), v1); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, filepath.Dir(file), "file", nil)
	if _, err := Open(ctx, Config{TrustDomain: td, Storage: Folder(file)}); err == nil {
		t.Error("a file for a folder")
	}
}
