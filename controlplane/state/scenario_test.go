package state_test

import (
	"flag"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/files"
)

var update = flag.Bool("update", false, "write what the scenarios give")

// names are all resources that a snapshot can have, sorted; those of pods come
// with their peers.
func names(s *source.Snapshot, more ...string) (out []string, peers []state.Peer) {
	addrs := map[netip.Addr]bool{}
	for _, svc := range s.Services {
		for _, a := range slices.Concat(svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs) {
			addrs[a] = true
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.Pods), func(a, b source.Key) int { return strings.Compare(a.String(), b.String()) }) {
		p := s.Pods[k]
		for _, a := range p.IPs {
			addrs[a] = true
		}
		peers = append(peers, state.Peer{Kind: wire.PeerKind_PEER_KIND_SIDECAR, Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, PodUID: p.UID})
	}
	for _, a := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) {
		out = append(out, "addr/"+a.String())
	}
	return append(append(out, more...), "mesh", "bundle"), peers
}

// TestScenarios: manifests in, resources out. The folders are made for both
// doors: the same objects, created in a cluster, must give the same text.
func TestScenarios(t *testing.T) {
	dirs, err := filepath.Glob("testdata/*")
	if err != nil || len(dirs) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			snap, err := files.Read(filepath.Join(dir, "manifests"))
			if err != nil {
				t.Fatal(err)
			}
			got := describe(snap)
			want := filepath.Join(dir, "want.txt")
			if *update {
				if err := os.WriteFile(want, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			b, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(b) {
				t.Errorf("got\n%s\nwant\n%s", got, b)
			}
		})
	}
}

func describe(snap *source.Snapshot) string {
	w := state.Build(nil, snap, state.Options{Roots: &wire.TrustBundles{Bundles: []*wire.TrustBundle{{TrustDomain: "cluster.local", Roots: [][]byte{{1}}}}}})
	var b strings.Builder
	all, peers := names(snap, "addr/192.0.2.7")
	for _, n := range all {
		b.WriteString(render(w.Resource(n, state.Peer{})))
	}
	for _, p := range peers {
		if r := w.Resource("inbound", p); r != nil {
			b.WriteString(render(r))
		} else {
			b.WriteString("inbound: none for " + p.PodUID + "\n")
		}
	}
	for _, p := range w.Problems() {
		b.WriteString("problem: " + p.String() + "\n")
	}
	return b.String()
}
