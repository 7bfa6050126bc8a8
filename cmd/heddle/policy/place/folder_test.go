package place

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/internal/source"
)

const object = `{"apiVersion":"heddle.dev/v1alpha1","kind":"AccessPolicy","metadata":{"name":"a","namespace":"shop"},"spec":{"mtls":{"mode":"strict"}}}`

// An object is put where it stands, and nothing else in the folder changes.
func TestPut(t *testing.T) {
	const (
		yaml  = "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata:\n  name: a\n  namespace: shop\nspec:\n  mtls:\n    mode: strict\n"
		other = "# kept\napiVersion: v1\nkind: Namespace # as it is\nmetadata: {name: shop}\n"
		loose = "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: a, namespace: shop}\nspec: {mtls: {mode: permissive}}\n"
		bad   = "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: a, namespace: shop}\nspec: {mtls: {mode: loose}}\n"
		list  = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: heddle.dev/v1alpha1\n  kind: AccessPolicy\n  metadata: {name: a, namespace: shop}\n  spec: {mtls: {mode: permissive}}\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: x}\n"
	)
	for _, tt := range []struct {
		name          string
		files         map[string]string
		what, problem string
		want          map[string]string
	}{
		{"new", map[string]string{"w.yaml": other}, "created", "", map[string]string{"w.yaml": other, "accesspolicy.shop.a.yaml": yaml}},
		{"replaced", map[string]string{"w.yaml": other + "---\n" + loose + "---\n" + other}, "configured", "", map[string]string{"w.yaml": other + "---\n" + yaml + "---\n" + other}},
		{"replaced at the start", map[string]string{"w.yml": loose + "---\n" + other}, "configured", "", map[string]string{"w.yml": yaml + "---\n" + other}},
		{"a bad one mended", map[string]string{"sub/w.yaml": "---\n" + bad}, "configured", "", map[string]string{"sub/w.yaml": "---\n" + yaml}},
		{"the same", map[string]string{"w.yaml": strings.Replace(loose, "permissive", "strict", 1)}, "unchanged", "", map[string]string{"w.yaml": strings.Replace(loose, "permissive", "strict", 1)}},
		{"in a list", map[string]string{"w.yaml": list}, "", "stands in a list", map[string]string{"w.yaml": list}},
		{"twice", map[string]string{"w.yaml": loose, "x.yaml": loose}, "", "keep one of the two", map[string]string{"w.yaml": loose, "x.yaml": loose}},
		{"not in what is not read", map[string]string{"status/w.yaml": loose, ".git/w.yaml": loose, ".w.yaml": loose, "w.txt": loose}, "created", "", map[string]string{"accesspolicy.shop.a.yaml": yaml, "status/w.yaml": loose, ".git/w.yaml": loose, ".w.yaml": loose, "w.txt": loose}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			p, err := Folder(dir)
			if err != nil {
				t.Fatal(err)
			}
			ref := source.Ref{Kind: "AccessPolicy", Namespace: "shop", Name: "a"}
			done, err := p.Put(t.Context(), ref, []byte(object))
			if done.What != tt.what || (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("did %q, %v; want %q, %q", done.What, err, tt.what, tt.problem)
			}
			found := 0
			for name, want := range tt.want {
				got, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil || string(got) != want {
					t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
				}
				found++
			}
			n := 0
			if err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					n++
				}
				return err
			}); err != nil || n != found {
				t.Errorf("%d files, want %d (%v)", n, found, err)
			}
			if err == nil && tt.problem == "" {
				s, err := p.One(t.Context(), ref)
				if err != nil || s == nil || s.Generation != done.Generation {
					t.Errorf("shows %+v, %v; want generation %d", s, err, done.Generation)
				}
			}
		})
	}
}

// FuzzSplitDocuments: the pieces are the text, whatever it is, and no piece but
// the first begins without a mark.
func FuzzSplitDocuments(f *testing.F) {
	for _, s := range []string{"", "a: 1\n---\nb: 2", "---\n---\n", "--- x\ny\n", "----\n---", "a\r\n---\r\nb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		docs := splitDocuments(text)
		if strings.Join(docs, "") != text {
			t.Fatalf("%q became %q", text, docs)
		}
		for i, d := range docs {
			if i > 0 && !strings.HasPrefix(d, "---") {
				t.Fatalf("piece %d is %q", i, d)
			}
		}
	})
}
