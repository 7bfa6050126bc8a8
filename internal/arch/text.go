package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"sort"
	"strings"
)

// File is one Go file's text; Path is relative to the repository and has
// forward slashes.
type File struct {
	Path string
	Text []byte
}

// CheckText gives every broken rule about how files are written, sorted. A
// file that does not parse is the compiler's business.
func CheckText(files []File) []string {
	var out []string
	rooms := map[string]*room{}
	for _, f := range files {
		dir := path.Dir(f.Path)
		if excepted(f.Path, notYet) {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Path, f.Text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		test := strings.HasSuffix(f.Path, "_test.go")
		generated := ast.IsGenerated(parsed)
		if test {
			out = append(out, skips(f.Path, parsed)...)
			continue
		}
		if rooms[dir] == nil {
			rooms[dir] = &room{name: parsed.Name.Name}
		}
		rooms[dir].add(f, parsed, generated)
		if !generated {
			out = append(out, skips(f.Path, parsed)...)
			out = append(out, forbidden(f.Path, parsed)...)
			if n := lines(f.Text); n > maxFileLines && !excepted(f.Path, sizeExceptions) {
				out = append(out, fmt.Sprintf("%s has %d lines, more than %d: cut it by concept, or give the reason in sizeExceptions", f.Path, n, maxFileLines))
			}
		}
	}
	for dir, r := range rooms {
		out = append(out, r.check(dir)...)
	}
	sort.Strings(out)
	return out
}

// room is what is known of one folder.
type room struct {
	name      string
	lines     int
	comments  []string // files with a package comment
	generated bool     // some file is
}

func (r *room) add(f File, parsed *ast.File, generated bool) {
	if generated {
		r.generated = true
	} else {
		r.lines += lines(f.Text)
	}
	if parsed.Doc != nil && strings.TrimSpace(parsed.Doc.Text()) != "" {
		r.comments = append(r.comments, path.Base(f.Path))
	}
}

func (r *room) check(dir string) []string {
	var out []string
	switch {
	case len(r.comments) == 0 && !r.generated:
		out = append(out, fmt.Sprintf("%s has no package comment: say what it is, what not, who calls it", dir))
	case len(r.comments) > 1 && !r.generated:
		sort.Strings(r.comments)
		out = append(out, fmt.Sprintf("%s has %d package comments (%s): keep one", dir, len(r.comments), strings.Join(r.comments, ", ")))
	}
	if badNames[r.name] || badNames[path.Base(dir)] {
		out = append(out, fmt.Sprintf("%s: the name says nothing; call the room by what it does", dir))
	}
	if r.lines > maxRoomLines && !excepted(dir, sizeExceptions) {
		out = append(out, fmt.Sprintf("%s has %d lines, more than %d: make two rooms, or give the reason in sizeExceptions", dir, r.lines, maxRoomLines))
	}
	return out
}

// skips finds tests that skip outside the rooms that probe the host.
func skips(file string, parsed *ast.File) []string {
	if excepted(file, skipFolders) {
		return nil
	}
	var out []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		recv, name := selector(call.Fun)
		switch recv {
		case "t", "b", "f", "tb":
			if name == "Skip" || name == "Skipf" || name == "SkipNow" {
				out = append(out, fmt.Sprintf("%s calls %s.%s: skip only through internal/meshtest, which probes the host", file, recv, name))
			}
		}
		return true
	})
	return out
}

// forbidden finds init functions and sleeps in code that ships.
func forbidden(file string, parsed *ast.File) []string {
	var out []string
	for _, d := range parsed.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Recv == nil && fn.Name.Name == "init" && !excepted(file, initExceptions) {
			out = append(out, fmt.Sprintf("%s has an init function: build in New, from a Config", file))
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && !excepted(file, sleepExceptions) {
			if recv, name := selector(call.Fun); recv == "time" && name == "Sleep" {
				out = append(out, fmt.Sprintf("%s calls time.Sleep: wait for the event, or for a timer and the context", file))
			}
		}
		return true
	})
	return out
}

// selector gives x and Sel of x.Sel, where x is a plain name.
func selector(e ast.Expr) (recv, name string) {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return "", ""
	}
	return x.Name, s.Sel.Name
}

// excepted says whether a table names the file or a folder above it.
func excepted(file string, table map[string]string) bool {
	for f := file; f != "." && f != "/"; f = path.Dir(f) {
		if _, ok := table[f]; ok {
			return true
		}
	}
	return false
}

func lines(text []byte) int { return bytes.Count(text, []byte("\n")) }

// CheckFolders gives the top folders that are not of the house.
func CheckFolders(names []string) []string {
	var out []string
	for _, n := range names {
		if _, ok := topFolders[n]; !ok && !strings.HasPrefix(n, ".") {
			out = append(out, fmt.Sprintf("folder %s at the top: the house has no such room (topFolders)", n))
		}
	}
	sort.Strings(out)
	return out
}

// Module is what "go mod edit -json" says of go.mod.
type Module struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Replace []struct{ Old struct{ Path string } }
	Tool    []struct{ Path string }
}

// CheckModule compares go.mod with the page that justifies it: one table row
// or list line per dependency, its path in backquotes first on the line.
func CheckModule(m Module, page string) []string {
	var out []string
	for _, r := range m.Replace {
		out = append(out, fmt.Sprintf("go.mod replaces %s: who imports us would not see it", r.Old.Path))
	}
	listed := map[string]bool{}
	for _, line := range strings.Split(page, "\n") {
		rest, ok := strings.CutPrefix(strings.TrimLeft(line, "-*| "), "`")
		name, _, closed := strings.Cut(rest, "`")
		if ok && closed {
			listed[name] = true
		}
	}
	want := map[string]bool{}
	for _, r := range m.Require {
		if !r.Indirect {
			want[r.Path] = true
		}
	}
	for _, t := range m.Tool {
		want[t.Path] = true
	}
	for p := range want {
		if !listed[p] {
			out = append(out, fmt.Sprintf("go.mod needs %s, but docs/dependencies.md does not say why", p))
		}
	}
	for p := range listed {
		if !want[p] {
			out = append(out, fmt.Sprintf("docs/dependencies.md lists %s, but go.mod does not need it directly", p))
		}
	}
	sort.Strings(out)
	return out
}
