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
	for _, p := range s.dumpParts() {
		out, err := s.cell.Output(ctx, "sh", "-c", p.command)
		if err != nil {
			out += err.Error()
		}
		if err := os.WriteFile(filepath.Join(dir, p.name+".txt"), []byte(out), 0o644); err != nil {
			s.say("cannot keep %s: %v", p.name, err)
		}
		if p.print {
			fmt.Fprintf(s.out, "--- %s\n%s", p.name, tail(out))
		}
	}
}

// dumpPart is a file that tells something of a failed cluster.
type dumpPart struct {
	name, command string
	print         bool // its end is shown at once
}

func (s *session) dumpParts() []dumpPart {
	parts := []dumpPart{
		{"pods", "kubectl get pods -A -o wide", true},
		{"events", "kubectl get events -A --sort-by=.lastTimestamp", false},
		{"warnings", "kubectl get events -A --sort-by=.lastTimestamp --field-selector type=Warning", true},
		{"describe", "kubectl describe pods -A", false},
		{"services", "kubectl get services,endpointslices -A -o wide", false},
		{"policies", "for k in $(kubectl api-resources --api-group=heddle.dev -o name); do kubectl get $k -A -o yaml; done", false},
	}
	for _, app := range []string{"heddle-controlplane", "heddle-injector", "heddle-node"} {
		parts = append(parts, dumpPart{app, "kubectl -n heddle-system logs --all-containers --prefix --tail=2000 -l app.kubernetes.io/name=" + app, true})
	}
	for _, node := range s.cluster.Nodes() {
		parts = append(parts, dumpPart{node, "docker exec " + node + " sh -c 'nft list ruleset; ip -4 route; ip -6 route; journalctl -u kubelet --no-pager -n 200'", false})
	}
	return parts
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
