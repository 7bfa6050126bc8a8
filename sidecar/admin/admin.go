// Package admin is the sidecar's HTTP server for readiness, metrics and a look
// inside. It is off the data path, knows nothing of what it shows, and is kept
// from the pod's own programs by the redirect. sidecar.Run starts it.
package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// headerTimeout and readTimeout end clients that do not finish asking.
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	// writeTimeout ends clients that do not read; a slow scrape takes less.
	writeTimeout = 30 * time.Second
	// idleTimeout is longer than the usual scrape interval.
	idleTimeout = 2 * time.Minute
	// maxHeader and maxBody are far above what a probe or a scrape sends.
	maxHeader = 16 << 10
	maxBody   = 4 << 10
	// maxConns bounds the strangers' share of our memory: kubelet, Prometheus
	// and a person looking need a handful.
	maxConns = 64
	// endTimeout is for answers under way when the sidecar ends.
	endTimeout = 2 * time.Second
)

// Config is what the server shows.
type Config struct {
	Addr    string                // host:port, ":16020"
	Ready   func() (bool, string) // false with the reason; nil: always ready
	Metrics http.Handler          // nil: 404
	Debug   func() any            // shown as JSON at /debug/state; nil: 404
	InForce func() any            // shown as JSON at /debug/config; nil: 404
	Log     *slog.Logger
}

// Server answers /ready, /live, /metrics, /debug/state and /debug/config.
type Server struct {
	c   Config
	log *slog.Logger
}

// New gives a server that does not listen yet.
func New(c Config) *Server { return &Server{c: c, log: telemetry.Discard(c.Log)} }

// Run listens and serves until ctx ends, then lets answers under way finish for
// a moment.
func (s *Server) Run(ctx context.Context) error {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // nothing here gains from it
	l, err := lc.Listen(ctx, "tcp", s.c.Addr)
	if err != nil {
		return fmt.Errorf("listen for the admin port: %w", err)
	}
	return s.serve(ctx, l)
}

func (s *Server) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(&bounded{Listener: l, slots: make(chan struct{}, maxConns)}) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the admin port: %w", err)
	case <-ctx.Done():
	}
	// The context that ended cannot bound the end.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		srv.Close()
	}
	<-ended
	return ctx.Err()
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "live") })
	mux.HandleFunc("GET /ready", s.ready)
	if s.c.Metrics != nil {
		mux.Handle("GET /metrics", s.c.Metrics)
	}
	if s.c.Debug != nil {
		mux.HandleFunc("GET /debug/state", show(s.c.Debug))
	}
	if s.c.InForce != nil {
		mux.HandleFunc("GET /debug/config", show(s.c.InForce))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.c.Ready != nil {
		if ok, why := s.c.Ready(); !ok {
			answer(w, http.StatusServiceUnavailable, "not ready: "+why)
			return
		}
	}
	answer(w, http.StatusOK, "ready")
}

func show(what func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		b, err := json.MarshalIndent(what(), "", "  ")
		if err != nil {
			answer(w, http.StatusInternalServerError, "encode the state: "+err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(append(b, '\n'))
	}
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	io.WriteString(w, text+"\n")
}

// bounded closes connections beyond cap(slots) at once: one that waited would
// look like a sidecar that hangs.
type bounded struct {
	net.Listener
	slots chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.slots <- struct{}{}:
			return &slot{Conn: c, free: b.slots}, nil
		default:
			c.Close()
		}
	}
}

type slot struct {
	net.Conn
	free chan struct{}
	once sync.Once
}

func (s *slot) Close() error {
	err := s.Conn.Close()
	s.once.Do(func() { <-s.free })
	return err
}
