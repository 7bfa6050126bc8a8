package balance

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
)

// asked runs workers that ask as sidecar/outbound does, each failed request once
// more elsewhere if retried, and counts what each endpoint got.
func asked(p *Port, workers, requests int, retried bool, answer func(pod string) (time.Duration, bool)) map[string]int {
	counts := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	try := func(e *Endpoint) bool {
		mu.Lock()
		counts[e.Pod]++
		took, failed := answer(e.Pod)
		mu.Unlock()
		e.State.Begin()
		time.Sleep(took)
		if failed {
			e.State.End(0, false)
		} else {
			e.State.End(took, false)
		}
		p.Report(e.State, failed)
		return failed
	}
	for range workers {
		wg.Go(func() {
			for range requests {
				e, _ := p.Pick(nil)
				if try(e) && retried {
					if other, _ := p.Pick([]*Endpoint{e}); other != nil {
						try(other)
					}
				}
			}
		})
	}
	wg.Wait()
	return counts
}

// An endpoint that fails at once draws no more than its fair share, however
// quick and idle it looks, with few callers and many, retried or not; and it is
// asked now and then.
func TestFailingDrawsNoMore(t *testing.T) {
	for _, tt := range []struct {
		endpoints, failing, workers int
		retried                     bool
	}{{2, 1, 1, false}, {3, 1, 1, false}, {3, 1, 30, false}, {3, 1, 30, true}, {5, 2, 20, true}, {10, 3, 5, false}, {10, 9, 20, false}} {
		t.Run(fmt.Sprintf("%d of %d, %d callers, %v", tt.failing, tt.endpoints, tt.workers, tt.retried), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := map[string]bool{}
				for i := range tt.failing {
					bad[fmt.Sprintf("pod-%d", i+1)] = true
				}
				fails := func(pod string) (time.Duration, bool) {
					if bad[pod] {
						return 50 * time.Microsecond, true
					}
					return 5 * time.Millisecond, false
				}
				p := many(tt.endpoints)
				counts := asked(p, tt.workers, 4000/tt.workers, tt.retried, fails)
				all, failed := 0, 0
				for pod, n := range counts {
					all += n
					if bad[pod] {
						failed += n
					}
				}
				if share, fair := float64(failed)/float64(all), float64(tt.failing)/float64(tt.endpoints); share > fair || failed == 0 {
					t.Errorf("%.0f %% went to what fails, its fair share is %.0f %%: %v", 100*share, 100*fair, counts)
				}
				// Well again, it gets its share again.
				asked(p, tt.workers, 2000/tt.workers, false, func(string) (time.Duration, bool) { return 5 * time.Millisecond, false })
				counts = asked(p, tt.workers, 4000/tt.workers, false, func(string) (time.Duration, bool) { return 5 * time.Millisecond, false })
				for pod := range bad {
					if n := counts[pod]; n < 4000/tt.endpoints/2 {
						t.Errorf("%s is well again and got %d of 4000", pod, n)
					}
				}
			})
		})
	}
}

// Some answers of 503 that mean something to the application, at every endpoint
// now and then, do not drive the load from one endpoint to the next.
func TestRareFailuresAtAll(t *testing.T) {
	for _, share := range []float64{0.02, 0.3, 1} {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			counts := asked(many(4), 20, 400, false, func(string) (time.Duration, bool) { return time.Millisecond, rng.Float64() < share })
			for i := range 4 {
				if n := counts[fmt.Sprintf("pod-%d", i+1)]; n < 1400 || n > 2600 {
					t.Errorf("%g fail: pod-%d got %d of 8000", share, i+1, n)
				}
			}
		})
	}
}

// A success ends the penalty of a failed connection though nothing was measured.
func TestUnmeasuredSuccess(t *testing.T) {
	s := many(2).endpoints[0].State
	p := many(2)
	s.Begin()
	s.End(0, true)
	p.Report(s, false)
	if s.penalty.Load() != 0 || s.failures.Load() != 0 {
		t.Error("still avoided")
	}
}

// Two ports of a Service may lead to one endpoint, under policies of their own
// (for the race detector).
func TestEjectedByTwoPorts(t *testing.T) {
	rule := &wire.TrafficPolicy{OutlierEjection: &wire.OutlierEjection{ConsecutiveFailures: 1, BaseEjection: &wire.Duration{Nanos: 1}, MaxEjection: &wire.Duration{Nanos: 1}, MaxEjectedPercent: 100}}
	svc := &wire.Service{Ports: []*wire.ServicePort{{Port: 80, TrafficPolicy: rule}, {Port: 81, TrafficPolicy: rule}}}
	for i := range 3 {
		svc.Endpoints = append(svc.Endpoints, &wire.Endpoint{Key: []byte{byte(i)}, Address: []byte{10, 0, 0, byte(i)}, Ports: []uint32{8080, 8080}, Ready: true, Serving: true})
	}
	d := Compile(nil, &wire.Destination{Kind: &wire.Destination_Service{Service: svc}}, Self{})
	s := d.Port(80).Endpoints()[0].State
	if d.Port(81).Endpoints()[0].State != s {
		t.Fatal("the ports do not share their endpoints")
	}
	var wg sync.WaitGroup
	for _, number := range []uint16{80, 81} {
		wg.Go(func() {
			for range 200 {
				d.Port(number).Report(s, true)
			}
		})
	}
	wg.Wait()
}

// What is known of a port but may not be picked is told, for its connections.
func TestResting(t *testing.T) {
	p := Compile(nil, service(ep(1, 8080), with(ep(2, 8080), func(e *wire.Endpoint) { e.Ready = false }), ep(3, 8080)), self).Port(80)
	if len(p.Endpoints()) != 2 || len(p.Resting()) != 1 || p.Resting()[0].Pod != "pod-2" {
		t.Errorf("%v and %v", p.Endpoints(), p.Resting())
	}
}
