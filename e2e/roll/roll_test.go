//go:build e2e

// Package roll promises: while servers and then clients are restarted by their
// Deployments under steady load, no request is lost and none is done twice:
// each carries an ID that both ends write down, and the two are compared. A
// failure that is forced turns the comparison red.
package roll

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
	"github.com/heddle-mesh/heddle/e2e/ledger"
	"github.com/heddle-mesh/heddle/e2e/shop"
)

const (
	tills, loads, rate = 3, 2, 40
	// around is the load before, between and after the restarts.
	around = 2 * time.Second
	// restartLimit is for one Deployment's restart, replica by replica.
	restartLimit = 2 * time.Minute
)

func TestRollingRestartLosesNothing(t *testing.T) {
	c := client.Connect(t)
	c.EnsureHeddle(t)
	p := shop.Open(t, c, "rolled", "till.yaml", "INJECT", "enabled", "URL", "http://till:8080",
		"TILLS", fmt.Sprint(tills), "LOADS", fmt.Sprint(loads), "RATE", fmt.Sprint(rate))
	shop.Pause(t, around)
	for _, what := range []string{"deployment/till", "deployment/load"} {
		begun := time.Now()
		c.Kubectl(t, "-n", "rolled", "rollout", "restart", what)
		c.Kubectl(t, "-n", "rolled", "rollout", "status", what, "--timeout="+restartLimit.String())
		t.Logf("%s restarted in %v", what, time.Since(begun).Round(time.Second))
		shop.Pause(t, around)
	}
	p.EndLoad(t)
	v := ledger.Compare(p.Ledgers(t))
	t.Logf("%d requests in %v, %d good; clients %v; servers %v", v.Begun, v.Took.Round(time.Second), v.Good, v.Clients, v.Servers)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	if len(v.Clients) < 2*loads || len(v.Servers) < 2*tills {
		t.Errorf("%d clients and %d servers took part: the restarts did not happen under load", len(v.Clients), len(v.Servers))
	}
	// A ticker leaves ticks out on a busy machine; half of them is a load still.
	if want := int(v.Took.Seconds() * loads * rate * 0.5); v.Begun < want {
		t.Errorf("%d requests in %v, want %d at least: the load was not steady", v.Begun, v.Took, want)
	}

	t.Run("a forced failure is seen", func(t *testing.T) { forced(t, p) })
}

// forced breaks two requests off after they have arrived. A GET on a kept
// connection may be sent once more (RFC 9110 §9.2.2), so one or two are lost,
// and the comparison must say so.
func forced(t *testing.T, p *shop.Place) {
	begun := time.Now()
	p.Fault(t, p.Pods(t, "till")[0], "abort=1&n=2")
	p.Kubectl(t, "-n", "rolled", "scale", "deployment/load", "--replicas=1")
	p.Ready(t)
	shop.Pause(t, around)
	p.EndLoad(t)
	var since []ledger.Entry
	for _, e := range p.Ledgers(t) {
		if e.At.After(begun) {
			since = append(since, e)
		}
	}
	v := ledger.Compare(since)
	err := v.Err()
	if lost := v.Begun - v.Good; err == nil || lost < 1 || lost > 2 || !strings.Contains(err.Error(), "failed at") {
		t.Errorf("of %d requests two tries were broken off, and the comparison says %d were good: %v", v.Begun, v.Good, err)
	}
	t.Log("seen: ", err)
}
