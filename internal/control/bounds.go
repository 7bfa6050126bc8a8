package control

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Bounds of a client.
const (
	maxIdle     = 1000             // a pod talks to tens of Services; a crawler must not fill us
	idleAfter   = 10 * time.Minute // long enough for batch jobs, short enough to forget
	sweepShare  = 4                // idle entries are looked for this often per idleAfter
	lookupWait  = 2 * time.Second  // for the first answer: a connect() that waits longer looks dead
	welcomeWait = 10 * time.Second // from dialling to Welcome; covers one connect timeout and a slow start
	firstBeat   = 5 * time.Second  // between heartbeats until Welcome says otherwise
	maxBeat     = time.Minute      // whatever Welcome says
	missedBeats = 3
	calm        = 10 * time.Second // a stream that lived this long was healthy: back-off begins anew
	streamFirst = 100 * time.Millisecond
	streamLast  = 5 * time.Second
	maxGoodbye  = time.Minute // the longest pause that a Goodbye may ask for
	firstFirst  = 100 * time.Millisecond
	firstLast   = 5 * time.Second // without an SVID the pod cannot start: try often
	renewFirst  = time.Second
	renewLast   = time.Minute      // with half a life left there is time
	renewLeast  = time.Second      // never renew faster, whatever the control plane says
	issueWait   = 15 * time.Second // for one answer: it may itself wait for place and review
	maxToken    = 64 << 10         // bytes of the token file
)

// backoff gives the pause before the n-th attempt in a row (from 0): doubling,
// with half of it jitter, so that a thousand peers do not come at once.
func backoff(n int, first, last time.Duration) time.Duration {
	d := last
	if n < 16 && first<<n < last {
		d = first << n
	}
	return d/2 + rand.N(d/2+1)
}

// pause waits for d, ctx's end or a signal on early (nil: none).
func pause(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-early:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// register shows the client's state as metrics.
func (c *Client[T]) register(reg *telemetry.Registry) {
	if reg == nil {
		return
	}
	gauge := func(name, help string, f func(State) float64) {
		reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "heddle_control_" + name, Help: help},
			func() float64 { return f(c.State()) }))
	}
	gauge("connected", "1 while the stream to the control plane is up.", func(s State) float64 {
		if s.Connected {
			return 1
		}
		return 0
	})
	gauge("age_seconds", "Since anything was heard of the control plane.", func(s State) float64 { return s.Age.Seconds() })
	gauge("revision", "Newest revision that the control plane told of.", func(s State) float64 { return float64(s.Revision) })
	gauge("entries", "Destinations held.", func(s State) float64 { return float64(s.Entries) })
	gauge("svid_expires_timestamp_seconds", "When our certificate ends; 0: there is none.", func(State) float64 {
		if leaf := c.cfg.Identity.Leaf(); leaf != nil {
			return float64(leaf.NotAfter.Unix())
		}
		return 0
	})
	reg.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "heddle_control_refused_updates_total",
		Help: "Updates not taken: older than what is held, or malformed."}, func() float64 { return float64(c.refused.Load()) }))
}
