// Package admin is the sidecar's HTTP server for readiness, metrics and a look
// inside. It is off the data path, knows nothing of what it shows, and is kept
// from the pod's own programs by the redirect. sidecar.Run starts it.
package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
)

// Config is what the server shows.
type Config struct {
	Addr    string                // host:port, ":16020"
	Ready   func() (bool, string) // false with the reason; nil: always ready
	Metrics http.Handler          // nil: 404
	Debug   func() any            // shown as JSON at /debug/state; nil: 404
	Log     *slog.Logger
}

// Server answers /ready, /live, /metrics and /debug/state.
type Server struct{ c Config }

// New gives a server that does not listen yet.
func New(c Config) *Server { return &Server{c: c} }

// Run serves until ctx ends, then lets running answers finish for a moment.
func (s *Server) Run(ctx context.Context) error { return errors.New("not built yet") }
