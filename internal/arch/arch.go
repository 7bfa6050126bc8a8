// Package arch holds the house rules as code: who may import whom, which
// dependency has which door, how large a room may grow, and a few things that
// may not be written at all. It is pure: its functions take what the go tool
// and the parser say and give violations as text. It knows nothing of what the
// packages do. Only its own test calls it, on this repository and on made-up
// ones that break each rule.
package arch

import (
	"fmt"
	"sort"
	"strings"
)

// Package is one package as "go list" sees it.
type Package struct {
	Path        string   // import path
	Standard    bool     // of Go's own library
	Imports     []string // of the code that ships
	TestImports []string // of its tests, inside and outside the package
}

// Rules is everything that people edit on purpose; House has ours.
type Rules struct {
	Module     string
	Levels     []Level
	Doors      []Door
	CrossTests []CrossTest
	Binaries   []Binary
	// PureForbids are packages that pure models do without: they reach the
	// outside world.
	PureForbids []string
}

// Level places a folder, with all below it, in the order of the house. A
// package may import lower levels, and its own level only as Kind says.
type Level struct {
	Folder string // longest match wins
	Kind   Kind
	Why    string
}

// Kind is a storey of the house.
type Kind int

// The storeys, lowest first.
const (
	API       Kind = iota // data that everybody may use
	Pure                  // models without I/O
	Machinery             // doors to the outside
	Tower                 // programs' insides; each Level row is one tower
	Bench                 // lab, test support, arch: beside the towers, they import none
	Program               // cmd, e2e: put everything together; nobody imports them
)

// Door says where a dependency may be imported.
type Door struct {
	Dependency string   // import path prefix; longest match wins
	Folders    []string // folders that may, with all below; nil: anywhere
	Tests      bool     // tests may, anywhere
	Why        string
}

// CrossTest allows the tests of one package to import another tower.
type CrossTest struct{ Folder, Imports, Why string }

// Binary is a program, or a folder that goes into it, and what it must never
// link.
type Binary struct{ Folder, Never, Why string }

// Graph is all packages by import path.
type Graph map[string]Package

// Check gives every broken rule about imports, sorted.
func (r Rules) Check(g Graph) []string {
	var out []string
	for _, p := range g {
		rel, ours := r.rel(p.Path)
		if !ours {
			continue
		}
		from, ok := r.level(rel)
		if !ok {
			out = append(out, fmt.Sprintf("%s has no level: add its folder to internal/arch/table.go with the reason, or move it", rel))
			continue
		}
		for _, imp := range p.Imports {
			out = append(out, r.edge(rel, from, imp, g, false)...)
		}
		for _, imp := range p.TestImports {
			out = append(out, r.edge(rel, from, imp, g, true)...)
		}
	}
	out = append(out, r.links(g)...)
	sort.Strings(out)
	return compact(out)
}

// edge judges one import.
func (r Rules) edge(rel string, from Level, imp string, g Graph, test bool) []string {
	who := rel
	if test {
		who = "the test of " + rel
	}
	target, ours := r.rel(imp)
	if !ours {
		return r.outside(who, rel, from, imp, g, test)
	}
	if target == rel {
		return nil // an external test imports its own package
	}
	to, ok := r.level(target)
	if !ok {
		return nil // reported where target itself is looked at
	}
	if why := r.refuse(rel, from, target, to, test); why != "" {
		return []string{fmt.Sprintf("%s imports %s: %s", who, target, why)}
	}
	return nil
}

// refuse says why from may not import to; "" if it may.
func (r Rules) refuse(rel string, from Level, target string, to Level, test bool) string {
	if test && (within(target, "internal/meshtest") || r.crossTest(rel, target)) {
		return ""
	}
	switch {
	case within(target, "internal/arch"):
		return "nobody imports the law"
	case within(target, "internal/meshtest") && from.Folder != to.Folder:
		return "test support does not ship"
	case to.Kind == Program:
		// A program may have rooms below its own folder; cmd itself is none.
		if to.Folder == from.Folder && program(rel) == program(target) && rel != target {
			return ""
		}
		return "programs are not libraries"
	case from.Kind == Program:
		return ""
	case from.Kind == Tower && to.Kind == Tower && from.Folder != to.Folder:
		return "towers do not import each other"
	case from.Kind >= Tower && to.Kind >= Tower && from.Folder != to.Folder:
		return from.Folder + " and " + to.Folder + " stand beside each other and do not import each other"
	case to.Kind > from.Kind:
		return fmt.Sprintf("%s is a higher level than %s", to.Folder, from.Folder)
	}
	return ""
}

