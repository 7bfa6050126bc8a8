package webhook

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/heddle-mesh/heddle/internal/source"
)

// store is where certificates live; absent parts are absent from the map.
type store interface {
	load(ctx context.Context) (map[string][]byte, error)
	// save writes the named parts of data; errWrittenMeanwhile says that
	// somebody else did since load.
	save(ctx context.Context, data map[string][]byte, names []string) error
	String() string
}

var errWrittenMeanwhile = errors.New("another replica wrote first")

// folder is a store for one injector.
type folder struct{ dir string }

func (f folder) String() string { return f.dir }

func (f folder) load(context.Context) (map[string][]byte, error) {
	data := map[string][]byte{}
	for _, name := range []string{certFile, keyFile, rootsFile, caKeyFile, givenCAFile} {
		b, err := os.ReadFile(filepath.Join(f.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read certificate folder: %w", err)
		}
		data[name] = b
	}
	return data, nil
}

func (f folder) save(_ context.Context, data map[string][]byte, names []string) error {
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return fmt.Errorf("make certificate folder: %w", err)
	}
	for _, name := range names {
		mode := os.FileMode(0o644)
		if name == keyFile || name == caKeyFile {
			mode = 0o600
		}
		if err := f.write(name, data[name], mode); err != nil {
			return err
		}
	}
	return nil
}

// write replaces a file as a whole: a reader sees the old or the new one.
func (f folder) write(name string, b []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(f.dir, "."+name+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(f.dir, name))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

// Secret is a store that replicas share: who writes second reads again.
type Secret struct {
	Source          source.Source
	Namespace, Name string

	version string            // of the last load
	last    map[string][]byte // of the last load or save that found something
}

func (s *Secret) String() string { return "Secret " + s.Namespace + "/" + s.Name }

// load reads the Secret. One that somebody deleted is written again as it was:
// a new CA would shut the webhook until everybody knows it.
func (s *Secret) load(ctx context.Context) (map[string][]byte, error) {
	data, version, err := s.Source.ReadSecret(ctx, s.Namespace, s.Name)
	if err != nil && !errors.Is(err, source.ErrNotFound) {
		return nil, fmt.Errorf("read %s: %w", s, err)
	}
	if err != nil {
		data, version = nil, ""
	}
	s.version = version
	if version == "" && s.last != nil && ownMade(s.last) {
		if err := s.save(ctx, s.last, nil); err != nil {
			return nil, err
		}
		return maps.Clone(s.last), nil
	}
	out := map[string][]byte{}
	for name, b := range data {
		if len(b) > 0 {
			out[name] = b
		}
	}
	if len(out) > 0 {
		s.last = maps.Clone(out)
	}
	return out, nil
}

func (s *Secret) save(ctx context.Context, data map[string][]byte, _ []string) error {
	err := s.Source.WriteSecret(ctx, s.Namespace, s.Name, s.version, data)
	if errors.Is(err, source.ErrConflict) {
		return fmt.Errorf("write %s: %w", s, errWrittenMeanwhile)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", s, err)
	}
	s.last = maps.Clone(data)
	return nil
}
