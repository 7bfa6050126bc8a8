package balance

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
)

func seconds(n int) *wire.Duration { return &wire.Duration{Nanos: int64(n) * 1e9} }

// policed is a Service of n endpoints under an ejection policy.
func policed(prev *Destination, n int, e *wire.OutlierEjection) *Destination {
	svc := &wire.Service{Namespace: "shop", Name: "orders", Ports: []*wire.ServicePort{
		{Port: 80, TrafficPolicy: &wire.TrafficPolicy{Source: "outlierEjection=shop/p", OutlierEjection: e}}, {Port: 81},
	}}
	for i := range n {
		svc.Endpoints = append(svc.Endpoints, &wire.Endpoint{
			Key: fmt.Appendf(nil, "%d", i), Address: []byte{10, 0, 0, byte(i)}, Ports: []uint32{80, 81}, Ready: true, Serving: true,
		})
	}
	return Compile(prev, &wire.Destination{Kind: &wire.Destination_Service{Service: svc}}, Self{})
}

var threeInARow = &wire.OutlierEjection{ConsecutiveFailures: 3, BaseEjection: seconds(10), MaxEjection: seconds(25), MaxEjectedPercent: 50}

// fail reports so many failures and gives what the last one brought.
func fail(p *Port, e *Endpoint, times int) (long time.Duration) {
	for range times {
		long = p.Report(e.State, true)
	}
	return long
}

func pickedOf(p *Port) map[*EndpointState]int {
	out := map[*EndpointState]int{}
	for range 300 {
		e, _ := p.Pick(nil)
		out[e.State]++
	}
	return out
}

func TestEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := policed(nil, 4, threeInARow)
		p := d.Port(80)
		bad := p.Endpoints()[1]
		if fail(p, bad, 2) != 0 {
			t.Fatal("ejected too early")
		}
		p.Report(bad.State, false)
		if fail(p, bad, 2) != 0 {
			t.Fatal("a success in between does not count")
		}
		if long := fail(p, bad, 1); long != 10*time.Second || p.Ejected() != 1 {
			t.Fatalf("ejected for %s, %d out", long, p.Ejected())
		}
		if n := pickedOf(p)[bad.State]; n != 0 {
			t.Errorf("picked %d times while it is out", n)
		}
		if n := pickedOf(d.Port(81))[bad.State]; n != 0 {
			// Port 81 has other endpoints (other port numbers): nothing to see there.
			t.Errorf("states are shared: %d", n)
		}
		// The next version of the Service knows it too.
		p = policed(d, 5, threeInARow).Port(80)
		if n := pickedOf(p)[bad.State]; n != 0 || p.Ejected() != 1 {
			t.Errorf("after a new version: picked %d times, %d out", n, p.Ejected())
		}
		// Failures of what was still under way do not lengthen it.
		fail(p, bad, 20)
		time.Sleep(10*time.Second + time.Millisecond)
		if p.Ejected() != 0 || pickedOf(p)[bad.State] == 0 {
			t.Error("it does not come back")
		}
		if !bad.State.Readmitted() || bad.State.Readmitted() {
			t.Error("its return is told once")
		}
		// It fails again at once: twice as long, then as long as allowed.
		for i, want := range []time.Duration{20 * time.Second, 25 * time.Second, 25 * time.Second} {
			if long := fail(p, bad, 3); long != want {
				t.Errorf("ejection %d is for %s, want %s", i+2, long, want)
			}
			time.Sleep(want + time.Millisecond)
		}
		// Good for a while: four times a base forgives four ejections.
		time.Sleep(40 * time.Second)
		if long := fail(p, bad, 3); long != 10*time.Second {
			t.Errorf("after it served well for long: %s", long)
		}
	})
}

func TestEjectionBounds(t *testing.T) {
	for _, tt := range []struct{ endpoints, percent, want int }{
		{1, 100, 0}, {2, 100, 1}, {2, 50, 1}, {2, 49, 0}, {3, 50, 1}, {4, 50, 2}, {10, 100, 9}, {10, 10, 1}, {9, 10, 0}, {10, 0, 0},
	} {
		rule := &wire.OutlierEjection{ConsecutiveFailures: 1, BaseEjection: seconds(10), MaxEjection: seconds(10), MaxEjectedPercent: uint32(tt.percent)}
		p := policed(nil, tt.endpoints, rule).Port(80)
		for _, e := range p.Endpoints() {
			fail(p, e, 5)
		}
		if p.Ejected() != tt.want {
			t.Errorf("%d%% of %d: %d are out, want %d", tt.percent, tt.endpoints, p.Ejected(), tt.want)
		}
	}
}

// When only ejected ones are left, they are asked.
func TestPanic(t *testing.T) {
	d := policed(nil, 4, threeInARow)
	p := d.Port(80)
	bad := p.Endpoints()[:2]
	for _, e := range bad {
		fail(p, e, 3)
	}
	if p.Ejected() != 2 {
		t.Fatal(p.Ejected())
	}
	p = policed(d, 2, threeInARow).Port(80)
	if got := pickedOf(p); got[bad[0].State] == 0 || got[bad[1].State] == 0 {
		t.Errorf("picked %v", got)
	}
	if e, _ := p.Pick([]*Endpoint{bad[0]}); e == nil || e.State != bad[1].State {
		t.Error("a retry finds none")
	}
}

// A policy that is taken back frees what it ejected, and the counts of a port
// outlive its versions.
func TestPolicyChanges(t *testing.T) {
	d := policed(nil, 4, threeInARow)
	p := d.Port(80)
	bad := p.Endpoints()[0]
	fail(p, bad, 3)
	d2 := policed(d, 4, nil)
	p2 := d2.Port(80)
	if p2.Ejected() != 0 || pickedOf(p2)[bad.State] == 0 {
		t.Error("still out")
	}
	if p.Budget() != p2.Budget() || p.Breaker() != p2.Breaker() || p.Breaker() == d2.Port(81).Breaker() {
		t.Error("counts are per port, through all versions")
	}
	if d2.Port(81).Policy.Retry.Attempts != 0 || d2.Port(81).Policy.Source != "" {
		t.Error("a port without a policy has the defaults")
	}
}
