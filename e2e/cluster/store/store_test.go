package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func quiet(string, ...any) {}

func TestKey(t *testing.T) {
	type recipe struct {
		Version  string
		Packages []string
		Replace  map[string]string
	}
	base := recipe{"1.2.3", []string{"a", "b"}, map[string]string{"x": "1", "y": "2", "z": "3"}}
	key := func(in ...any) string {
		k, err := Key(in...)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key("go1", base)
	for range 20 { // maps have no order
		if got := key("go1", base); got != first {
			t.Fatalf("the same ingredients gave two keys, %s and %s", first, got)
		}
	}
	for name, other := range map[string]string{
		"a version":    key("go1", recipe{"1.2.4", base.Packages, base.Replace}),
		"a package":    key("go1", recipe{"1.2.3", []string{"a"}, base.Replace}),
		"the compiler": key("go2", base),
		"the order":    key(base, "go1"),
		"a seam":       key("go", "1", base),
	} {
		if other == key("go1", base) {
			t.Errorf("%s changed, and the key did not", name)
		}
	}
	if _, err := Key(func() {}); err == nil {
		t.Error("a key of what cannot be written down")
	}
}

func TestGetMakesOnce(t *testing.T) {
	root := t.TempDir()
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 5 { // as many stores: another run is another process
		wg.Go(func() {
			dir, err := New(root, quiet).Get(t.Context(), "thing", "k", func(_ context.Context, dir string) error {
				made.Add(1)
				return os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
				t.Error("the folder was given before it was whole:", err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times, want once", made.Load())
	}
}

func TestGetForgetsWhatFailed(t *testing.T) {
	s := New(t.TempDir(), quiet)
	broken := errors.New("broken")
	// A run that was killed left half a folder, read-only as Go modules are.
	half := filepath.Join(s.root, "thing", "k.half", "module")
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(half, 0o555); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(t.Context(), "thing", "k", func(_ context.Context, dir string) error {
		if entries, _ := os.ReadDir(dir); len(entries) != 0 {
			t.Errorf("the folder to fill holds %v", entries)
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
			t.Error(err)
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("error %v, want the maker's", err)
	}
	again := false
	if _, err := s.Get(t.Context(), "thing", "k", func(context.Context, string) error { again = true; return nil }); err != nil || !again {
		t.Errorf("after a failure: made again %v, error %v", again, err)
	}
}

func TestGetWaitsNoLongerThanItsContext(t *testing.T) {
	s := New(t.TempDir(), quiet)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Get(ctx, "thing", "k", func(context.Context, string) error {
		cancel()
		_, err := s.Get(ctx, "thing", "k", func(context.Context, string) error { return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the second run's error is %v, want that it was cancelled", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPrune(t *testing.T) {
	s := New(t.TempDir(), quiet)
	get := func(key string) string {
		dir, err := s.Get(t.Context(), "thing", key, func(context.Context, string) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	old, used := get("old"), get("used")
	past := time.Now().Add(-unused - time.Hour)
	for _, dir := range []string{old, used} {
		if err := os.Chtimes(dir, past, past); err != nil {
			t.Fatal(err)
		}
	}
	get("used")
	get("new")
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("what nobody used for %v is still there: %v", unused, err)
	}
	if _, err := os.Stat(used); err != nil {
		t.Errorf("what was just used is gone: %v", err)
	}
}

func TestClaim(t *testing.T) {
	s := New(t.TempDir(), quiet)
	a, lockA, err := s.Claim("slots", 2)
	if err != nil {
		t.Fatal(err)
	}
	b, lockB, err := s.Claim("slots", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer lockB.Close()
	if a == b {
		t.Fatalf("two runs have %s", a)
	}
	if _, _, err := s.Claim("slots", 2); err == nil {
		t.Error("a third of two")
	}
	lockA.Close()
	again, lock, err := s.Claim("slots", 2)
	if err != nil || again != a {
		t.Fatalf("after the first ended: %s, %v; want %s", again, err, a)
	}
	lock.Close()
}
