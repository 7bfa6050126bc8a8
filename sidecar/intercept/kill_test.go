package intercept

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest"
	"github.com/heddle-mesh/heddle/internal/netfilter"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

// How often init is killed per back end: over other rules, and from nothing
// (three times in each fresh network). Enough that most steps of init are hit,
// few enough for every run of the tests.
const (
	kills         = 20
	freshNetworks = 4
)

// traffic dials the peer over both families a thousand times a second at most and counts who
// answers.
type traffic struct {
	redirected, direct atomic.Int64
	mu                 sync.Mutex
	failed             []string
	stop               atomic.Bool
	clients            sync.WaitGroup
}

func (n *podNet) startTraffic() *traffic {
	tr := &traffic{}
	for _, dst := range []string{peer4 + ":80", "[" + peer6 + "]:80", peer4 + ":80"} {
		tr.clients.Add(1)
		n.pod.Go(func() {
			defer tr.clients.Done()
			for range time.Tick(time.Millisecond) { // leaves the processor to init
				if tr.stop.Load() {
					return
				}
				switch got := talk(dst); got {
				case "direct":
					tr.direct.Add(1)
				case "out " + dst:
					tr.redirected.Add(1)
				default:
					tr.mu.Lock()
					tr.failed = append(tr.failed, dst+": "+got)
					tr.mu.Unlock()
				}
			}
		})
	}
	n.t.Cleanup(tr.end)
	return tr
}

func (tr *traffic) end() {
	tr.stop.Store(true)
	tr.clients.Wait()
}

// A new plan over an old one, again and again while traffic runs: no
// connection fails and none slips past the sidecar in between.
func TestReplacedUnderTraffic(t *testing.T) {
	forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
		n.init(b, config(false))
		tr := n.startTraffic()
		for i := range 30 {
			n.init(b, config(i%2 == 0))
		}
		tr.end()
		t.Logf("%d connections redirected", tr.redirected.Load())
		if tr.direct.Load() != 0 || len(tr.failed) != 0 || tr.redirected.Load() == 0 {
			t.Errorf("%d redirected, %d slipped past, %d failed: %q", tr.redirected.Load(), tr.direct.Load(), len(tr.failed), tr.failed)
		}
	})
}

// The back end changes while traffic runs: no gap either.
func TestSwitchedUnderTraffic(t *testing.T) {
	forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
		if b == netfilter.NFTables {
			return // it is the other side of each switch
		}
		n.init(b, config(false))
		tr := n.startTraffic()
		for range 10 {
			n.init(netfilter.NFTables, config(true))
			n.init(b, config(false))
		}
		tr.end()
		t.Logf("%d connections redirected", tr.redirected.Load())
		if tr.direct.Load() != 0 || len(tr.failed) != 0 || tr.redirected.Load() == 0 {
			t.Errorf("%d redirected, %d slipped past, %d failed: %q", tr.redirected.Load(), tr.direct.Load(), len(tr.failed), tr.failed)
		}
	})
}

// Init is killed at a random moment, in a fresh network and over other rules.
// Afterwards each family (nftables: both at once) has no rules or all of one of
// the two plans, no connection has failed, and the next init succeeds.
func TestKilledAtAnyPoint(t *testing.T) {
	seen := map[netfilter.Backend]map[string]int{}
	typical := map[netfilter.Backend]time.Duration{}
	var redirected, direct int64
	killAndLook := func(t *testing.T, n *podNet, b netfilter.Backend, skips bool) {
		if typical[b] == 0 {
			typical[b] = timeOfInit(t, b)
		}
		n.killedInit(b, skips, time.Duration(rand.Int64N(int64(typical[b]))))
		found := ""
		if b == netfilter.NFTables {
			found = n.wholeNFT()
		} else {
			found = "IPv6 " + n.wholeFamily(b, true) + ", IPv4 " + n.wholeFamily(b, false)
		}
		if seen[b] == nil {
			seen[b] = map[string]int{}
		}
		seen[b][found]++
	}
	finish := func(t *testing.T, n *podNet, tr *traffic, b netfilter.Backend) {
		n.init(b, config(true))
		if got := n.dialAs(n.pod, appUID, peer4+":80"); got != "out "+peer4+":80" {
			t.Errorf("after the last init: %q", got)
		}
		tr.end()
		if len(tr.failed) != 0 {
			t.Errorf("%d connections failed: %q", len(tr.failed), tr.failed)
		}
		redirected += tr.redirected.Load()
		direct += tr.direct.Load()
	}
	for range freshNetworks {
		forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
			tr := n.startTraffic()
			for range 3 { // until one of them gets through, from nothing
				killAndLook(t, n, b, true)
			}
			finish(t, n, tr, b)
		})
	}
	forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
		n.init(b, config(false))
		tr := n.startTraffic()
		for i := range kills {
			killAndLook(t, n, b, i%2 == 0)
		}
		finish(t, n, tr, b)
		if tr.direct.Load() != 0 {
			t.Errorf("%d connections slipped past while rules were replaced", tr.direct.Load())
		}
	})
	t.Logf("init takes %v; states found: %v; connections: %d redirected, %d direct", typical, seen, redirected, direct)
	if redirected == 0 || direct == 0 {
		t.Error("the traffic saw only one of the two worlds")
	}
}

