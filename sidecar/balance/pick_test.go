package balance

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

func many(n int) *Port {
	eps := make([]*wire.Endpoint, n)
	for i := range eps {
		eps[i] = ep(i+1, 8080)
	}
	return Compile(nil, service(eps...), self).Port(80)
}

// TestOnlyEligible draws random Services and checks every pick against the
// plainest reading of the rules; every eligible endpoint is reached.
func TestOnlyEligible(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var prev *Destination
	for round := range 300 {
		var eps []*wire.Endpoint
		ready, falling := map[string]bool{}, map[string]bool{}
		for i := range rng.IntN(12) {
			e := ep(i+1, 8080*uint32(rng.IntN(2)))
			e.Ready, e.Serving, e.Terminating = rng.IntN(3) > 0, rng.IntN(2) > 0, false
			if !e.Ready {
				e.Terminating = rng.IntN(2) > 0
			}
			e.Weight = uint32(rng.IntN(4))
			eps = append(eps, e)
			switch {
			case e.Ports[0] == 0:
			case e.Ready:
				ready[e.Pod] = true
			case e.Serving && e.Terminating:
				falling[e.Pod] = true
			}
		}
		want := ready
		if len(ready) == 0 {
			want = falling
		}
		d := Compile(prev, service(eps...), self)
		p := d.Port(80)
		seen := map[string]bool{}
		for range 100 * len(want) {
			e, reason := p.Pick(nil)
			if e == nil {
				t.Fatalf("round %d: nothing picked: %s", round, reason)
			}
			if !want[e.Pod] {
				t.Fatalf("round %d: picked %s, which is not eligible", round, e.Pod)
			}
			seen[e.Pod] = true
		}
		if len(seen) != len(want) {
			t.Fatalf("round %d: reached %v of %v", round, seen, want)
		}
		if len(want) == 0 {
			if e, reason := p.Pick(nil); e != nil || reason != telemetry.ReasonNoEndpoints {
				t.Fatalf("round %d: %v %q", round, e, reason)
			}
		}
		prev = d
	}
}

func TestNeverOneAlreadyTried(t *testing.T) {
	p := many(8)
	for range 200 {
		seen := map[*Endpoint]bool{}
		var tried []*Endpoint
		for {
			e, reason := p.Pick(tried)
			if e == nil {
				if reason != telemetry.ReasonConnectFailed || len(tried) != 8 {
					t.Fatalf("%q after %d", reason, len(tried))
				}
				break
			}
			if seen[e] {
				t.Fatal("picked twice")
			}
			seen[e] = true
			tried = append(tried, e)
		}
	}
}

// serve runs a closed loop of workers against endpoints with given latencies
// and counts what each got, in a bubble's time.
func serve(p *Port, workers, requests int, latency func(pod string) time.Duration) map[string]int {
	counts := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range requests {
				e, _ := p.Pick(nil)
				e.State.Begin()
				l := latency(e.Pod)
				time.Sleep(l)
				e.State.End(l, false)
				mu.Lock()
				counts[e.Pod]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return counts
}

func TestSlowGetsLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := many(5)
		counts := serve(p, 20, 500, func(pod string) time.Duration {
			if pod == "pod-3" {
				return 50 * time.Millisecond
			}
			return 5 * time.Millisecond
		})
		for pod, n := range counts {
			if pod != "pod-3" && n < 5*counts["pod-3"] {
				t.Errorf("%s got %d, the slow one %d", pod, n, counts["pod-3"])
			}
		}
		if counts["pod-3"] == 0 {
			t.Error("the slow one got nothing at all")
		}
		// Once it is as quick as the others it gets its share again.
		time.Sleep(time.Minute)
		counts = serve(p, 20, 2000, func(string) time.Duration { return 5 * time.Millisecond })
		if n := counts["pod-3"]; n < 40_000/5/2 {
			t.Errorf("healed, but got %d of 40000", n)
		}
	})
}

func TestEqualShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := serve(many(10), 20, 1000, func(string) time.Duration { return time.Millisecond })
		for i := range 10 {
			if n := counts[fmt.Sprintf("pod-%d", i+1)]; n < 1400 || n > 2600 {
				t.Errorf("pod-%d got %d of 20000", i+1, n)
			}
		}
	})
}

func TestWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := Compile(nil, service(
			with(ep(1, 8080), func(e *wire.Endpoint) { e.Weight = 8 }),
			with(ep(2, 8080), func(e *wire.Endpoint) { e.Weight = 1 }),
			with(ep(3, 8080), func(e *wire.Endpoint) { e.Weight = 1 }),
		), self)
		counts := serve(d.Port(80), 10, 2000, func(string) time.Duration { return time.Millisecond })
		if share := float64(counts["pod-1"]) / 20_000; share < 0.7 || share > 0.9 {
			t.Errorf("weight 8 of 10 got %.0f %%", 100*share)
		}
	})
}

