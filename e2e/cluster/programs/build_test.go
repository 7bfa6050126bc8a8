package programs

import (
	"maps"
	"strings"
	"testing"
)

// TestKeys: no two sets share a folder, and a change of anything in a recipe
// makes another.
func TestKeys(t *testing.T) {
	seen := map[string]Set{}
	for set, r := range recipes() {
		key, err := r.key()
		if err != nil {
			t.Fatal(err)
		}
		if other, twice := seen[key]; twice {
			t.Errorf("%s and %s have the same key", set, other)
		}
		seen[key] = set
		for name, change := range map[string]func(*recipe){
			"a version":     func(r *recipe) { r.Module += "1" },
			"a program":     func(r *recipe) { r.Packages = append(r.Packages[:len(r.Packages):len(r.Packages)], "x") },
			"a tag":         func(r *recipe) { r.Tags += "x" },
			"a linker flag": func(r *recipe) { r.LDFlags += "x" },
			"a replacement": func(r *recipe) { r.Replace = maps.Clone(r.Replace); r.Replace["x"] = "y@v1" },
			"what is kept":  func(r *recipe) { r.KeepDir += "x" },
		} {
			changed := r
			if changed.Replace == nil {
				changed.Replace = map[string]string{}
			}
			change(&changed)
			if k, err := changed.key(); err != nil || k == key {
				t.Errorf("%s: %s changed and the key did not (%v)", set, name, err)
			}
		}
	}
}

// TestRecipes: what a recipe builds ends up under the name that others use.
func TestRecipes(t *testing.T) {
	for set, r := range recipes() {
		module, version, pinned := strings.Cut(r.Module, "@v")
		if !pinned || version == "" {
			t.Errorf("%s: %q has no version", set, r.Module)
		}
		for _, p := range r.Packages {
			if p != module && !strings.HasPrefix(p, module+"/") {
				t.Errorf("%s: %s is not in module %s, whose version it would be got at", set, p, module)
			}
		}
		if r.Rename != "" && len(r.Packages) != 1 {
			t.Errorf("%s: one name for %d programs", set, len(r.Packages))
		}
		if r.Cold == "" {
			t.Errorf("%s: does not say how long it takes", set)
		}
		for from, to := range r.Replace {
			if path, v, ok := strings.Cut(to, "@"); path != from || !ok || v == "" {
				t.Errorf("%s: %s is replaced by %s, not by a release of itself", set, from, to)
			}
		}
	}
	if _, err := (Builder{}).Build(t.Context(), "emacs"); err == nil {
		t.Error("a set that does not exist is no error")
	}
}
