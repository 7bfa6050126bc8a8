package arch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The tests in this file prove that the law can fail.

func house(pkgs ...Package) Graph {
	g := Graph{
		"fmt": {Path: "fmt", Standard: true}, "net": {Path: "net", Standard: true},
		"k8s.io/api/core/v1": {Path: "k8s.io/api/core/v1"},
	}
	for _, p := range pkgs {
		p.Path = "github.com/heddle-mesh/heddle/" + p.Path
		for _, list := range [][]string{p.Imports, p.TestImports} {
			for i, imp := range list {
				list[i] = strings.Replace(imp, "~", "github.com/heddle-mesh/heddle/", 1)
			}
		}
		g[p.Path] = p
	}
	return g
}

func TestCheckFails(t *testing.T) {
	imports := func(path string, imps ...string) Package { return Package{Path: path, Imports: imps} }
	tests := func(path string, imps ...string) Package { return Package{Path: path, TestImports: imps} }
	cases := []struct {
		name string
		g    Graph
		want []string
	}{
		{"towers", house(imports("controlplane/x", "~sidecar/y"), imports("sidecar/y")),
			[]string{"controlplane/x imports sidecar/y: towers do not import each other"}},
		{"the node agent is a tower of its own", house(imports("controlplane/state", "~controlplane/node/plan"), imports("controlplane/node/plan")),
			[]string{"controlplane/state imports controlplane/node/plan: towers do not import each other"}},
		{"inside one tower", house(imports("controlplane/serve", "~controlplane/state"), imports("controlplane/state", "~internal/source"), imports("internal/source", "~api/v1alpha1", "k8s.io/api/core/v1"), imports("api/v1alpha1")), nil},
		{"upwards", house(imports("internal/policy", "~internal/source"), imports("internal/source")),
			[]string{"internal/policy imports internal/source: internal/source is a higher level than internal/policy"}},
		{"machinery imports a tower", house(imports("internal/wire", "~sidecar/pool"), imports("sidecar/pool")),
			[]string{"internal/wire imports sidecar/pool: sidecar is a higher level than internal/wire"}},
		{"lab imports a tower", house(imports("internal/lab/pod", "~injector/patch"), imports("injector/patch")),
			[]string{"internal/lab/pod imports injector/patch: internal/lab and injector stand beside each other and do not import each other"}},
		{"tests of a tower", house(tests("sidecar/control", "~controlplane/serve"), imports("controlplane/serve")),
			[]string{"the test of sidecar/control imports controlplane/serve: towers do not import each other"}},
		{"test support in a test", house(tests("sidecar/control", "~internal/meshtest"), imports("internal/meshtest")), nil},
		{"test support ships", house(imports("sidecar/control", "~internal/meshtest"), imports("internal/meshtest")),
			[]string{"sidecar/control imports internal/meshtest: test support does not ship"}},
		{"programs put together", house(imports("cmd/heddle", "~internal/lab", "~injector/patch"), imports("internal/lab"), imports("injector/patch")), nil},
		{"programs as libraries", house(imports("cmd/heddle", "~cmd/heddle-sidecar"), imports("cmd/heddle-sidecar")),
			[]string{"cmd/heddle imports cmd/heddle-sidecar: programs are not libraries"}},
		{"a program's own room", house(imports("cmd/heddle", "~cmd/heddle/cluster"), imports("cmd/heddle/cluster", "~internal/lab"), imports("internal/lab")), nil},
		{"another program's room", house(imports("cmd/heddle-node", "~cmd/heddle/cluster"), imports("cmd/heddle/cluster")),
			[]string{"cmd/heddle-node imports cmd/heddle/cluster: programs are not libraries"}},
		{"no level", house(imports("internal/stuff")),
			[]string{"internal/stuff has no level: add its folder to internal/arch/table.go with the reason, or move it"}},
		{"pure does I/O", house(imports("internal/policy", "net")),
			[]string{"internal/policy imports net: pure models do no I/O"}},
		{"wrong door", house(imports("sidecar/control", "google.golang.org/grpc/codes")),
			[]string{"sidecar/control imports google.golang.org/grpc/codes: its door is api/wire, internal/wire, internal/telemetry/spans, internal/meshtest/collector (grpc stays off the request path and can be replaced in one room; the SDK's exporter is given dial options)"}},
		{"wrong door in a test", house(tests("sidecar/control", "google.golang.org/grpc")),
			[]string{"the test of sidecar/control imports google.golang.org/grpc: its door is api/wire, internal/wire, internal/telemetry/spans, internal/meshtest/collector (grpc stays off the request path and can be replaced in one room; the SDK's exporter is given dial options)"}},
		{"longest row wins", house(imports("sidecar/control", "github.com/spiffe/go-spiffe/v2/spiffeid")), nil},
		{"unknown dependency", house(imports("sidecar/control", "example.com/left-pad")),
			[]string{"sidecar/control imports example.com/left-pad: no row in the table of doors (internal/arch/table.go) and in docs/dependencies.md"}},
		{"linked from afar", house(imports("cmd/heddle-sidecar", "~internal/identity"), imports("internal/identity", "~internal/source"), imports("internal/source", "k8s.io/api/core/v1")),
			[]string{"cmd/heddle-sidecar links github.com/heddle-mesh/heddle/cmd/heddle-sidecar > github.com/heddle-mesh/heddle/internal/identity > github.com/heddle-mesh/heddle/internal/source > k8s.io/api/core/v1: the sidecar stays small: no Kubernetes types"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, House().Check(c.g)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCheckTextFails(t *testing.T) {
	long := "// Package x is long.\npackage x\n" + strings.Repeat("\n", maxFileLines)
	part := "package x\n" + strings.Repeat("\n", maxFileLines-10)
	cases := []struct {
		name  string
		files []File
		want  []string
	}{
		{"good", []File{{"sidecar/x/x.go", []byte("// Package x is.\npackage x\n")}}, nil},
		{"no comment", []File{{"sidecar/x/x.go", []byte("package x\n")}},
			[]string{"sidecar/x has no package comment: say what it is, what not, who calls it"}},
		{"two comments", []File{{"sidecar/x/x.go", []byte("// Package x is.\npackage x\n")}, {"sidecar/x/y.go", []byte("// Package x also is.\npackage x\n")}},
			[]string{"sidecar/x has 2 package comments (x.go, y.go): keep one"}},
		{"name", []File{{"sidecar/util/x.go", []byte("// Package util is.\npackage util\n")}},
			[]string{"sidecar/util: the name says nothing; call the room by what it does"}},
		{"init and sleep", []File{{"sidecar/x/x.go", []byte("// Package x is.\npackage x\nimport \"time\"\nfunc init() { time.Sleep(1) }\n")}},
			[]string{"sidecar/x/x.go calls time.Sleep: wait for the event, or for a timer and the context", "sidecar/x/x.go has an init function: build in New, from a Config"}},
		{"sleep in a test is the reviewer's business", []File{{"sidecar/x/x_test.go", []byte("package x\nimport \"time\"\nfunc f() { time.Sleep(1) }\n")}}, nil},
		{"skip", []File{{"sidecar/x/x_test.go", []byte("package x\nfunc TestX(t *testing.T) { t.Skip() }\n")}},
			[]string{"sidecar/x/x_test.go calls t.Skip: skip only through internal/meshtest, which probes the host"}},
		{"skip after a probe", []File{{"internal/meshtest/x.go", []byte("// Package meshtest is.\npackage meshtest\nfunc Need(t testing.TB) { t.Skip() }\n")}}, nil},
		{"long file", []File{{"sidecar/x/x.go", []byte(long)}},
			[]string{"sidecar/x/x.go has 502 lines, more than 500: cut it by concept, or give the reason in sizeExceptions"}},
		{"large room", []File{{"sidecar/x/a.go", []byte("// Package x is.\n" + part)}, {"sidecar/x/b.go", []byte(part)}, {"sidecar/x/c.go", []byte(part)}, {"sidecar/x/d.go", []byte(part)}},
			[]string{"sidecar/x has 1965 lines, more than 1500: make two rooms, or give the reason in sizeExceptions"}},
		{"generated code is not counted", []File{{"api/wire/x.go", []byte("// Code generated by x. DO NOT EDIT.\n\n" + long)}}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, CheckText(c.files)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCheckFoldersFails(t *testing.T) {
	want := []string{"folder pkg at the top: the house has no such room (topFolders)"}
	if diff := cmp.Diff(want, CheckFolders([]string{"cmd", "pkg", ".git"})); diff != "" {
		t.Error(diff)
	}
}

func TestCheckModuleFails(t *testing.T) {
	var m Module
	m.Require = append(m.Require, struct {
		Path     string
		Indirect bool
	}{"example.com/a", false}, struct {
		Path     string
		Indirect bool
	}{"example.com/indirect", true})
	m.Replace = append(m.Replace, struct{ Old struct{ Path string } }{struct{ Path string }{"example.com/a"}})
	m.Tool = append(m.Tool, struct{ Path string }{"example.com/tool"})
	want := []string{
		"docs/dependencies.md lists example.com/stale, but go.mod does not need it directly",
		"go.mod needs example.com/a, but docs/dependencies.md does not say why",
		"go.mod needs example.com/tool, but docs/dependencies.md does not say why",
		"go.mod replaces example.com/a: who imports us would not see it",
	}
	if diff := cmp.Diff(want, CheckModule(m, "see `example.com/a`\n- `example.com/stale`: was nice\n")); diff != "" {
		t.Error(diff)
	}
	if got := CheckModule(Module{}, "see `example.com/a`"); got != nil {
		t.Error(got)
	}
}
