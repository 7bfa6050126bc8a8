package sidecar

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// linesPerSecond is how many records of refused and failed traffic are logged
// each second: a client in a loop must not fill the node's disk. The metrics
// count them all.
const linesPerSecond = 50

// limited is a log handler that drops what is above linesPerSecond and says
// how much it was.
type limited struct {
	slog.Handler
	s *limit
}

type limit struct {
	mu      sync.Mutex
	second  int64
	written int
	dropped int
}

func limitLog(l *slog.Logger) *slog.Logger {
	return slog.New(limited{l.Handler(), &limit{}})
}

// take counts a record; pass: it may be written. dropped is how many were not
// in the seconds before, told once.
func (s *limit) take(now time.Time) (pass bool, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if second := now.Unix(); second != s.second {
		s.second, s.written = second, 0
		dropped, s.dropped = s.dropped, 0
	}
	if s.written >= linesPerSecond {
		s.dropped++
		return false, 0
	}
	s.written++
	return true, dropped
}

// Handle writes the record or drops it.
func (h limited) Handle(ctx context.Context, r slog.Record) error {
	pass, dropped := h.s.take(r.Time)
	if !pass {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("dropped_before", dropped))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the limit.
func (h limited) WithAttrs(a []slog.Attr) slog.Handler { return limited{h.Handler.WithAttrs(a), h.s} }

// WithGroup keeps the limit.
func (h limited) WithGroup(name string) slog.Handler { return limited{h.Handler.WithGroup(name), h.s} }
