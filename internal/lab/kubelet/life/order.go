package life

import (
	"context"
	"math"
	"time"
)

// reconcile does what the pod's state asks for: which container starts, which
// ends, in which order. It says whether the pod is over.
func (w *Worker) reconcile(ctx context.Context) (over bool) {
	w.killOverdue()
	if w.deadline.IsZero() && w.setUp && w.initialise(ctx) {
		w.runApps(ctx)
	}
	// It may just have come to its end by itself.
	return !w.deadline.IsZero() && w.wind(ctx)
}

func (w *Worker) killOverdue() {
	now := time.Now()
	for _, c := range w.ctrs {
		if c.proc != nil && !c.killAt.IsZero() && !now.Before(c.killAt) {
			w.kill(c)
		}
	}
}

// due says whether a container that does not run may be started now.
func (c *ctr) due() bool {
	return c.proc == nil && !c.finished && !time.Now().Before(c.notBefore)
}

// initialise walks the init containers in order and says whether the others
// may run: each ordinary one has succeeded, each sidecar has started once.
func (w *Worker) initialise(ctx context.Context) bool {
	waiting := false
	for _, c := range w.ctrs {
		switch c.role {
		case roleSidecar:
			// Past sidecars are restarted whatever the others do; a later one
			// waits for its turn.
			if !waiting && c.due() || c.runs > 0 && c.due() {
				w.launch(ctx, c)
			}
			if !c.passed() {
				waiting = true
			}
		case roleInit:
			if waiting || c.passed() {
				continue
			}
			if c.finished { // it failed for good, and with it the pod
				w.end(time.Now().Add(graceOf(w.pod, -1)))
				return false
			}
			if c.due() {
				w.launch(ctx, c)
			}
			waiting = true
		}
	}
	return !waiting
}

// passed says whether the containers after an init container need not wait
// for it (any more).
func (c *ctr) passed() bool {
	if c.role == roleSidecar {
		return c.started || c.wasStarted
	}
	return c.finished && c.last.ExitCode == 0
}

func (w *Worker) runApps(ctx context.Context) {
	finished := true
	for _, c := range w.ctrs {
		if c.role != roleApp {
			continue
		}
		if c.due() {
			w.launch(ctx, c)
		}
		finished = finished && c.finished
	}
	if finished { // a job: the sidecars end with it
		w.end(time.Now().Add(graceOf(w.pod, -1)))
	}
}

// wind ends the pod: all others at once, then sidecars one by one in reverse
// order. A finished pod that nobody deleted stays, with nothing running.
func (w *Worker) wind(ctx context.Context) (over bool) {
	running := false
	for _, c := range w.ctrs {
		if c.role != roleSidecar && c.proc != nil {
			w.stop(ctx, c, w.deadline)
			running = true
		}
	}
	for i := len(w.ctrs) - 1; i >= 0 && !running; i-- {
		c := w.ctrs[i]
		if c.role != roleSidecar || c.proc == nil {
			continue
		}
		at := w.deadline
		if soonest := time.Now().Add(sidecarGrace); at.Before(soonest) {
			at = soonest
		}
		if c.killAt.IsZero() {
			w.stop(ctx, c, at)
		}
		running = true
	}
	w.killOverdue()
	return !running && w.deleting
}

// nextDue is how long nothing will happen by itself.
func (w *Worker) nextDue() time.Duration {
	next := time.Duration(math.MaxInt64)
	for _, c := range w.ctrs {
		switch {
		case c.proc != nil && !c.killAt.IsZero() && !c.killed:
			next = min(next, time.Until(c.killAt))
		case c.proc == nil && !c.finished && !c.notBefore.IsZero() && w.deadline.IsZero():
			if d := time.Until(c.notBefore); d > 0 {
				next = min(next, d)
			}
		}
	}
	return max(0, next)
}
