// Package objects writes the lab's world as files for internal/source/files:
// one object one file, replaced by rename, so that a reader never sees half of
// one. It writes only what changed. It does not know what the objects mean.
// internal/lab calls it.
package objects

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/internal/source"
)

// maxFileName is a file name's limit on Linux (NAME_MAX); names of namespace
// and object together may be longer.
const maxFileName = 255

// Object is one object to write.
type Object struct {
	Ref source.Ref
	// Value is anything that encodes as the object's JSON.
	Value any
}

// Folder is where the objects stand. One goroutine owns it.
type Folder struct {
	dir     string
	written map[string][]byte // file name → JSON as last written
}

// Open makes the folder, empties it of an earlier life's objects and returns it.
func Open(dir string) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the objects folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the objects folder: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return nil, fmt.Errorf("empty the objects folder: %w", err)
		}
	}
	return &Folder{dir: dir, written: map[string][]byte{}}, nil
}

// Dir is the folder's path.
func (f *Folder) Dir() string { return f.dir }

// WriteFile writes a file that is not an object, such as jwks.json.
func (f *Folder) WriteFile(name string, data []byte) error {
	tmp := filepath.Join(f.dir, "."+name+".tmp")
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(tmp, filepath.Join(f.dir, name)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Sync makes the folder hold exactly objs: new and changed ones are written in
// the order given, then those that are gone are removed. What fails is tried
// again by the next Sync.
func (f *Folder) Sync(objs []Object) error {
	var first error
	keep := map[string]bool{}
	for _, o := range objs {
		name := fileName(o.Ref)
		keep[name] = true
		if err := f.put(name, o); err != nil && first == nil {
			first = err
		}
	}
	for _, name := range f.names() {
		if keep[name] {
			continue
		}
		if err := os.Remove(filepath.Join(f.dir, name)); err != nil && !os.IsNotExist(err) {
			if first == nil {
				first = fmt.Errorf("remove %s: %w", name, err)
			}
			continue
		}
		delete(f.written, name)
	}
	return first
}

func (f *Folder) names() []string {
	out := make([]string, 0, len(f.written))
	for name := range f.written {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (f *Folder) put(name string, o Object) error {
	js, err := json.Marshal(o.Value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", o.Ref, err)
	}
	if bytes.Equal(f.written[name], js) {
		return nil
	}
	y, err := yaml.JSONToYAML(js)
	if err != nil {
		return fmt.Errorf("encode %s: %w", o.Ref, err)
	}
	if err := f.WriteFile(name, y); err != nil {
		return err
	}
	f.written[name] = js
	return nil
}

// fileName is kind, namespace and name; cut and made unique by a hash where a
// file name may not be that long. '_' stands in no name, so no two objects meet.
func fileName(r source.Ref) string {
	name := strings.ToLower(r.Kind) + "_" + r.Namespace + "_" + r.Name
	const ext, tmp = ".yaml", len("..tmp")
	if limit := maxFileName - len(ext) - tmp; len(name) > limit {
		sum := sha256.Sum256([]byte(name))
		name = name[:limit-17] + "_" + hex.EncodeToString(sum[:8])
	}
	return name + ext
}
