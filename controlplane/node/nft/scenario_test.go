package nft

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/controlplane/node/plan"
	"github.com/heddle-mesh/heddle/controlplane/node/scenario"
)

// Real packets over real wires meet the verdicts of the plan's table.
func TestScenarios(t *testing.T) {
	w := newWorld(t)
	b := New(nil) // one for all: each scenario is a change from the one before
	for _, s := range scenario.Read(t, "../plan/testdata") {
		t.Run(s.Name, func(t *testing.T) {
			rules := s.Rules(t)
			w.apply(b, rules)
			for _, c := range s.Checks {
				want := rules.Trace(c.Packet)
				if err := w.check(c.Packet, want); err != nil {
					t.Errorf("line %d: from %s to %s: %v", c.Line, c.Packet.From, c.Packet.To, err)
				}
			}
		})
	}
}

// check sends flows until every way was taken, and sees that no other is.
func (w *world) check(p plan.Packet, want plan.Outcome) error {
	switch want.Fate {
	case plan.Rejected:
		began := time.Now()
		if a, err := w.ask(p.From, p.To); !refused(err) {
			return fmt.Errorf("%v, %v; should be refused", a, err)
		}
		if took := time.Since(began); took > patience/2 {
			return fmt.Errorf("refused after %s", took)
		}
		return nil
	case plan.Dropped:
		if a, err := w.ask(p.From, p.To); !errors.Is(err, errSilent) {
			return fmt.Errorf("%v, %v; should get no answer", a, err)
		}
		return nil
	case plan.Passed:
		return w.checkPassed(p)
	}
	left := map[string]bool{}
	for _, way := range want.To {
		w.serve(p.To.Proto, way.Endpoint)
		left[plan.Outcome{Fate: plan.Sent, To: []plan.Way{way}}.String()] = true
	}
	all := fmt.Sprint(left)
	const most = 300 // a way of three that is not taken in 300 flows is none
	for n := 0; n < most && (len(left) > 0 || n < 10); n++ {
		a, err := w.ask(p.From, p.To)
		if err != nil {
			return fmt.Errorf("flow %d: %w", n, err)
		}
		way := plan.Way{Endpoint: a.by, Masquerade: a.saw.Addr() != p.From}
		if p.From == a.by.Addr() || w.own[p.From] {
			// A node's own rewritten source is an address of the node again.
			way.Masquerade = w.own[a.saw.Addr()]
		}
		if way.Masquerade && !w.own[a.saw.Addr()] {
			return fmt.Errorf("%s saw %s, which is not the node", a.by, a.saw)
		}
		took := plan.Outcome{Fate: plan.Sent, To: []plan.Way{way}}.String()
		if !contains(want, way) {
			return fmt.Errorf("flow %d went to %s; should go to one of %s", n, took, all)
		}
		delete(left, took)
	}
	if len(left) > 0 {
		return fmt.Errorf("%d flows never went to %v", most, left)
	}
	return nil
}

func contains(o plan.Outcome, w plan.Way) bool {
	for _, way := range o.To {
		if way == w {
			return true
		}
	}
	return false
}

// checkPassed: an endpoint called by its own address answers itself; an
// address that nobody has is not ours to answer for.
func (w *world) checkPassed(p plan.Packet) error {
	if w.at[p.To.Addr] == nil {
		return nil
	}
	w.serve(p.To.Proto, addrPort(p.To))
	if a, err := w.ask(p.From, p.To); err != nil || a.by != addrPort(p.To) || a.saw.Addr() != p.From {
		return fmt.Errorf("%v, %v; should pass as it is", a, err)
	}
	return nil
}
