package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// dump writes what the cluster looks like after a failure into a folder that
// stays, and prints the end of each part.
func (s *session) dump(ctx context.Context, name string) {
	if s.cell == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dumpTime)
	defer cancel()
	dir := filepath.Join(s.bin, "e2e", s.dir.ID()+"-"+strings.ReplaceAll(name, "/", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.say("cannot keep what failed: %v", err)
		return
	}
	s.say("what the cluster looks like, whole in %s:", dir)
	parts := [][2]string{
		{"pods", "kubectl get pods -A -o wide"},
		{"events", "kubectl get events -A --sort-by=.lastTimestamp"},
		{"describe", "kubectl describe pods -A"},
		{"services", "kubectl get services,endpointslices -A -o wide"},
	}
	for _, app := range []string{"heddle-controlplane", "heddle-injector", "heddle-node"} {
		parts = append(parts, [2]string{app, "kubectl -n heddle-system logs --all-containers --prefix --tail=2000 -l app.kubernetes.io/name=" + app})
	}
	for _, node := range s.cluster.Nodes() {
		parts = append(parts, [2]string{node, "docker exec " + node + " sh -c 'nft list ruleset; ip -4 route; ip -6 route; journalctl -u kubelet --no-pager -n 200'"})
	}
	for _, p := range parts {
		out, err := s.cell.Output(ctx, "sh", "-c", p[1])
		if err != nil {
			out += err.Error()
		}
		if err := os.WriteFile(filepath.Join(dir, p[0]+".txt"), []byte(out), 0o644); err != nil {
			s.say("cannot keep %s: %v", p[0], err)
		}
		fmt.Fprintf(s.out, "--- %s\n%s", p[0], tail(out))
	}
}

// tail is the end of a text.
func tail(s string) string {
	const most = 25 // lines; a failure's reason is near the end
	lines := strings.SplitAfter(s, "\n")
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return strings.Join(lines, "")
}
