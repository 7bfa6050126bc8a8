package objects

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

func object(name, value string) Object {
	return Object{Ref: source.Ref{Kind: "Pod", Namespace: "shop", Name: name}, Value: map[string]string{"v": value}}
}

func list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e.Name()+"="+strings.TrimSpace(string(b)))
	}
	return strings.Join(out, " ")
}

func TestSync(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "stale.yaml"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		objs []Object
		want string
	}{
		{[]Object{object("a", "1"), object("b", "1")}, "pod_shop_a.yaml=v: \"1\" pod_shop_b.yaml=v: \"1\""},
		{[]Object{object("a", "1"), object("b", "2")}, "pod_shop_a.yaml=v: \"1\" pod_shop_b.yaml=v: \"2\""},
		{[]Object{object("b", "2")}, "pod_shop_b.yaml=v: \"2\""},
		{nil, ""},
	} {
		if err := f.Sync(step.objs); err != nil {
			t.Fatal(err)
		}
		if got := list(t, dir); got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
}

func TestUnchangedIsNotWritten(t *testing.T) {
	f, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Sync([]Object{object("a", "1")}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(f.Dir(), "pod_shop_a.yaml")
	old := time.Unix(1, 0)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync([]Object{object("a", "1")}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("written again: %v %v", info, err)
	}
}

func TestNamesAtTheirLimits(t *testing.T) {
	f, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", 252)
	objs := []Object{object(long+"a", "1"), object(long+"b", "1")}
	for i := range objs {
		objs[i].Ref.Namespace = strings.Repeat("n", 63)
		objs[i].Ref.Kind = "MutatingWebhookConfiguration"
	}
	if err := f.Sync(objs); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(f.Dir()); len(entries) != 2 {
		t.Errorf("%d files, want 2", len(entries))
	}
}
