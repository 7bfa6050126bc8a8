package http1

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/retry"
)

// Plan is how one request is treated. Zero: it is sent again only where that
// cannot run it twice.
type Plan struct {
	Rule    *retry.Rule   // nil: retry.Default
	Budget  *retry.Budget // of everything that is sent again; nil: no bound
	Timeout time.Duration // of the whole; zero: none
}

// attempts is what is known of the attempts at one request.
type attempts struct {
	plan Plan
	end  time.Time // of the whole; zero: none

	n         int  // begun
	fresh     bool // the next one wants a new connection
	replays   int  // because a pooled connection was dead
	unreached int  // because an application was not there
	retries   int  // because the policy says so

	// repeatable: the policy lets it be sent again although it may have been
	// served.
	repeatable bool
	informed   bool // the client has got an informational answer: no way back
	// kept holds the request so far, head and body, from when reading on would
	// overwrite it where it was read. keeping is known to the upload as well.
	kept    []byte
	keeping atomic.Uint32
}

// How the body is kept.
const (
	keepMost uint32 = iota // up to what the policy says
	keepNone               // it was too much, or is not wanted
	keepAll                // it is sent again: of what still comes nothing may be missing
)

// plan begins a request.
func (r *Relay) plan() {
	t := &r.tries
	*t = attempts{}
	if r.c.Plan != nil {
		t.plan = r.c.Plan()
	}
	if t.plan.Rule == nil {
		t.plan.Rule = retry.Default
	}
	if t.plan.Timeout > 0 {
		t.end = r.x.Start.Add(t.plan.Timeout)
	}
	if t.plan.Budget != nil {
		t.plan.Budget.Request(r.x.Start)
	}
	if t.plan.Rule.Attempts > 0 {
		t.repeatable = r.req.Keyed() || t.plan.Rule.Method(r.req.Method())
	}
}

// by is when the next attempt must be answered; zero: no limit.
func (t *attempts) by() time.Time {
	if t.plan.Rule.PerTry == 0 {
		return t.end
	}
	by := time.Now().Add(t.plan.Rule.PerTry)
	if !t.end.IsZero() && t.end.Before(by) {
		return t.end
	}
	return by
}

func (t *attempts) over() bool { return !t.end.IsZero() && !time.Now().Before(t.end) }

// keep takes what reading on is about to overwrite: first the head and the body
// so far, then each piece of the body that comes.
func (r *Relay) keep(b []byte) {
	t := &r.tries
	if t.keeping.Load() == keepNone {
		return
	}
	if t.kept == nil {
		t.kept = append(codec.TakeBuffer(codec.MediumBuffer)[:0], r.req.Bytes()...)
		t.kept = append(t.kept, r.first...)
	}
	if len(t.kept)-r.req.Len()+len(b) > t.plan.Rule.MaxBody && t.keeping.CompareAndSwap(keepMost, keepNone) {
		return
	}
	if need := len(t.kept) + len(b); need > cap(t.kept) && need <= codec.LargeBuffer {
		larger := append(codec.TakeBuffer(need)[:0], t.kept...)
		codec.GiveBuffer(t.kept)
		t.kept = larger
	}
	t.kept = append(t.kept, b...)
}

// whole tells whether the request can be sent once more: all of it that was
// sent is in our hands, and stays so, and the client has seen nothing of an
// answer and waits.
func (r *Relay) whole() bool {
	k := &r.tries.keeping
	return !r.tries.informed && !r.watch.halfClosed.Load() && !r.upload.gone.Load() && (k.CompareAndSwap(keepMost, keepAll) || k.Load() == keepAll)
}

// forget gives back what was kept.
func (t *attempts) forget() {
	if t.kept != nil {
		codec.GiveBuffer(t.kept)
		t.kept = nil
	}
}

// spend takes one more sending out of the budget.
func (r *Relay) spend() bool {
	t := &r.tries
	if t.plan.Budget == nil || t.plan.Budget.Spend(time.Now(), t.plan.Rule) {
		return true
	}
	r.x.Denied = telemetry.ReasonRetryBudget
	return false
}

// verdict says what follows from an attempt.
type verdict struct {
	again     bool
	elsewhere bool          // another endpoint is to be tried first
	pause     time.Duration // before it
}

// retry decides by the policy's rule, which names the cause or not.
func (r *Relay) retry(named bool, cause retry.Cause) verdict {
	t := &r.tries
	rule := t.plan.Rule
	if !named || t.retries >= rule.Attempts {
		return verdict{}
	}
	if tooLong := t.keeping.Load() == keepNone || len(r.first) > rule.MaxBody; tooLong || !r.whole() {
		if tooLong {
			r.x.Denied = telemetry.ReasonRetryBody
		}
		return verdict{}
	}
	pause := rule.Backoff(t.retries + 1)
	if !t.end.IsZero() && time.Now().Add(pause).After(t.end) {
		return verdict{}
	}
	if !r.spend() {
		return verdict{}
	}
	t.retries++
	r.x.Retries.Count(cause)
	return verdict{again: true, elsewhere: true, pause: pause}
}

// judge decides after an attempt that ended with a final answer or with err.
func (r *Relay) judge(up *Conn, a attempt) verdict {
	t := &r.tries
	rule := t.plan.Rule
	switch {
	case a.err == nil && r.unreached(up):
		if t.unreached < maxUnreached && r.whole() && r.spend() {
			t.unreached++
			r.x.Replayed = true
			return verdict{again: true, elsewhere: true}
		}
		return r.retry(rule.On(retry.Connect), retry.Connect)
	case a.err == nil:
		cause, named := rule.Status(r.res.Status)
		return r.retry(named && t.repeatable, cause)
	case a.err == faultLate:
		cause, named := rule.Status(faultLate.Status)
		return r.retry(named && t.repeatable && !t.over(), cause)
	case a.err != faultReset:
		return verdict{}
	}
	if up.Reused && t.replays < maxStale && (a.unsent || a.silent && (r.req.Replayable() || t.repeatable)) && r.whole() && r.spend() {
		t.replays++
		t.fresh = true
		r.x.Replayed = true
		return verdict{again: true}
	}
	if a.unsent && rule.On(retry.Connect) {
		return r.retry(true, retry.Connect)
	}
	return r.retry(rule.On(retry.Reset) && t.repeatable, retry.Reset)
}

// unopened decides after an attempt that got no connection.
func (r *Relay) unopened(err error) verdict {
	var f *Fault
	if !errors.As(err, &f) || f.Reason != telemetry.ReasonConnectFailed && f.Reason != telemetry.ReasonNoEndpoints {
		return verdict{}
	}
	return r.retry(r.tries.plan.Rule.On(retry.Connect), retry.Connect)
}

func isLate(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
