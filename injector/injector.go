// Package injector runs the injector: it watches the world and the trust
// bundle, keeps the webhook's certificate, and serves reviews, readiness and
// metrics. What is done to a pod is decided in injector/patch, the review is
// answered in injector/webhook. cmd/heddle-injector calls it.
package injector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/heddle-mesh/heddle/injector/patch"
	"github.com/heddle-mesh/heddle/injector/webhook"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Bounds of both servers. The API server waits 30 s for a webhook at most
// (timeoutSeconds), and a pod is small.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 15 * time.Second
	idleTimeout   = 90 * time.Second // API servers reuse connections
	maxHeader     = 64 << 10
	drainTimeout  = 10 * time.Second // a review under way ends well before
	// LameDuck is how long an injector behind a Service goes on when it is to
	// end: nodes hear a little later that its address is gone, and a refused
	// connection refuses a pod (failurePolicy Fail).
	LameDuck = 5 * time.Second
)

// Config of the injector.
type Config struct {
	Listen  string // host:port of the webhook, TLS
	Metrics string // host:port of /metrics, /ready and /live, plain
	// Certificate is the webhook's own: where it is kept, its names, and how
	// the API server hears of its CA. Its Log is ours.
	Certificate webhook.CertConfig
	// Roots are what sidecars trust first; read again when they change.
	Roots  Roots
	Source source.Source
	Mesh   patch.Config // its TrustBundle is filled in from Roots
	// LameDuck is how long all goes on after ctx ended, not ready any more.
	LameDuck time.Duration
	Log      *slog.Logger // nil: discard
}

// Run serves until ctx ends or a part fails.
func Run(ctx context.Context, cfg Config) error {
	reviews, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for reviews: %w", err)
	}
	metrics, err := net.Listen("tcp", cfg.Metrics)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", errors.Join(err, reviews.Close()))
	}
	return runOn(ctx, cfg, reviews, metrics)
}

// runOn serves on listeners, which it closes.
func runOn(ctx context.Context, cfg Config, reviews, metrics net.Listener) error {
	cfg.Log = telemetry.Discard(cfg.Log)
	bundle := newBundle(cfg.Roots, cfg.Mesh, cfg.Log)
	cfg.Certificate.Log = cfg.Log
	certs := webhook.NewCerts(cfg.Certificate)
	handler := webhook.New(webhook.Config{Snapshot: cfg.Source.Snapshot, Mesh: bundle.mesh, Log: cfg.Log})
	registry := telemetry.NewRegistry(cfg.Mesh.Version)
	registry.Register(handler.Collectors()...)
	ready := readiness{ending: ctx.Done(), source: cfg.Source, bundle: bundle, certs: certs, address: reviews.Addr()}
	if cfg.Certificate.Publish != nil && len(cfg.Certificate.Names) > 0 {
		ready.name = cfg.Certificate.Names[0]
	}

	late, stop := afterwards(ctx, cfg.LameDuck)
	defer stop()
	g := run.NewGroup(late)
	g.Go("source", cfg.Source.Run)
	g.Go("trust bundle", bundle.run)
	g.Go("certificate", certs.Run)
	g.Go("webhook", func(ctx context.Context) error {
		srv := server(webhookRoutes(handler), cfg.Log)
		srv.TLSConfig = certs.TLS()
		return serve(ctx, srv, func() error { return srv.ServeTLS(reviews, "", "") })
	})
	g.Go("metrics", func(ctx context.Context) error {
		srv := server(metricsRoutes(registry, ready), cfg.Log)
		return serve(ctx, srv, func() error { return srv.Serve(metrics) })
	})
	cfg.Log.Info("injector started", "listen", reviews.Addr().String(), "metrics", metrics.Addr().String(), "version", cfg.Mesh.Version)
	return g.Wait()
}

// afterwards gives a context that ends a while after ctx; stop ends it at once.
func afterwards(ctx context.Context, d time.Duration) (late context.Context, stop func()) {
	late, end := context.WithCancel(context.WithoutCancel(ctx))
	timed := make(chan struct{}) // closed when nobody waits any more
	go func() {
		defer close(timed)
		select {
		case <-ctx.Done():
		case <-late.Done():
			return
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			end()
		case <-late.Done():
		}
	}()
	return late, func() { end(); <-timed }
}

func webhookRoutes(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/inject", h)
	mux.Handle(webhook.SelectedPath, h)
	mux.HandleFunc("GET /live", live)
	return mux
}

func metricsRoutes(registry *telemetry.Registry, ready readiness) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", registry.Handler())
	mux.HandleFunc("GET /live", live)
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if err := ready.check(r.Context()); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}

func live(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "live") }

func server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug), // strangers' handshakes
	}
}

// serve runs a server until ctx ends, then lets what is under way finish.
func serve(ctx context.Context, srv *http.Server, listen func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- listen() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	err := srv.Shutdown(drain)
	if err != nil {
		err = errors.Join(err, srv.Close())
	}
	<-ended
	return err
}
