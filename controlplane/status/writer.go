package status

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// gather is the least time between two passes: a wave of new pods is one.
	gather = 100 * time.Millisecond
	// countEvery bounds how often numbers of pods and Services are written that
	// change nothing about an object being in force.
	countEvery = 10 * time.Second
	// writeWait bounds one write, and retry is the pause after one that failed.
	writeWait = 10 * time.Second
	retry     = 5 * time.Second
)

// Write replaces the conditions of one object (source.Source.WriteStatus).
type Write func(ctx context.Context, ref source.Ref, conditions []source.Condition) error

// Writer writes what changed.
type Writer struct {
	write Write
	log   *slog.Logger
	news  chan struct{} // one signal

	mu       sync.Mutex
	snap     *source.Snapshot
	problems []source.Problem
}

// New gives a Writer; nothing is written before Run.
func New(write Write, log *slog.Logger) *Writer {
	return &Writer{write: write, log: telemetry.Discard(log), news: make(chan struct{}, 1)}
}

// Update tells of the newest world. It does not block.
func (w *Writer) Update(snap *source.Snapshot, problems []source.Problem) {
	w.mu.Lock()
	w.snap, w.problems = snap, problems
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends. It begins with every object, as it cannot know
// what others wrote; at most one Run may be under way.
func (w *Writer) Run(ctx context.Context) {
	r := &round{Writer: w, written: map[source.Ref]Verdict{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.news:
		case <-timer.C:
		}
		wait := r.pass(ctx)
		pause := time.NewTimer(gather)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

// round is one Run.
type round struct {
	*Writer
	written map[source.Ref]Verdict
	counted time.Time // numbers alone were written last
}

// pass writes what is due and says when to come again; 0: when there is news.
func (r *round) pass(ctx context.Context) (wait time.Duration) {
	r.mu.Lock()
	snap, problems := r.snap, r.problems
	r.mu.Unlock()
	if snap == nil {
		return 0
	}
	now := time.Now()
	counting := now.Sub(r.counted) >= countEvery
	later := func(d time.Duration) {
		if wait == 0 || d < wait {
			wait = d
		}
	}
	wanted := Of(snap, problems)
	for ref := range r.written {
		if _, ok := wanted[ref]; !ok {
			delete(r.written, ref)
		}
	}
	for _, ref := range order(wanted) {
		want, had := wanted[ref], r.written[ref]
		if want == had {
			continue
		}
		if counts(want, had) {
			if !counting {
				later(countEvery - now.Sub(r.counted))
				continue
			}
			r.counted = now
		}
		switch err := r.one(ctx, ref, want.Condition); {
		case err == nil, errors.Is(err, source.ErrNotFound):
			r.written[ref] = want
		case ctx.Err() != nil:
			return 0
		default:
			r.log.Warn("cannot write status", "object", ref.String(), "again_in", retry.String(), "err", err)
			later(retry)
		}
	}
	return wait
}

// counts tells that two verdicts on an object in force differ in their numbers
// only.
func counts(a, b Verdict) bool {
	a.Message, b.Message = "", ""
	return a == b && a.Status == "True"
}

func (w *Writer) one(ctx context.Context, ref source.Ref, c source.Condition) error {
	ctx, cancel := context.WithTimeout(ctx, writeWait)
	defer cancel()
	return w.write(ctx, ref, []source.Condition{c})
}

// order has what is wrong first: somebody may be waiting for that.
func order(m map[source.Ref]Verdict) []source.Ref {
	out := make([]source.Ref, 0, len(m))
	for ref := range m {
		out = append(out, ref)
	}
	slices.SortFunc(out, func(a, b source.Ref) int {
		return cmp.Or(cmp.Compare(m[a].Status, m[b].Status), cmp.Compare(a.String(), b.String()))
	})
	return out
}
