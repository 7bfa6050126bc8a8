package mesh

import (
	_ "embed"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/meshtest"
)

//go:embed manifests/forms.yaml
var forms string

//go:embed manifests/roll.yaml
var roll string

// Whichever way the redirect is written and the sidecar is injected, pods call
// and are called with identity, and skipped ports go past the sidecar.
func TestForms(t *testing.T) {
	ctx, l := mesh(t)
	for _, tool := range []string{"iptables-nft-restore", "iptables-legacy-restore"} {
		if _, err := exec.LookPath(tool); err != nil {
			meshtest.Skip(t, "iptables back ends", err)
		}
	}
	if err := l.Write("forms.yaml", forms); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Remove("forms.yaml") })
	err := l.Wait(ctx, "the pods in other forms", time.Minute, func(s *lab.Status) bool {
		ready := 0
		for _, p := range s.Pods {
			if strings.HasPrefix(p.Name, "with-") && p.Ready {
				ready++
			}
		}
		return ready == 4
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"with-iptables-nft", "with-iptables-legacy", "with-classic", "with-skips"} {
		t.Run(name, func(t *testing.T) {
			for _, v6 := range []bool{false, true} {
				address := ip(t, "mesh", name, v6)
				if v6 {
					address = "[" + address + "]"
				}
				if s := must(t, "client", "get", "http://"+address+":8080/who"); !strings.Contains(s.Body, clientID) {
					t.Errorf("called at %s without identity: %q", address, s.Body)
				}
				must(t, "client", "echo", address+":7000")
				must(t, "client", "connect", address+":7000") // one letter, on a port that no Service declares
			}
			if s := must(t, name, "get", "http://servers/who"); !strings.Contains(s.Body, "spiffe://cluster.local/ns/mesh/sa/default") {
				t.Errorf("calls without identity: %q", s.Body)
			}
			if s := probe(t, name, "get", "http://127.0.0.1:16020/metrics"); s.OK {
				t.Error("the application reaches the admin port")
			}
		})
	}
	if n := sum(metrics(t, "with-skips"), "heddle_tcp_connections_total", "direction=inbound"); n != 0 {
		t.Errorf("%v connections to the skipped port went through the sidecar", n)
	}
}

// A Deployment that is scaled up, rolled to a new template and scaled down
// under steady HTTP load loses no request.
func TestRolled(t *testing.T) {
	ctx, l := mesh(t)
	write := func(replicas, version string) {
		t.Helper()
		t.Logf("%s: %s replicas of version %s", time.Now().Format("05.000"), replicas, version)
		if err := l.Write("roll.yaml", roll, "REPLICAS", replicas, "VERSION", version); err != nil {
			t.Fatal(err)
		}
	}
	old := map[string]bool{} // pods of the version before
	settled := func(n int, version string) {
		t.Helper()
		err := l.Wait(ctx, "roll at "+version, time.Minute, func(s *lab.Status) bool {
			ready, all := 0, 0
			for _, p := range s.Pods {
				if p.Namespace == "mesh" && strings.HasPrefix(p.Name, "roll-") {
					if all++; p.Ready && !p.Terminating && !old[p.Name] {
						ready++
					}
				}
			}
			return ready == n && all == n
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	write("2", "one")
	t.Cleanup(func() { l.Remove("roll.yaml") })
	settled(2, "one")
	done := make(chan seen, 1)
	go func() {
		var s seen
		err := l.JSON(ctx, &s, "mesh", "client", l.Apps+"/probe", "get", "http://roll/who", "-c", "4", "-rate", "200", "-n", "6000")
		if err != nil {
			s.Err = err.Error()
		}
		done <- s
	}()
	write("4", "one")
	settled(4, "one")
	before, err := l.Pods("mesh", "roll-")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range before {
		old[p.Name] = true
	}
	write("4", "two")
	settled(4, "two")
	write("4", "three") // and at once:
	write("1", "two")
	settled(1, "two")
	s := <-done
	if !s.OK || s.Failed > 0 || s.Count < 1000 {
		t.Errorf("%d of %d requests lost: %q", s.Failed, s.Failed+s.Count, s.Failures)
		tellLog(t, "client", "mesh/roll")
		tellLog(t, "client", "destination changed")
	}
	if len(s.Answers) < 5 {
		t.Errorf("only %v answered: the load did not last through the roll", s.Answers)
	}
}
