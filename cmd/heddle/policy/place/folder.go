package place

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/files"
	"github.com/heddle-mesh/heddle/internal/source/manifest"
)

// folder is a folder that a control plane reads (internal/source/files).
type folder struct {
	dir string // what is read, and where status stands
	// manifests is the folder that people write; another than dir in a lab.
	manifests string
}

// Folder is a folder of manifests.
func Folder(dir string) (Place, error) {
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("--source=files:%s: %w", dir, err)
	}
	if !fi.IsDir() {
		return nil, fmt.Errorf("--source=files:%s: is no folder", dir)
	}
	return &folder{dir: dir, manifests: dir}, nil
}

// Lab reads what the lab tells its control plane, and writes to the first
// folder of manifests that the lab reads.
func Lab(runDir, name string) (Place, error) {
	s, err := lab.ReadStatus(runDir, name)
	if err != nil {
		return nil, fmt.Errorf("--source=lab:%s: %w", name, err)
	}
	p := &folder{dir: lab.ObjectsDir(runDir, name)}
	for _, m := range s.Manifests {
		if fi, err := os.Stat(m); err == nil && fi.IsDir() {
			p.manifests = m
			break
		}
	}
	return p, nil
}

func (p *folder) Namespace() string { return "default" }

func (p *folder) World(context.Context) (*source.Snapshot, error) { return files.Read(p.dir) }

// stored reads every manifest that holds objects of our kinds, bad ones too.
func (p *folder) Policies(_ context.Context, namespace string) ([]*Object, error) {
	var out []*Object
	seen := map[source.Ref]bool{}
	err := eachManifest(p.dir, func(path string, data []byte, changed time.Time) error {
		rel, err := filepath.Rel(p.dir, path)
		if err != nil {
			rel = path
		}
		x := manifest.Read(rel, data)
		add := func(s *Object) error {
			if seen[s.Ref] || namespace != "" && s.Ref.Namespace != "" && s.Ref.Namespace != namespace {
				return nil
			}
			seen[s.Ref] = true
			s.Created = changed
			s.Conditions, err = files.ReadStatus(p.dir, s.Ref)
			out = append(out, s)
			return err
		}
		for _, o := range x.Objects {
			if o.JSON == nil {
				continue
			}
			if err := add(&Object{Ref: o.Ref, JSON: o.JSON, Where: fmt.Sprintf("%s:%d", rel, o.Line), Generation: generation(o)}); err != nil {
				return err
			}
		}
		for _, problem := range x.Problems {
			if problem.Generation == 0 || problem.Ref.Name == "" {
				continue
			}
			if err := add(&Object{Ref: problem.Ref, Where: fmt.Sprintf("%s:%d", rel, problem.Line), Generation: problem.Generation}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p.dir, err)
	}
	return out, nil
}

// generation of an object of our kinds.
func generation(o manifest.Object) int64 {
	if v, ok := o.Value.(interface{ GetGeneration() int64 }); ok {
		return v.GetGeneration()
	}
	return 0
}

func (p *folder) One(ctx context.Context, ref source.Ref) (*Object, error) {
	all, err := p.Policies(ctx, ref.Namespace)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Ref == ref {
			return s, nil
		}
	}
	return nil, nil
}

// eachManifest calls f for every file that the files door reads.
func eachManifest(dir string, f func(path string, data []byte, changed time.Time) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && errors.Is(err, fs.ErrNotExist):
			return nil // gone meanwhile
		case err != nil:
			return err
		case d.IsDir():
			if rel, _ := filepath.Rel(dir, path); rel == "status" || rel == "secrets" || rel != "." && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		case !IsManifest(d.Name()):
			return nil
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		var changed time.Time
		if fi, err := d.Info(); err == nil {
			changed = fi.ModTime()
		}
		return f(path, data, changed)
	})
}

// IsManifest says whether a folder's file of this name is read.
func IsManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".") && name != "jwks.json"
	}
	return false
}

// Put replaces the document of the object where one stands, and else makes a
// file of its own for it. Readers see the old file or the new one.
func (p *folder) Put(_ context.Context, ref source.Ref, js []byte) (Done, error) {
	if p.manifests == "" {
		return Done{}, errors.New("the lab reads single files of manifests, no folder to write to: edit them, or start the lab with -f FOLDER")
	}
	text, err := yaml.JSONToYAML(js)
	if err != nil {
		return Done{}, fmt.Errorf("write %s: %w", ref, err)
	}
	var done Done
	for _, o := range manifest.Read("", text).Objects {
		done.Generation = generation(o)
	}
	at, err := find(p.manifests, ref, js)
	if err != nil {
		return Done{}, err
	}
	switch {
	case len(at) > 1:
		return Done{}, fmt.Errorf("stands in %s and in %s: keep one of the two", at[0].path, at[1].path)
	case len(at) == 0:
		name := strings.ToLower(ref.Kind) + "." + ref.Namespace + "." + ref.Name + ".yaml"
		done.What = "created"
		return done, replaceFile(filepath.Join(p.manifests, strings.Replace(name, "..", ".", 1)), text)
	case at[0].same:
		done.What = "unchanged"
		return done, nil
	case !at[0].alone:
		return Done{}, fmt.Errorf("stands in a list in %s: edit it there", at[0].path)
	}
	docs := at[0].docs
	if strings.HasPrefix(docs[at[0].number], "---") {
		text = append([]byte("---\n"), text...)
	}
	docs[at[0].number] = string(text)
	done.What = "configured"
	return done, replaceFile(at[0].path, []byte(strings.Join(docs, "")))
}

// spot is a document that holds an object.
type spot struct {
	path        string
	docs        []string
	number      int
	alone, same bool // nothing else is in it; it says the same already
}

func find(dir string, ref source.Ref, js []byte) ([]spot, error) {
	var out []spot
	err := eachManifest(dir, func(path string, data []byte, _ time.Time) error {
		docs := splitDocuments(string(data))
		for i, doc := range docs {
			if holds, alone, same := holds(doc, ref, js); holds {
				out = append(out, spot{path, docs, i, alone, same})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for it in %s: %w", dir, err)
	}
	return out, nil
}

// holds says whether the object stands in a document, by itself, and says the
// same.
func holds(doc string, ref source.Ref, js []byte) (holds, alone, same bool) {
	x := manifest.Read("", []byte(doc))
	others := 0
	for _, o := range x.Objects {
		if o.Ref != ref {
			others++
			continue
		}
		holds, same = true, equalJSON(o.JSON, js)
	}
	for _, bad := range x.Bad {
		if bad != ref {
			others++
			continue
		}
		holds = true
	}
	return holds, others == 0, same
}

func equalJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, err := json.Marshal(x)
	q, err2 := json.Marshal(y)
	return err == nil && err2 == nil && bytes.Equal(p, q)
}

// splitDocuments cuts a text at its lines of three dashes, which stay; joined
// again the pieces are the text.
func splitDocuments(text string) []string {
	var out []string
	var b strings.Builder
	for line := range strings.Lines(text) {
		mark := strings.TrimRight(line, " \t\r\n")
		if (mark == "---" || strings.HasPrefix(line, "--- ")) && b.Len() > 0 {
			out = append(out, b.String())
			b.Reset()
		}
		b.WriteString(line)
	}
	if b.Len() > 0 {
		out = append(out, b.String())
	}
	return out
}

func replaceFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".heddle-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(data)
	mode := fs.FileMode(0o644)
	if fi, e := os.Stat(path); e == nil {
		mode = fi.Mode().Perm()
	}
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
