package ca

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

// vault is one Secret in memory, as an API server keeps it.
type vault struct {
	mu      sync.Mutex
	version int
	data    map[string][]byte
	meddle  func() // before each write
}

func (v *vault) ReadSecret(ctx context.Context, namespace, name string) (map[string][]byte, string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if namespace != "n" || name != "s" || v.version == 0 {
		return nil, "", source.ErrNotFound
	}
	return maps.Clone(v.data), strconv.Itoa(v.version), nil
}

func (v *vault) WriteSecret(ctx context.Context, namespace, name, version string, data map[string][]byte) error {
	if v.meddle != nil {
		v.meddle()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if now := strconv.Itoa(v.version); version != now && !(version == "" && v.version == 0) {
		return source.ErrConflict
	}
	v.version++
	v.data = maps.Clone(data)
	return nil
}

func TestSecret(t *testing.T) {
	v := &vault{}
	s, ctx := Secret(v, "n", "s"), t.Context()
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
	// Another key that changes, even in between, is no conflict and stays.
	once := sync.OnceFunc(func() { v.mu.Lock(); defer v.mu.Unlock(); v.version++; v.data["other"] = []byte("o") })
	v.meddle = once
	v2, err := s.Write(ctx, authorityFile, []byte("two"), v1)
	if err != nil || string(v.data["other"]) != "o" || string(v.data[authorityFile]) != "two" {
		t.Errorf("%v, %v", v.data, err)
	}
	if _, err := s.Write(ctx, authorityFile, []byte("x"), v1); !errors.Is(err, ErrConflict) {
		t.Errorf("an old version written over: %v", err)
	}
	if data, version, err := s.Read(ctx, authorityFile); err != nil || string(data) != "two" || version != v2 {
		t.Errorf("%q %q %v", data, version, err)
	}
	// A writer that never comes to the end of others' writes gives up.
	v.meddle = func() { v.mu.Lock(); defer v.mu.Unlock(); v.version++ }
	if _, err := s.Write(ctx, authorityFile, []byte("x"), v2); !errors.Is(err, ErrConflict) {
		t.Errorf("against a crowd: %v", err)
	}
	// Keys that a chart made empty are no files.
	v.meddle, v.data[rootsFile] = nil, nil
	if _, _, err := s.Read(ctx, rootsFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty key: %v", err)
	}
}

// TestSecretManyAtOnce: replicas that start together agree, and a damaged
// Secret is an error, not a new root.
func TestSecretManyAtOnce(t *testing.T) {
	v := &vault{}
	cas := make([]*CA, 6)
	var wg sync.WaitGroup
	for i := range cas {
		wg.Go(func() {
			var err error
			for { // a crowd of first starts may outlast one's tries; the kubelet starts it again
				cas[i], err = Open(context.Background(), Config{TrustDomain: td, Storage: Secret(v, "n", "s")})
				if !errors.Is(err, ErrConflict) {
					break
				}
			}
			if err != nil {
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
	a, err := newAuthority(td, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := cas[0].AddRoot(t.Context(), a.root); err != nil {
		t.Fatal(err)
	}
	if err := cas[1].upkeep(t.Context()); err != nil || len(cas[1].Roots()) != 2 {
		t.Errorf("another replica has %d roots (%v)", len(cas[1].Roots()), err)
	}
	if !bytes.Equal(v.data[rootsFile], cas[0].RootsPEM()) {
		t.Error("the Secret does not hold the bundle")
	}
	delete(v.data, authorityFile)
	if _, err := Open(t.Context(), Config{TrustDomain: td, Storage: Secret(v, "n", "s")}); err == nil || !strings.Contains(err.Error(), "authority.json in Secret n/s") || !strings.Contains(err.Error(), "No new root is made") {
		t.Errorf("a Secret that lost its authority: %v", err)
	}
}

// TestSecretDeleted: a Secret that is gone while its roots stand elsewhere was
// lost; one who still has the authority writes it back, and who starts waits
// for that. Never is there another root.
func TestSecretDeleted(t *testing.T) {
	v, published := &vault{}, ""
	cfg := Config{TrustDomain: td, Storage: Secret(v, "n", "s"), Restore: true,
		Witness: func(context.Context) (string, error) { return published, nil }}
	first, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	published = "ConfigMap n/bundle"
	before := first.RootsPEM()
	v.version, v.data = 0, nil // somebody deletes it
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "No new root is made") || !strings.Contains(err.Error(), published) {
		t.Errorf("started on a Secret that was lost: %v", err)
	}
	if v.version != 0 {
		t.Error("something was written")
	}
	if err := first.upkeep(t.Context()); err != nil {
		t.Errorf("write back: %v", err)
	}
	second, err := Open(t.Context(), cfg)
	if err != nil || !bytes.Equal(second.RootsPEM(), before) || !bytes.Equal(v.data[rootsFile], before) {
		t.Errorf("after it was written back: %v", err)
	}
	// Two who write back at one time agree.
	v.version, v.data = 0, nil
	v.meddle = func() {
		v.meddle = nil
		if err := second.upkeep(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := first.upkeep(t.Context()); err != nil {
		t.Errorf("both write back: %v", err)
	}
	if err := first.upkeep(t.Context()); err != nil || !bytes.Equal(v.data[rootsFile], before) {
		t.Errorf("afterwards: %v", err)
	}
	// A witness that cannot be asked is no word that there was nothing.
	v.meddle, v.version, v.data = nil, 0, nil
	cfg.Witness = func(context.Context) (string, error) { return "", errors.New("no answer") }
	if _, err := Open(t.Context(), cfg); err == nil || v.version != 0 {
		t.Errorf("without an answer: %v", err)
	}
}

// TestSecretBesideAFirstStart: the other replica makes the authority and
// publishes it between our two looks; that is no loss.
func TestSecretBesideAFirstStart(t *testing.T) {
	v := &vault{}
	var other *CA
	mine, err := Open(t.Context(), Config{TrustDomain: td, Storage: Secret(v, "n", "s"), Witness: func(context.Context) (string, error) {
		var err error
		other, err = Open(t.Context(), Config{TrustDomain: td, Storage: Secret(v, "n", "s")})
		return "ConfigMap n/bundle", err
	}})
	if err != nil || !bytes.Equal(mine.RootsPEM(), other.RootsPEM()) {
		t.Errorf("%v", err)
	}
}
