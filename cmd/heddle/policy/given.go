package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
	"github.com/heddle-mesh/heddle/cmd/heddle/policy/place"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/manifest"
)

// maxText bounds one file: a folder of a whole mesh's policies is less.
const maxText = 16 << 20

// given is an object that somebody wants applied.
type given struct {
	ref    source.Ref
	file   string
	json   []byte // as written, with its namespace
	object manifest.Object
}

func (g *given) where() string { return fmt.Sprintf("%s:%d", g.file, g.object.Line) }

// namespaced is the namespace of objects that name none.
type namespaced struct {
	name  string
	asked bool // by a flag: objects may not name another
}

// request is all that is to be applied at once.
type request struct {
	objects  []*given
	problems []source.Problem
	others   []string // objects of others' kinds
}

// read reads files, folders and "-".
func read(stdin io.Reader, names []string, in namespaced) (*request, error) {
	r := &request{}
	for _, name := range names {
		if err := r.name(stdin, name, in); err != nil {
			return nil, err
		}
	}
	first := map[source.Ref]string{}
	for _, g := range r.objects {
		if where, twice := first[g.ref]; twice {
			r.problems = append(r.problems, source.Problem{Ref: g.ref, Err: fmt.Sprintf("stands at %s and at %s", where, g.where()), Fix: "keep one of the two"})
		}
		first[g.ref] = g.where()
	}
	return r, nil
}

func (r *request) name(stdin io.Reader, name string, in namespaced) error {
	if name == "-" {
		text, err := limited(stdin)
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		return r.text("standard input", text, in)
	}
	fi, err := os.Stat(name)
	if err != nil {
		return fmt.Errorf("read policies: %w", err)
	}
	if !fi.IsDir() {
		return r.file(name, in)
	}
	return filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("read policies: %w", err)
		}
		if d.IsDir() || !place.IsManifest(d.Name()) {
			return nil
		}
		return r.file(path, in)
	})
}

func (r *request) file(path string, in namespaced) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read policies: %w", err)
	}
	defer f.Close()
	text, err := limited(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return r.text(path, text, in)
}

func limited(in io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(in, maxText+1))
	if err == nil && len(b) > maxText {
		err = fmt.Errorf("more than %d bytes", maxText)
	}
	return b, err
}

func (r *request) text(name string, text []byte, in namespaced) error {
	x := manifest.Read(name, text)
	for _, p := range x.Problems {
		if !foreign[p.Ref.Kind] {
			r.problems = append(r.problems, p)
		}
	}
	for _, o := range x.Objects {
		if o.JSON == nil {
			continue
		}
		g := &given{ref: o.Ref, file: name, json: o.JSON, object: o}
		if err := g.settle(in); err != nil {
			r.problems = append(r.problems, source.Problem{File: name, Line: o.Line, Ref: o.Ref, Field: "metadata.namespace", Err: err.Error(), Fix: "leave one of them out"})
			continue
		}
		r.objects = append(r.objects, g)
	}
	all, err := cluster.Read(name, text)
	if err != nil && len(x.Problems) == 0 {
		return err
	}
	for _, o := range all {
		if !strings.HasPrefix(o.GetAPIVersion(), v1alpha1.Group+"/") {
			r.others = append(r.others, cluster.RefOf(o).String())
		}
	}
	return nil
}

// foreign are kinds that a folder may hold beside policies and whose mistakes
// are not ours to judge here.
var foreign = map[string]bool{"Namespace": true, "Node": true, "Pod": true, "Service": true, "ServiceAccount": true, "EndpointSlice": true,
	"ServiceCIDR": true, "HTTPRoute": true, "GRPCRoute": true, "TCPRoute": true, "TLSRoute": true}

// settle gives the object the namespace that it does not name.
func (g *given) settle(in namespaced) error {
	var o map[string]any
	if err := json.Unmarshal(g.json, &o); err != nil {
		return err
	}
	meta, _ := o["metadata"].(map[string]any)
	if meta == nil {
		return errors.New("there is no metadata")
	}
	said, _ := meta["namespace"].(string)
	switch {
	case g.ref.Kind == "MeshConfig":
		delete(meta, "namespace") // it is for the whole mesh
	case said == "":
		meta["namespace"] = in.name
		g.ref.Namespace = in.name
		g.object.Value.(interface{ SetNamespace(string) }).SetNamespace(in.name)
	case in.asked && said != in.name:
		return fmt.Errorf("is %s, and --namespace is %s", said, in.name)
	}
	delete(o, "status")           // the control plane's to write
	delete(meta, "managedFields") // the API server's; it takes none
	var err error
	g.json, err = json.Marshal(o)
	return err
}
