package sidecar

import (
	"context"
	"time"
)

const (
	// DefaultLameDuck is how long new connections are still taken after the end
	// was asked for: about what the news needs to reach every client.
	DefaultLameDuck = 5 * time.Second
	// DefaultDrainTimeout leaves a few seconds of a pod's default grace of 30 s.
	DefaultDrainTimeout = 25 * time.Second
	// drainStep is how often it is looked whether all have gone.
	drainStep = 50 * time.Millisecond
)

// drain lets the connections end and returns when the sidecar may.
//
// Answers to callers say Connection: close from now on, and idle connections
// of callers are closed, but new ones are taken until the lame-duck window is
// over: callers learn of our end at different times. The pod's own programs are
// served until the last connection is idle, or DrainTimeout. A native sidecar
// is asked to end after its application has ended: then nothing is open and
// this takes no time.
func (s *sidecar) drain(ctx context.Context) {
	s.draining.Store(true)
	s.log.Info("draining")
	began := time.Now()
	t := time.NewTicker(drainStep)
	defer t.Stop()
	for {
		inOpen, inBusy := s.inFlows.Count()
		outOpen, outBusy := s.outFlows.Count()
		passed := time.Since(began)
		switch {
		case inOpen+outOpen == 0:
			s.log.Info("drained", "after", passed.String())
			return
		case passed >= s.c.DrainTimeout:
			s.log.Warn("connections broken off", "inbound", inOpen, "outbound", outOpen)
			return
		case passed >= s.c.LameDuck:
			s.closeInbound()
			if inBusy+outBusy == 0 {
				s.log.Info("drained", "after", passed.String())
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (s *sidecar) closeInbound() {
	if in := s.stopAccepting.Swap(nil); in != nil {
		for _, l := range *in {
			l.Close()
		}
	}
}
