package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"
)

// testLimit bounds the tests of one folder. All of them together have ten
// minutes; one that hangs should say so before the whole run is given up.
const testLimit = 8 * time.Minute

// folder is a folder with tests that need the cluster.
type folder struct {
	pkg  string // import path
	name string // what RUN= calls it: the path below e2e
}

// findTests lists the folders below e2e with tests that only the build tag e2e
// brings in; want names one, or is empty for all. None is an error: a test
// that is not found must not pass.
func findTests(ctx context.Context, want string) ([]folder, error) {
	without, err := listTests(ctx, "")
	if err != nil {
		return nil, err
	}
	with, err := listTests(ctx, "e2e")
	if err != nil {
		return nil, err
	}
	found := tagged(without, with)
	if want == "" {
		if len(found) == 0 {
			return nil, errors.New("there is no test with the build tag e2e")
		}
		return found, nil
	}
	i := slices.IndexFunc(found, func(f folder) bool { return f.name == want })
	if i < 0 {
		var names []string
		for _, f := range found {
			names = append(names, f.name)
		}
		return nil, fmt.Errorf("no tests with the build tag e2e in e2e/%s; there are: %s", want, strings.Join(names, " "))
	}
	return found[i : i+1], nil
}

// listTests gives one line for every folder below e2e: import path, then test
// files.
func listTests(ctx context.Context, tags string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-tags="+tags, "-f", `{{.ImportPath}}{{range .TestGoFiles}} {{.}}{{end}}{{range .XTestGoFiles}} {{.}}{{end}}`, "./e2e/...")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("list the tests: %w\n%s", err, errs.String())
	}
	return out.String(), nil
}

// tagged compares two lists of listTests.
func tagged(without, with string) []folder {
	before := map[string]int{}
	for line := range strings.Lines(without) {
		f := strings.Fields(line)
		before[f[0]] = len(f)
	}
	var out []folder
	for line := range strings.Lines(with) {
		f := strings.Fields(line)
		if len(f) > max(before[f[0]], 1) {
			_, name, _ := strings.Cut(f[0], "/e2e/")
			out = append(out, folder{pkg: f[0], name: path.Clean(name)})
		}
	}
	return out
}

// compileTests finds out early that a test does not compile, and fills the
// build cache while the cluster comes up.
func compileTests(ctx context.Context, folders []folder) error {
	args := []string{"test", "-tags=e2e", "-count=1", "-run=^$"}
	for _, f := range folders {
		args = append(args, f.pkg)
	}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("compile the tests: %w\n%s", err, out)
	}
	return nil
}

// runTests runs the tests of one folder inside the cluster. Its words go to
// out as they come.
func (s *session) runTests(ctx context.Context, f folder) error {
	limit := testLimit + 30*time.Second // go test ends it first and prints stacks
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := s.cell.Command(ctx, "go", "test", "-tags=e2e", "-count=1", "-v", "-timeout="+testLimit.String(), f.pkg)
	var empty emptyRun
	cmd.Stdout, cmd.Stderr = io.MultiWriter(s.out, &empty), s.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("e2e/%s: %w", f.name, err)
	}
	if empty.found {
		return fmt.Errorf("e2e/%s: no test ran", f.name)
	}
	return nil
}

// emptyRun looks for go test's remark that a package passed without a test.
type emptyRun struct{ found bool }

func (e *emptyRun) Write(b []byte) (int, error) {
	e.found = e.found || bytes.Contains(b, []byte("[no tests to run]")) || bytes.Contains(b, []byte("[no test files]"))
	return len(b), nil
}
