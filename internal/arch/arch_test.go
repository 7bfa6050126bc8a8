package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// root of the repository, seen from this folder.
const root = "../.."

func TestHouse(t *testing.T) {
	for _, v := range House().Check(load(t)) {
		t.Error(v)
	}
}

// The law about what a program links says nothing where the program is not
// found.
func TestProgramsAreFound(t *testing.T) {
	g := load(t)
	for _, name := range []string{"heddle", "heddle-controlplane", "heddle-injector", "heddle-sidecar"} {
		if p := g[House().Module+"/cmd/"+name]; len(p.Imports) == 0 {
			t.Errorf("cmd/%s imports nothing", name)
		}
	}
}

func TestText(t *testing.T) {
	for _, v := range CheckText(files(t)) {
		t.Error(v)
	}
}

func TestFolders(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	for _, v := range CheckFolders(names) {
		t.Error(v)
	}
}

func TestModule(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	var m Module
	if err := json.Unmarshal(command(t, "mod", "edit", "-json"), &m); err != nil {
		t.Fatal(err)
	}
	for _, v := range CheckModule(m, string(page)) {
		t.Error(v)
	}
}

// Every exception in a table must still be needed to be there: a stale row
// would let the next one in unseen.
func TestExceptionsExist(t *testing.T) {
	for _, table := range []map[string]string{sizeExceptions, initExceptions, skipFolders} {
		for name, why := range table {
			if _, err := os.Stat(filepath.Join(root, name)); errors.Is(err, fs.ErrNotExist) && name != "internal/meshtest" {
				t.Errorf("exception for %s, which does not exist", name)
			}
			if why == "" {
				t.Errorf("exception for %s without a reason", name)
			}
		}
	}
	for _, d := range doors {
		if d.Why == "" {
			t.Errorf("door %s without a reason", d.Dependency)
		}
	}
}

// load asks the go tool. Packages that do not compile at the moment still have
// their imports read (-e); that they do not compile is not said here.
func load(t *testing.T) Graph {
	t.Helper()
	out := command(t, "list", "-e", "-deps", "-json=ImportPath,Standard,Imports,TestImports,XTestImports", "./...")
	g := Graph{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath                         string
			Standard                           bool
			Imports, TestImports, XTestImports []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if rel, ours := House().rel(p.ImportPath); ours && excepted(rel, notYet) {
			continue
		}
		g[p.ImportPath] = Package{p.ImportPath, p.Standard, p.Imports, append(p.TestImports, p.XTestImports...)}
	}
	if len(g) < 100 {
		t.Fatalf("go list names %d packages only; something is wrong with how it was asked", len(g))
	}
	return g
}

func files(t *testing.T) []File {
	t.Helper()
	var out []File
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process removed it meanwhile
		}
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "testdata" || p != root && strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		out = append(out, File{filepath.ToSlash(rel), text})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func command(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}
