// Package probe asks a container how it is, as a kubelet does: by HTTP, by
// connecting or by running a program, again and again, with thresholds. The
// same actions are lifecycle hooks. It decides nothing about containers.
// internal/lab/kubelet calls it.
package probe

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Loop is one probe's rhythm.
type Loop struct {
	Delay, Period, Timeout time.Duration
	// Success and Failure are how many results in a row change the verdict.
	Success, Failure int
	// Eager asks more often until the first success. Those extra asks never
	// count as failures. A real kubelet does not do it; it saves whoever waits
	// for a lab's pods most of a period.
	Eager bool
}

// eagerEvery is short against what people notice and long against what a
// probe costs.
const eagerEvery = 200 * time.Millisecond

// NewLoop reads a probe with Kubernetes' defaults for what is not set.
func NewLoop(p *corev1.Probe) Loop {
	or := func(v int32, def int32) int32 {
		if v <= 0 {
			return def
		}
		return v
	}
	seconds := func(v int32) time.Duration { return time.Duration(v) * time.Second }
	return Loop{
		Delay:   seconds(max(0, p.InitialDelaySeconds)),
		Period:  seconds(or(p.PeriodSeconds, 10)),
		Timeout: seconds(or(p.TimeoutSeconds, 1)),
		Success: int(or(p.SuccessThreshold, 1)),
		Failure: int(or(p.FailureThreshold, 3)),
	}
}

// Run asks until ctx ends or report returns false. report is called with each
// change of the verdict: first after Success successes or Failure failures
// in a row, then when the opposite is so.
func (l Loop) Run(ctx context.Context, ask func(context.Context) error, report func(ok bool, err error) (goOn bool)) {
	if !sleep(ctx, l.Delay) {
		return
	}
	var good, bad int
	var verdict, known, once bool
	next := time.Now()
	for {
		onTime := !time.Now().Before(next)
		err := l.ask(ctx, ask)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			good, bad, once = good+1, 0, true
		case onTime:
			good, bad = 0, bad+1
		default:
			good = 0
		}
		if ok := err == nil; (ok && good >= l.Success || !ok && onTime && bad >= l.Failure) && (!known || verdict != ok) {
			verdict, known = ok, true
			if !report(ok, err) {
				return
			}
		}
		now := time.Now()
		for !next.After(now) { // a slow answer skips beats, as a ticker does
			next = next.Add(l.Period)
		}
		wait := next.Sub(now)
		if l.Eager && !once {
			wait = min(wait, eagerEvery)
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

func (l Loop) ask(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	return ask(ctx)
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
