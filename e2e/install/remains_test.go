//go:build e2e

package install

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
)

// moving are kinds whose objects come and go by themselves.
var moving = []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses", "pods", "endpoints", "endpointslices.discovery.k8s.io", "controllerrevisions.apps", "replicasets.apps", "ipaddresses.networking.k8s.io"}

// state is all that an installation could leave: objects, the kernel's rules,
// files, links, per node.
type state map[string][]string

// look takes the state of the whole cluster.
func look(t *testing.T, c *client.Cluster) state {
	t.Helper()
	s := state{}
	var kinds []string
	for _, kind := range strings.Fields(c.Kubectl(t, "api-resources", "--verbs=list", "-o", "name")) {
		s["kinds"] = append(s["kinds"], kind)
		if !slices.Contains(moving, kind) {
			kinds = append(kinds, kind)
		}
	}
	s["objects"] = lines(c.Kubectl(t, "get", strings.Join(kinds, ","), "-A", "--no-headers", "--ignore-not-found", "-o",
		`go-template={{range .items}}{{.kind}} {{.metadata.namespace}}/{{.metadata.name}} labels {{.metadata.labels}} finalizers {{.metadata.finalizers}}{{"\n"}}{{end}}`))
	s["pods"] = lines(c.Kubectl(t, "get", "pods,leases", "-A", "-o", `go-template={{range .items}}{{if ne .metadata.namespace "kube-node-lease"}}{{.kind}} {{.metadata.namespace}}/{{.metadata.name}}{{"\n"}}{{end}}{{end}}`))
	for _, node := range c.Nodes(t) {
		for what, script := range map[string]string{
			"tables": "nft list tables; iptables-save 2>/dev/null | grep -i heddle; ip6tables-save 2>/dev/null | grep -i heddle; true",
			"links":  "ip -o link show type dummy; ip rule; ip -6 rule",
			"files":  "find / -xdev -iname '*heddle*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/var/lib/containerd/*' -not -path '/run/containerd/*' -not -path '/var/log/*' -not -path '/var/lib/kubelet/pods/*' -not -path '/var/tmp/heddle-e2e*'; find /run /var/lib/heddle /var/run -iname '*heddle*' -not -path '*containerd*' 2>/dev/null; true",
			"sysctl": "sysctl -a 2>/dev/null | grep -E 'conf.(all|default).(route_localnet|forwarding|rp_filter)|nf_conntrack_tcp_be_liberal|ip_forward |bridge-nf' | sort; true",
		} {
			s[node+" "+what] = lines(c.OnNode(t, node, "sh", "-c", script))
		}
	}
	return s
}

// lines are sorted; empty ones are left out.
func lines(text string) (out []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// differences say what is in one only.
func (s state) differences(after state) (out []string) {
	for what, was := range s {
		for _, line := range was {
			if !slices.Contains(after[what], line) {
				out = append(out, what+": gone: "+line)
			}
		}
		for _, line := range after[what] {
			if !slices.Contains(was, line) {
				out = append(out, what+": left: "+line)
			}
		}
	}
	slices.Sort(out)
	return out
}

// leaves waits until the cluster is again as it was: deletions take their time.
func leaves(t *testing.T, c *client.Cluster, before state) {
	t.Helper()
	c.Eventually(t, goneLimit, "the cluster is as it was before", func(context.Context) error {
		if d := before.differences(look(t, c)); len(d) > 0 {
			return differs(d)
		}
		return nil
	})
}

type differs []string

func (d differs) Error() string { return strings.Join(d, "\n") }
