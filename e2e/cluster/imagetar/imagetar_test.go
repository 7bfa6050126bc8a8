package imagetar

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, dir, name, content string, mode os.FileMode) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.WriteFile(p, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return p
}

// entries reads a tar file into name → content; folders end in a slash.
func entries(t *testing.T, b []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := out[h.Name]; twice {
			t.Errorf("%s is in the archive twice", h.Name)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s is of uid %d, gid %d, time %v; want root's, without a time", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		c, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(c)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	prog := write(t, dir, "prog", "a program", 0o700)
	data := write(t, dir, "data", "some data", 0o600)
	images := []Image{
		{Ref: "heddle/a:1", Files: []File{{prog, "/prog"}, {data, "/etc/deep/data"}}, Entrypoint: []string{"/prog"}, Env: []string{"A=b"}},
		{Ref: "heddle/b:1", Files: []File{{prog, "/prog"}}, StopSignal: "SIGRTMIN+3"},
	}
	var one, two bytes.Buffer
	for _, w := range []*bytes.Buffer{&one, &two} {
		if err := Write(w, images...); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same input gave other bytes")
	}
	got := entries(t, one.Bytes())
	var m []manifest
	if err := json.Unmarshal([]byte(got["manifest.json"]), &m); err != nil {
		t.Fatal(err)
	}
	if len(m) != 2 || len(m[0].Layers) != 2 || len(m[1].Layers) != 1 || m[0].Layers[0] != m[1].Layers[0] {
		t.Fatalf("manifest %+v: want two images that share their first layer", m)
	}
	if n := len(got); n != 1+2+2 {
		t.Errorf("%d entries %v: want manifest, two configurations, two layers", n, slices.Sorted(maps.Keys(got)))
	}
	var c config
	if err := json.Unmarshal([]byte(got[m[0].Config]), &c); err != nil {
		t.Fatal(err)
	}
	for i, id := range c.RootFS.DiffIDs {
		sum := sha256.Sum256([]byte(got[m[0].Layers[i]]))
		if id != "sha256:"+hex.EncodeToString(sum[:]) {
			t.Errorf("layer %d is said to be %s and is not", i, id)
		}
	}
	want := process{Entrypoint: []string{"/prog"}, Env: []string{"A=b"}}
	if d := cmp.Diff(want, c.Config); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
	files := map[string]string{"etc/": "", "etc/deep/": "", "etc/deep/data": "some data"}
	if d := cmp.Diff(files, entries(t, []byte(got[m[0].Layers[1]]))); d != "" {
		t.Errorf("second layer (-want +got):\n%s", d)
	}
}

func TestModes(t *testing.T) {
	dir := t.TempDir()
	for mode, want := range map[os.FileMode]int64{0o700: 0o755, 0o755: 0o755, 0o600: 0o644} {
		var b bytes.Buffer
		if err := writeLayer(&b, File{write(t, dir, "f"+mode.String(), "x", mode), "/f"}); err != nil {
			t.Fatal(err)
		}
		h, err := tar.NewReader(&b).Next()
		if err != nil || h.Mode != want {
			t.Errorf("a file of mode %o is %o in the image, want %o (%v)", mode, h.Mode, want, err)
		}
	}
}

func TestTag(t *testing.T) {
	dir := t.TempDir()
	a, b := write(t, dir, "a", "x", 0o755), write(t, dir, "b", "y", 0o755)
	same := write(t, t.TempDir(), "other", "x", 0o700)
	tag := func(files ...File) string {
		s, err := Tag(files)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	base := tag(File{a, "/a"}, File{b, "/b"})
	if got := tag(File{same, "/a"}, File{b, "/b"}); got != base {
		t.Error("where a file lies on the host changes the tag")
	}
	if tag(File{b, "/a"}, File{b, "/b"}) == base {
		t.Error("a file's content does not change the tag")
	}
	if tag(File{a, "/c"}, File{b, "/b"}) == base {
		t.Error("a file's place does not change the tag")
	}
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	f := write(t, dir, "f", "x", 0o755)
	for want, img := range map[string]Image{
		"has no tag":         {Ref: "heddle/a", Files: []File{{f, "/f"}}},
		"is not absolute":    {Ref: "a:1", Files: []File{{f, "f"}}},
		"no such file":       {Ref: "a:1", Files: []File{{dir + "/none", "/f"}}},
		"is no regular file": {Ref: "a:1", Files: []File{{dir, "/f"}}},
		"none.tar":           {Ref: "a:1", Layer: dir + "/none.tar"},
	} {
		err := Write(io.Discard, img)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), img.Ref) {
			t.Errorf("error %v: want %q and the image's name in it", err, want)
		}
	}
}