func initCommand(b netfilter.Backend, skips bool) *exec.Cmd {
	how := string(b) + " "
	if skips {
		how += "skips"
	}
	return as(0, envInit+"="+how)
}

// timeOfInit runs init once to the end in a network of its own, so that the
// kills fall into it and not behind it.
func timeOfInit(t *testing.T, b netfilter.Backend) (d time.Duration) {
	meshtest.NetNS(t).Do(func() {
		begin := time.Now()
		if out, err := initCommand(b, true).CombinedOutput(); err != nil {
			t.Errorf("init: %v: %s", err, out)
		}
		d = time.Since(begin)
	})
	return d
}

// killedInit starts init and kills it after a while, or finds it ended.
func (n *podNet) killedInit(b netfilter.Backend, skips bool, after time.Duration) {
	n.t.Helper()
	n.pod.Do(func() {
		cmd := initCommand(b, skips)
		if err := cmd.Start(); err != nil {
			n.t.Error(err)
			return
		}
		timer := time.AfterFunc(after, func() { cmd.Process.Signal(syscall.SIGKILL) })
		defer timer.Stop()
		cmd.Wait() // killed or not: the kernel's state is what counts
	})
}

// wholeNFT names what the kernel holds: nothing, or one of the plans. Anything
// else fails the test.
func (n *podNet) wholeNFT() (what string) {
	n.t.Helper()
	n.pod.Do(func() {
		var errs []string
		for _, skips := range []bool{false, true} {
			p, err := redirect.New(config(skips))
			if err == nil {
				err = netfilter.Verify(context.Background(), netfilter.NFTables, p)
			}
			if err == nil {
				what = fmt.Sprintf("plan with skips %v", skips)
				return
			}
			errs = append(errs, err.Error())
		}
		out, err := exec.Command("nft", "list", "tables").CombinedOutput()
		if err != nil || strings.Contains(string(out), "heddle") {
			n.t.Errorf("half a state: %q; %v %s", errs, err, out)
		}
		what = "nothing"
	})
	return what
}

// wholeFamily does the same for one family of an iptables variant.
func (n *podNet) wholeFamily(b netfilter.Backend, v6 bool) (what string) {
	n.t.Helper()
	tool := string(b) + "-save"
	if v6 {
		tool = strings.Replace(tool, "iptables", "ip6tables", 1)
	}
	var saved []byte
	n.pod.Do(func() {
		var err error
		if saved, err = exec.Command(tool, "-t", "nat").Output(); err != nil {
			n.t.Errorf("%s: %v", tool, err)
		}
	})
	var held []string
	for line := range strings.Lines(string(saved)) {
		if strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A HEDDLE_PROBE ") {
			held = append(held, strings.TrimSpace(line))
		}
	}
	if len(held) == 0 {
		return "nothing"
	}
	for _, skips := range []bool{false, true} {
		p, err := redirect.New(config(skips))
		if err != nil {
			n.t.Fatal(err)
		}
		_, jumps, rules := p.Iptables(v6)
		// iptables-save lists by chain: the built-in ones first.
		var want []string
		for _, from := range []string{"PREROUTING ", "OUTPUT "} {
			for _, j := range jumps {
				if strings.HasPrefix(j, from) {
					want = append(want, "-A "+j)
				}
			}
		}
		want = append(want, rules...)
		if sameLines(held, want) {
			return fmt.Sprintf("plan with skips %v", skips)
		}
	}
	n.t.Errorf("half a state of %s:\n%s", tool, strings.Join(held, "\n"))
	return "half"
}

// sameLines compares as sets per chain would; the order inside a chain is
// checked, the order of chains is not.
func sameLines(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	byChain := func(lines []string) map[string]string {
		m := map[string]string{}
		for _, l := range lines {
			chain := strings.Fields(l)[1]
			m[chain] += l + "\n"
		}
		return m
	}
	ma, mb := byChain(a), byChain(b)
	for chain, lines := range ma {
		if mb[chain] != lines {
			return false
		}
	}
	return true
}
