package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for args, want := range map[string]string{
		"run":                               "",
		"run -run policy -keep -node=local": "",
		"images -out d -tag v1":             "",
		"run -keep -notests":                "",
		"run -notests":                      "it goes with -keep",
		"run -keep -notests -run policy":    "without -run",
		"list":                              "",
		"remove ab12cd":                     "",
		"walk":                              `no command "walk"`,
		"run policy":                        "1 arguments, not 0",
		"run -node=cloud":                   "want auto, local or stock",
		"run -tag x":                        "not defined: -tag",
		"images -out d":                     "-out and -tag are needed",
		"images -tag v1":                    "-out and -tag are needed",
		"remove":                            "0 arguments, not 1",
		"remove a b":                        "2 arguments, not 1",
		"list all":                          "1 arguments, not 0",
		"cell":                              `no command "cell"`, // not for people
	} {
		_, o, err := parse(strings.Fields(args))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", args, err)
		case want == "" && !filepath.IsAbs(o.bin):
			t.Errorf("%s: the folder of programs is %q: it must hold in any folder", args, o.bin)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}

func TestTagged(t *testing.T) {
	const (
		without = "h/e2e/apps/web\nh/e2e/demo demo_test.go\nh/e2e/cluster/cell cell_test.go\nh/e2e/install\nh/e2e/mixed a_test.go\n"
		with    = "h/e2e/apps/web\nh/e2e/demo demo_test.go\nh/e2e/cluster/cell cell_test.go\nh/e2e/install install_test.go\nh/e2e/mixed a_test.go b_test.go\nh/e2e/deep/er x_test.go\n"
	)
	want := []folder{{"h/e2e/install", "install"}, {"h/e2e/mixed", "mixed"}, {"h/e2e/deep/er", "deep/er"}}
	if d := cmp.Diff(want, tagged(without, with), cmp.AllowUnexported(folder{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestEmptyRun(t *testing.T) {
	for said, want := range map[string]bool{
		"ok  \th/e2e/install\t0.2s\n":                       false,
		"ok  \th/e2e/install\t0.2s [no tests to run]\n":     true,
		"?   \th/e2e/install\t[no test files]\n":            true,
		"testing: warning: no tests to run\nPASS\n":         false,
		"--- PASS: TestInstall (12.00s)\nPASS\nok  \tx\t1s": false,
	} {
		var e emptyRun
		if _, err := e.Write([]byte(said)); err != nil || e.found != want {
			t.Errorf("%q: found %v, want %v", said, e.found, want)
		}
	}
}

func TestTestImages(t *testing.T) {
	bin := t.TempDir()
	if err := os.Mkdir(filepath.Join(bin, "apps"), 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range inCluster[1:] {
		put(p, p)
	}
	put("apps/web", "web")
	put("apps/stock", "stock")
	if _, _, err := testImages(bin, "/jaeger"); err == nil || !strings.Contains(err.Error(), inCluster[0]) {
		t.Errorf("a program is missing: error %v does not name it", err)
	}
	put(inCluster[0], "v1")
	_, before, err := testImages(bin, "/jaeger")
	if err != nil {
		t.Fatal(err)
	}
	put(inCluster[0], "v2")
	images, after, err := testImages(bin, "/jaeger")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range inCluster {
		// One tag for all: the chart has one.
		if before[p] == after[p] {
			t.Errorf("%s: a program changed, and the tag did not: %s", p, after[p])
		}
	}
	if before["e2e-apps"] != after["e2e-apps"] {
		t.Error("the applications did not change, and their tag did")
	}
	var refs []string
	for _, img := range images {
		refs = append(refs, img.Ref)
	}
	for name, ref := range after {
		if !strings.Contains(strings.Join(refs, " "), ref) {
			t.Errorf("the tests are told of %s=%s, which is no image", name, ref)
		}
	}
}

func TestPhases(t *testing.T) {
	var p phases
	p.begin("one")()
	p.begin("two")()
	var b strings.Builder
	p.print(&b, 90*time.Second)
	want := "\n     0.0s  one\n     0.0s  two\n    90.0s  in all\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}
