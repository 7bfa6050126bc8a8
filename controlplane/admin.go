package controlplane

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Bounds of the metrics listener.
const (
	adminHeader = 5 * time.Second  // for a request's head
	adminAnswer = 30 * time.Second // for a large /metrics over a slow link
	adminStop   = 2 * time.Second  // for open requests when we stop
	adminBytes  = 16 << 10         // of a request's head
)

func (p *plane) listenAdmin() (net.Listener, error) {
	if p.cfg.Metrics == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", p.cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	return l, nil
}

// admin serves what people and kubelets ask, until ctx ends.
func (p *plane) admin(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.registry.Handler())
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if why := p.notReady(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /debug/problems", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// An empty list, not null.
		_ = json.NewEncoder(w).Encode(append([]source.Problem{}, p.newest.Load().problems...))
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: adminHeader, ReadTimeout: adminHeader, WriteTimeout: adminAnswer,
		MaxHeaderBytes: adminBytes, ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve metrics: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminStop)
	defer cancel()
	if err := s.Shutdown(stop); err != nil {
		s.Close()
	}
	<-served
	return ctx.Err()
}

// notReady says what is missing; empty: peers can be served.
func (p *plane) notReady() string {
	if world, _ := p.worlds.Current(); world == nil {
		if why := p.waits.Load(); why != nil {
			return *why
		}
		return "the source was not read yet"
	}
	if !p.serving.Load() {
		return "not serving peers"
	}
	if leaf := p.identity.Leaf(); leaf == nil || time.Now().After(leaf.NotAfter) {
		return "no certificate of our own"
	}
	return ""
}

func (p *plane) roots() map[spiffeid.TrustDomain][]*x509.Certificate {
	return map[spiffeid.TrustDomain][]*x509.Certificate{p.domain: p.ca.Roots()}
}

type metrics struct {
	revision, problems prometheus.Gauge
	seconds            prometheus.Histogram
}

func newMetrics(reg *telemetry.Registry) *metrics {
	m := &metrics{
		revision: prometheus.NewGauge(prometheus.GaugeOpts{Name: "heddle_controlplane_revision", Help: "Of the world that peers are told of."}),
		problems: prometheus.NewGauge(prometheus.GaugeOpts{Name: "heddle_controlplane_problems", Help: "Documents and fields that are not as they must be; /debug/problems lists them."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "heddle_controlplane_build_seconds", Help: "To make a world of a snapshot.",
			Buckets: []float64{.0001, .001, .01, .05, .1, .5, 1, 5}}),
	}
	reg.Register(m.revision, m.problems, m.seconds)
	return m
}

func (m *metrics) built(revision uint64, problems int, took time.Duration) {
	m.revision.Set(float64(revision))
	m.problems.Set(float64(problems))
	m.seconds.Observe(took.Seconds())
}

// report logs each problem once, when it comes and when it goes, until ctx
// ends, and hands the newest world on to whoever writes status. It works
// beside the builder: a slow log or status holds up no push.
func (p *plane) report(ctx context.Context) error {
	known := map[string]bool{}
	for {
		select {
		case <-p.reported:
		case <-ctx.Done():
			return ctx.Err()
		}
		r := *p.newest.Load()
		p.status.Update(r.snap, r.problems)
		now := map[string]bool{}
		for _, problem := range r.problems {
			text := problem.String()
			now[text] = true
			if !known[text] {
				p.log.Warn("problem", "problem", text)
			}
		}
		for text := range known {
			if !now[text] {
				p.log.Info("problem solved", "problem", text)
			}
		}
		known = now
	}
}
