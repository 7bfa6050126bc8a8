// Package retry holds when a request may be sent again: the rule that a
// policy gives for a destination, and the budget that bounds all retries there.
// It sends nothing itself. sidecar/balance compiles rules
// and keeps budgets; sidecar/http1 and sidecar/outbound ask them.
package retry

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
)

// Cause is why an attempt failed; causes are bits of a set.
type Cause uint8

// The causes.
const (
	Connect Cause = 1 << iota // no endpoint took the request
	Reset                     // the connection ended before an answer
	Gateway                   // 502, 503, 504, or no answer in time
	Server                    // any 5xx, or no answer in time
)

var words = map[string]Cause{"connect": Connect, "reset": Reset, "gateway": Gateway, "5xx": Server}

// String is the cause's word, for metrics.
func (c Cause) String() string {
	switch c {
	case Connect:
		return "connect"
	case Reset:
		return "reset"
	case Gateway:
		return "gateway"
	case Server:
		return "5xx"
	}
	return "status"
}

// Counts are how often each cause led to a retry of one request.
type Counts [5]uint8

// Count counts one.
func (n *Counts) Count(c Cause) { n[c.index()]++ }

// Each calls f for each cause that led to a retry.
func (n *Counts) Each(f func(cause string, times int)) {
	for _, c := range []Cause{Connect, Reset, Gateway, Server, 0} {
		if k := n[c.index()]; k > 0 {
			f(c.String(), int(k))
		}
	}
}

// Total is how many retries there were.
func (n *Counts) Total() (sum int) {
	for _, k := range n {
		sum += int(k)
	}
	return sum
}

func (c Cause) index() int { return bits.Len8(uint8(c)) }

// Where nothing is said: no retries of what an application may have seen, and
// budgets that let a rolling restart through and a storm not.
const (
	defaultRatio = 0.2
	defaultMin   = 10
)

// Rule is a policy's word on retries. It is immutable.
type Rule struct {
	Attempts int           // besides the first
	PerTry   time.Duration // zero: no limit
	MaxBody  int           // bytes of a request kept to be sent again
	Ratio    float64       // of the budget
	Min      float64       // of the budget, per second

	when       Cause
	statuses   []uint32 // sorted
	methods    []string // nil: the idempotent ones
	base, most time.Duration
}

// Default is the rule where no policy says one.
var Default = &Rule{Ratio: defaultRatio, Min: defaultMin}

// Compile reads a rule from the wire; nil gives Default. Words that this
// version does not know are no causes.
func Compile(r *wire.Retry) *Rule {
	if r == nil {
		return Default
	}
	out := &Rule{
		Attempts: int(r.GetAttempts()), PerTry: time.Duration(r.GetPerTryTimeout().GetNanos()), MaxBody: int(r.GetMaxBodyBytes()),
		Ratio: r.GetBudgetRatio(), Min: float64(r.GetBudgetMinPerSecond()),
		statuses: slices.Sorted(slices.Values(r.GetStatusCodes())), methods: r.GetMethods(),
		base: time.Duration(r.GetBackoffBase().GetNanos()), most: time.Duration(r.GetBackoffMax().GetNanos()),
	}
	for _, w := range r.GetOn() {
		out.when |= words[w]
	}
	return out
}

// String tells the rule for people.
func (r *Rule) String() string {
	if r.Attempts == 0 {
		return fmt.Sprintf("only what no application saw; budget %g+%g/s", r.Ratio, r.Min)
	}
	var on []string
	for _, c := range []Cause{Connect, Reset, Gateway, Server} {
		if r.On(c) {
			on = append(on, c.String())
		}
	}
	for _, code := range r.statuses {
		on = append(on, fmt.Sprint(code))
	}
	text := fmt.Sprintf("%d on %s; pause %s to %s; budget %g+%g/s; bodies up to %d", r.Attempts, strings.Join(on, ", "), r.base, r.most, r.Ratio, r.Min, r.MaxBody)
	if r.methods != nil {
		text += "; methods " + strings.Join(r.methods, ", ")
	}
	if r.PerTry > 0 {
		text += "; each try " + r.PerTry.String()
	}
	return text
}

// On tells whether the rule names a cause.
func (r *Rule) On(c Cause) bool { return r.when&c != 0 }

// Status tells whether an answer of this status is one to try again after, and
// because of which cause; zero: its status alone.
func (r *Rule) Status(status int) (Cause, bool) {
	switch {
	case (status == 502 || status == 503 || status == 504) && r.On(Gateway):
		return Gateway, true
	case status >= 500 && status <= 599 && r.On(Server):
		return Server, true
	}
	_, listed := slices.BinarySearch(r.statuses, uint32(status))
	return 0, listed
}

// Method tells whether requests of a method may be sent again although they
// may have been served.
func (r *Rule) Method(m []byte) bool {
	if r.methods == nil {
		switch string(m) {
		case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE": // RFC 9110, 9.2.2
			return true
		}
		return false
	}
	for _, named := range r.methods {
		if string(m) == named {
			return true
		}
	}
	return false
}

// Backoff is how long to wait before the nth retry, from 1: anything up to base
// doubled n-1 times, at most the maximum (full jitter, so that callers which
// failed together do not come back together).
func (r *Rule) Backoff(n int) time.Duration {
	limit := r.most
	if shifted := r.base << (n - 1); n < 32 && shifted > 0 && shifted < limit {
		limit = shifted
	}
	if limit <= 0 {
		return 0
	}
	return rand.N(limit + 1)
}

// Pause waits before a retry; false: ctx has ended.
func Pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
