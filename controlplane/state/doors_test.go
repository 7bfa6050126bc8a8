package state_test

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/files"
	"github.com/heddle-mesh/heddle/internal/source/kube"
)

// TestBothDoors: the objects of each scenario, in an API server, give the same
// state as the same manifests in a folder. What stands where in which file,
// only a folder can say.
func TestBothDoors(t *testing.T) {
	dirs, err := filepath.Glob("testdata/*/manifests")
	if err != nil || len(dirs) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(filepath.Dir(dir)), func(t *testing.T) {
			folder, err := files.Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			folder.Problems = slices.Clone(folder.Problems)
			for i := range folder.Problems {
				folder.Problems[i].File, folder.Problems[i].Line = "", 0
			}
			folder.Tidy()
			server := fromServer(t, dir)
			for _, part := range []struct {
				name      string
				got, want any
			}{
				{"namespaces", server.Namespaces, folder.Namespaces}, {"nodes", server.Nodes, folder.Nodes},
				{"pods", server.Pods, folder.Pods}, {"services", server.Services, folder.Services},
				{"slices", server.EndpointSlices, folder.EndpointSlices}, {"ranges", server.ServiceCIDRs, folder.ServiceCIDRs},
				{"broken", server.BrokenPolicies, folder.BrokenPolicies},
			} {
				if !reflect.DeepEqual(part.got, part.want) {
					t.Errorf("%s:\n%+v\nwant\n%+v", part.name, part.got, part.want)
				}
			}
			if got, want := describe(server), describe(folder); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// fromServer is the first snapshot of an API server that holds the manifests.
func fromServer(t *testing.T, dir string) *source.Snapshot {
	t.Helper()
	server := kubeapi.New(t, kubeapi.Heddle()...)
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no manifests", err)
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		server.Apply(t, string(text))
	}
	src, err := kube.New(kube.Config{Kubeconfig: server.Kubeconfig(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = src.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-src.Changed()
	return src.Snapshot()
}
