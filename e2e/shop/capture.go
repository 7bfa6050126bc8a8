package shop

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/e2e/observe"
)

// Captured ends the captures of a place made of capture.yaml and fetches them
// into a folder of the test's.
func (p *Place) Captured(t testing.TB) []observe.Capture {
	t.Helper()
	p.Kubectl(t, "-n", p.Namespace, "delete", "daemonset", "capture", "--cascade=foreground", "--timeout="+goneLimit.String())
	var all []observe.Capture
	for _, node := range p.Nodes(t) {
		var stats struct{ Packets, Written, Dropped int64 }
		said := p.OnNode(t, node, "cat", p.ledger()+"/capture.json")
		if err := json.Unmarshal([]byte(said), &stats); err != nil {
			t.Fatalf("the capture on %s said %q: %v", node, said, err)
		}
		if stats.Dropped != 0 {
			t.Errorf("the capture on %s missed %d of %d packets: nothing can be said of them", node, stats.Dropped, stats.Packets)
		}
		c := observe.Capture{File: filepath.Join(t.TempDir(), node+".pcap")}
		if err := os.WriteFile(c.File, []byte(p.OnNode(t, node, "cat", p.ledger()+"/capture.pcap")), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, cidr := range strings.Fields(p.Kubectl(t, "get", "node", node, "-o", "jsonpath={.spec.podCIDRs[*]}")) {
			c.PodCIDRs = append(c.PodCIDRs, netip.MustParsePrefix(cidr))
		}
		t.Logf("%s: %d packets captured, pods %v", node, stats.Written, c.PodCIDRs)
		all = append(all, c)
	}
	return all
}

// Addresses are those of all pods of the place.
func (p *Place) Addresses(t testing.TB) []netip.Addr {
	t.Helper()
	var all []netip.Addr
	for _, ip := range strings.Fields(p.Kubectl(t, "-n", p.Namespace, "get", "pods", "-o", "jsonpath={.items[*].status.podIPs[*].ip}")) {
		all = append(all, netip.MustParseAddr(ip))
	}
	return all
}