// TestNewcomer: an endpoint that has shown nothing yet gets traffic, but not
// all of it before its first answer.
func TestNewcomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v1 := Compile(nil, service(ep(1, 8080), ep(2, 8080)), self)
		serve(v1.Port(80), 4, 100, func(string) time.Duration { return time.Millisecond })
		p := Compile(v1, service(ep(1, 8080), ep(2, 8080), ep(3, 8080)), self).Port(80)
		var unanswered int
		for range 1000 {
			e, _ := p.Pick(nil)
			if e.Pod == "pod-3" {
				e.State.Begin()
				unanswered++
			}
		}
		if unanswered != 1 {
			t.Errorf("%d requests before the first answer, want 1", unanswered)
		}
	})
}

func TestPenalty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := many(2)
		fail := func(n int) *Endpoint {
			e := p.endpoints[0]
			for range n {
				e.State.Begin()
				e.State.End(0, true)
			}
			return e
		}
		picked := func(want *Endpoint) (n int) {
			for range 100 {
				if e, _ := p.Pick(nil); e == want {
					n++
				}
			}
			return n
		}
		dead := fail(1)
		if n := picked(dead); n != 0 {
			t.Errorf("picked %d times right after a failure", n)
		}
		if e, _ := p.Pick([]*Endpoint{p.endpoints[1]}); e != dead {
			t.Error("not picked although there is no other")
		}
		time.Sleep(penaltyBase)
		if n := picked(dead); n == 0 {
			t.Error("never tried again")
		}
		fail(100)
		time.Sleep(penaltyMax - time.Millisecond)
		if n := picked(dead); n != 0 {
			t.Error("many failures in a row do not lengthen the penalty")
		}
		time.Sleep(time.Millisecond)
		if n := picked(dead); n == 0 {
			t.Error("the penalty has no end")
		}
		fail(3)
		p.endpoints[1].State.Observe(time.Millisecond)
		dead.State.Begin()
		dead.State.End(time.Millisecond, false)
		if n := picked(dead); n == 0 {
			t.Error("a success does not end the penalty")
		}
		if n := dead.State.InFlight(); n != 0 {
			t.Errorf("%d in flight", n)
		}
	})
}

// TestMostlyDead: with half of the endpoints failing, few picks meet a dead one.
func TestMostlyDead(t *testing.T) {
	p := many(40)
	for _, e := range p.endpoints[:20] {
		e.State.Begin()
		e.State.End(0, true)
	}
	dead := 0
	for range 10_000 {
		if e, _ := p.Pick(nil); e.State.failures.Load() > 0 {
			dead++
		}
	}
	if dead > 200 {
		t.Errorf("%d of 10000 picks met a dead endpoint", dead)
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	weighted := Compile(nil, service(ep(1, 8080), with(ep(2, 8080), func(e *wire.Endpoint) { e.Weight = 3 })), self).Port(80)
	for name, p := range map[string]*Port{"one": many(1), "two": many(2), "many": many(100), "weighted": weighted} {
		tried := []*Endpoint{p.endpoints[0]}
		if n := testing.AllocsPerRun(1000, func() {
			e, _ := p.Pick(nil)
			e.State.Begin()
			e.State.Observe(time.Millisecond)
			e.State.End(time.Millisecond, false)
			p.Pick(tried)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestConcurrent is for the race detector: picks and answers under updates.
func TestConcurrent(t *testing.T) {
	d := Compile(nil, service(ep(1, 8080), ep(2, 8080)), self)
	w := Compile(nil, workload(ep(3)), self)
	var mu sync.RWMutex
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				mu.RLock()
				s, x := d, w
				mu.RUnlock()
				for _, p := range []*Port{s.Port(80), x.Port(uint16(i%50 + 1))} {
					e, _ := p.Pick(nil)
					e.State.Begin()
					e.State.End(time.Millisecond, i%7 == 0)
				}
			}
		})
	}
	for i := range 500 {
		next := Compile(d, service(ep(1, 8080), ep(2+i%5, 8080)), self)
		nextW := Compile(w, workload(with(ep(3), func(e *wire.Endpoint) { e.Key = fmt.Append(nil, i/10) })), self)
		mu.Lock()
		d, w = next, nextW
		mu.Unlock()
	}
	close(stop)
	wg.Wait()
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{1, 3, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := many(n)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					e, _ := p.Pick(nil)
					e.State.Begin()
					e.State.End(time.Millisecond, false)
				}
			})
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	eps := make([]*wire.Endpoint, 1000)
	for i := range eps {
		eps[i] = ep(i+1, 8080)
	}
	msg := service(eps...)
	d := Compile(nil, msg, self)
	b.ReportAllocs()
	for b.Loop() {
		d = Compile(d, msg, self)
	}
}
