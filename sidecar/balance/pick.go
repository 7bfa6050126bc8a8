package balance

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// latencyDecay is the time constant of the latency average: what happened
	// this long ago counts for 1/e. Finagle's, proven there and in Linkerd.
	latencyDecay = 10 * time.Second
	// unproven is the latency assumed of an endpoint that has never answered
	// while it works on its first answer: a new one gets one request to show
	// itself, not all of them.
	unproven = time.Second
	// A failed endpoint is avoided for penaltyBase, doubled at each further
	// failure up to penaltyMax; others are preferred meanwhile, but it is
	// still picked when there is no other. Short, because endpoints that die
	// leave the list by themselves within seconds.
	penaltyBase = time.Second
	penaltyMax  = 10 * time.Second
	// redraws is how often both candidates may be in penalty before one of
	// them is taken: with half of the endpoints dead, 0.4 % of picks still
	// meet a dead one, at a bounded cost.
	redraws = 3
	// failingStep is how much of an endpoint's failing share one answer decides:
	// eight failures in a row make 0.9.
	failingStep = 0.25
	// failingMost bounds how often an endpoint that fails loses against another
	// one: it draws a tenth of what it is drawn for, which shows when it is well
	// again.
	failingMost = 0.9
	// failingLeast is a share that is as good as none.
	failingLeast = 0.01
)

// Endpoint is where a connection goes.
type Endpoint struct {
	Addr  netip.AddrPort
	ID    spiffeid.ID // zero: outside the mesh, plaintext
	HTTP2 bool        // takes heddle/h2
	Own   bool        // this very pod: plaintext, direct
	Pod   string
	State *EndpointState

	weight float64
}

// EndpointState is what is learnt of an endpoint, kept across versions.
type EndpointState struct {
	// Pool belongs to sidecar/pool: set once with CompareAndSwap(nil, p).
	Pool atomic.Value

	inFlight atomic.Int64
	latency  atomic.Uint64 // bits of a float64, nanoseconds; 0: never answered
	measured atomic.Int64  // when latency was set, since born
	penalty  atomic.Int64  // avoided until then, since born
	failures atomic.Int32  // since the last success
	failing  atomic.Uint64 // bits of a float64: what share of the last answers were failures

	bad       atomic.Int32 // failures that count for ejection, one after the other
	ejected   atomic.Int64 // left out until then, since born
	back      atomic.Bool  // that it is back was not told yet
	ejections atomic.Int64 // lately

	born    time.Time
	gone    chan struct{}
	version uint64 // guarded by the ledger
}

// Pick chooses an endpoint that is not among tried: the cheaper of two drawn
// at random, by latency × requests in flight (power of two choices over peak
// EWMA). Without one it says why: no_endpoints, no_local_endpoints, or
// connect_failed when all were tried. A port of External gives nil and no
// reason: dial the original destination.
func (p *Port) Pick(tried []*Endpoint) (*Endpoint, telemetry.Reason) {
	n := len(p.endpoints)
	if n == 0 {
		return nil, p.none
	}
	now := int64(time.Since(p.born))
	if len(tried) > 0 {
		return p.pickUntried(tried, now)
	}
	if n == 1 {
		return p.endpoints[0], telemetry.ReasonOK
	}
	var best *Endpoint
	cheapest := math.Inf(1)
	for range 1 + redraws {
		i, j := p.draw()
		for _, e := range [2]*Endpoint{p.endpoints[i], p.endpoints[j]} {
			if c := p.cost(e, now); c < cheapest {
				best, cheapest = e, c
			}
		}
		if cheapest < penaltyCost {
			break
		}
	}
	if cheapest >= ejectedCost { // as long as there is another one, none of these
		return p.pickUntried(nil, now)
	}
	return best, telemetry.ReasonOK
}

// pickUntried is the retry: rare, so it may look at every endpoint. It starts
// anywhere, so that equal ones share the load.
func (p *Port) pickUntried(tried []*Endpoint, now int64) (*Endpoint, telemetry.Reason) {
	var best *Endpoint
	cheapest := math.Inf(1)
	n := len(p.endpoints)
	start := rand.IntN(n)
	for i := range n {
		e := p.endpoints[(start+i)%n]
		if c := p.cost(e, now); c < cheapest && !e.among(tried) {
			best, cheapest = e, c
		}
	}
	if best == nil {
		return nil, telemetry.ReasonConnectFailed
	}
	return best, telemetry.ReasonOK
}

// among compares states, not endpoints: tried may be of an older version.
func (e *Endpoint) among(tried []*Endpoint) bool {
	for _, t := range tried {
		if t.State == e.State {
			return true
		}
	}
	return false
}