// program gives the folder of the program that rel belongs to: each of cmd is
// one by itself, any other Program row is one as a whole.
func program(rel string) string {
	rest, ok := strings.CutPrefix(rel, "cmd/")
	if !ok {
		return first(rel)
	}
	return "cmd/" + first(rest)
}

func (r Rules) crossTest(rel, target string) bool {
	for _, c := range r.CrossTests {
		if within(rel, c.Folder) && within(target, c.Imports) {
			return true
		}
	}
	return false
}

// outside judges an import of somebody else's package.
func (r Rules) outside(who, rel string, from Level, imp string, g Graph, test bool) []string {
	if g[imp].Standard || !strings.Contains(first(imp), ".") {
		if from.Kind == Pure && !test {
			for _, no := range r.PureForbids {
				if imp == no {
					return []string{fmt.Sprintf("%s imports %s: pure models do no I/O", who, imp)}
				}
			}
		}
		return nil
	}
	door, ok := r.door(imp)
	switch {
	case !ok:
		return []string{fmt.Sprintf("%s imports %s: no row in the table of doors (internal/arch/table.go) and in docs/dependencies.md", who, imp)}
	case door.Folders == nil || test && door.Tests:
		return nil
	}
	for _, f := range door.Folders {
		if within(rel, f) {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s imports %s: its door is %s (%s)", who, imp, strings.Join(door.Folders, ", "), door.Why)}
}

// links judges what programs link, however deep; it names the way in.
func (r Rules) links(g Graph) []string {
	var out []string
	for _, b := range r.Binaries {
		via := map[string]string{} // package -> who imports it
		var queue []string
		for path := range g {
			if rel, ours := r.rel(path); ours && within(rel, b.Folder) {
				via[path] = ""
				queue = append(queue, path)
			}
		}
		sort.Strings(queue)
		for len(queue) > 0 {
			p := queue[0]
			queue = queue[1:]
			if within(p, b.Never) {
				out = append(out, fmt.Sprintf("%s links %s: %s", b.Folder, chain(via, p), b.Why))
				break // one way in is enough to start mending
			}
			for _, imp := range g[p].Imports {
				if _, seen := via[imp]; !seen {
					via[imp] = p
					queue = append(queue, imp)
				}
			}
		}
	}
	return out
}

func chain(via map[string]string, p string) string {
	s := p
	for via[p] != "" {
		p = via[p]
		s = p + " > " + s
	}
	return s
}

// level gives the row of the longest folder that holds rel.
func (r Rules) level(rel string) (best Level, ok bool) {
	for _, l := range r.Levels {
		if within(rel, l.Folder) && (!ok || len(l.Folder) > len(best.Folder)) {
			best, ok = l, true
		}
	}
	return best, ok
}

func (r Rules) door(imp string) (best Door, ok bool) {
	for _, d := range r.Doors {
		if within(imp, d.Dependency) && (!ok || len(d.Dependency) > len(best.Dependency)) {
			best, ok = d, true
		}
	}
	return best, ok
}

// rel gives the path inside the module; false for other people's packages.
func (r Rules) rel(path string) (string, bool) {
	if path == r.Module {
		return ".", true
	}
	return strings.CutPrefix(path, r.Module+"/")
}

// within says whether path is folder or stands below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

func first(path string) string {
	head, _, _ := strings.Cut(path, "/")
	return head
}

func compact(sorted []string) []string {
	var out []string
	for i, s := range sorted {
		if i == 0 || s != sorted[i-1] {
			out = append(out, s)
		}
	}
	return out
}