// draw gives two candidates in random order, different ones where weights
// leave a choice.
func (p *Port) draw() (int, int) {
	n := len(p.endpoints)
	if p.weights == nil {
		i, j := rand.IntN(n), rand.IntN(n-1)
		if j >= i {
			j++
		}
		return i, j
	}
	sum := p.weights[n-1]
	i := p.pickWeighted(rand.Uint64N(sum))
	for range redraws {
		if j := p.pickWeighted(rand.Uint64N(sum)); j != i {
			return i, j
		}
	}
	return i, i
}

// penaltyCost is above any cost of an endpoint that is not in penalty: a
// million requests in flight at a thousand seconds each.
const penaltyCost = 1e18

// ejectedCost is above any cost of one that is not ejected. When all are, they
// are picked from as if none was: a Service whose endpoints all fail is better
// asked than given up.
const ejectedCost = 1e36

// failingCost is above any cost of one that does well, and below penaltyCost.
const failingCost = 1e15

// cost is what one more request would meet there, in nanoseconds. An endpoint
// that fails is quick and has little in flight, which would draw all to it: as
// often as it fails it counts as dearer than any that does not.
func (p *Port) cost(e *Endpoint, now int64) float64 {
	c := e.cost(now)
	if bits := e.State.failing.Load(); bits != 0 && rand.Float64() < min(math.Float64frombits(bits), failingMost) {
		c += failingCost
	}
	if p.ejects() && e.State.isEjected(now) {
		return ejectedCost * (1 + c/penaltyCost)
	}
	return c
}

// cost is without regard to ejection. Weight
// already decides how often an endpoint is drawn; here it only says how many
// requests in flight are its fair share.
func (e *Endpoint) cost(now int64) float64 {
	s := e.State
	inFlight := float64(max(s.inFlight.Load(), 0))
	if left := s.penalty.Load() - now; left > 0 {
		return penaltyCost * (1 + float64(left))
	}
	latency := s.average(now)
	if latency == 0 {
		if inFlight == 0 {
			return 0
		}
		latency = float64(unproven)
	}
	return latency * (inFlight/e.weight + 1)
}

// average is the decayed latency: an endpoint that was slow and got no traffic
// since becomes worth a try again.
func (s *EndpointState) average(now int64) float64 {
	latency := math.Float64frombits(s.latency.Load())
	age := now - s.measured.Load()
	if latency == 0 || age <= 0 {
		return latency
	}
	return max(latency*math.Exp(-float64(age)/float64(latencyDecay)), 1)
}

// Begin counts a request or connection as in flight.
func (s *EndpointState) Begin() { s.inFlight.Add(1) }

// End takes back what Begin counted. latency is the time from Begin to the
// answer's first byte; zero: nothing was learnt, Observe has told already, or
// the answer was a failure, whose quickness is none.
// failed: the connection could not be made or broke before an answer; then
// latency does not count and the endpoint is avoided for a while.
func (s *EndpointState) End(latency time.Duration, failed bool) {
	s.inFlight.Add(-1)
	if failed {
		n := s.failures.Add(1)
		avoid := penaltyMax
		if n <= 4 {
			avoid = min(penaltyBase<<(n-1), penaltyMax)
		}
		s.penalty.Store(int64(time.Since(s.born) + avoid))
		return
	}
	if latency > 0 {
		s.Observe(latency)
	}
}

// forgive ends the penalty.
func (s *EndpointState) forgive() {
	if s.failures.Load() != 0 {
		s.failures.Store(0)
		s.penalty.Store(0)
	}
}

// Observe records an answer's latency while its request or connection goes on:
// the time to connect, for a connection that may last for hours.
func (s *EndpointState) Observe(latency time.Duration) {
	s.forgive()
	now := int64(time.Since(s.born))
	sample := max(float64(latency), 1)
	for {
		old := s.latency.Load()
		next := sample // a peak counts at once and whole
		if before := math.Float64frombits(old); before > sample {
			// measured may be another update's by now; the average then
			// decays by slightly more or less, which the next answer mends.
			w := math.Exp(-float64(max(now-s.measured.Load(), 0)) / float64(latencyDecay))
			next = before*w + sample*(1-w)
		}
		if s.latency.CompareAndSwap(old, math.Float64bits(next)) {
			s.measured.Store(now)
			return
		}
	}
}

// fared counts an answer, or that there was none, into the share of failures.
// An endpoint that does well costs one load.
func (s *EndpointState) fared(failed bool) {
	for {
		old := s.failing.Load()
		if old == 0 && !failed {
			return
		}
		share := math.Float64frombits(old) * (1 - failingStep)
		if failed {
			share += failingStep
		} else if share < failingLeast {
			share = 0
		}
		if s.failing.CompareAndSwap(old, math.Float64bits(share)) {
			return
		}
	}
}

// InFlight is how many requests and connections are between Begin and End.
func (s *EndpointState) InFlight() int64 { return s.inFlight.Load() }

// Gone is closed when the endpoint left the destination, or is spoken to in
// another way from now on: finish what is in flight, begin nothing.
func (s *EndpointState) Gone() <-chan struct{} { return s.gone }
