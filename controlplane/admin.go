package controlplane

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
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
	statusWait  = 10 * time.Second // for one write of status
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
		_ = json.NewEncoder(w).Encode(append([]source.Problem{}, *p.problems.Load()...))
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

// report logs each problem once, when it comes and when it goes, and writes
// it to its object's status, until ctx ends. It works beside the builder: a
// slow status write holds up no push.
func (p *plane) report(ctx context.Context) error {
	known := map[string]source.Ref{}
	for {
		select {
		case <-p.reported:
		case <-ctx.Done():
			return ctx.Err()
		}
		now := map[string]source.Ref{}
		bad := map[source.Ref][]source.Problem{}
		for _, problem := range *p.problems.Load() {
			text := problem.String()
			now[text] = problem.Ref
			bad[problem.Ref] = append(bad[problem.Ref], problem)
			if _, ok := known[text]; !ok {
				p.log.Warn("problem", "problem", text)
			}
		}
		changed := map[source.Ref]bool{}
		for text, ref := range known {
			if _, ok := now[text]; !ok {
				p.log.Info("problem solved", "problem", text)
				changed[ref] = true
			}
		}
		for text, ref := range now {
			if _, ok := known[text]; !ok {
				changed[ref] = true
			}
		}
		for ref := range changed {
			p.writeStatus(ctx, ref, bad[ref])
		}
		known = now
	}
}

// statusKinds are our own kinds: other objects' status belongs to others.
var statusKinds = []string{"MeshConfig", "AccessPolicy", "TrafficPolicy"}

// exists says whether an object without problems is still there.
func (p *plane) exists(ref source.Ref) bool {
	snap, key := p.cfg.Source.Snapshot(), source.Key{Namespace: ref.Namespace, Name: ref.Name}
	switch ref.Kind {
	case "AccessPolicy":
		return snap.AccessPolicies[key] != nil
	case "TrafficPolicy":
		return snap.TrafficPolicies[key] != nil
	}
	return snap.Mesh != nil && snap.Mesh.Name == ref.Name
}

func (p *plane) writeStatus(ctx context.Context, ref source.Ref, problems []source.Problem) {
	if !slices.Contains(statusKinds, ref.Kind) || ref.Name == "" || len(problems) == 0 && !p.exists(ref) {
		return
	}
	c := source.Condition{Type: "Accepted", Status: "True", Reason: "Accepted", Message: "in force"}
	for i, problem := range problems {
		if i == 0 {
			c.Status, c.Reason, c.Message = "False", "Invalid", ""
		} else {
			c.Message += "; "
		}
		if problem.Field != "" {
			c.Message += problem.Field + ": "
		}
		c.Message += problem.Err
		if problem.Fix != "" {
			c.Message += " (" + problem.Fix + ")"
		}
	}
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	if err := p.cfg.Source.WriteStatus(ctx, ref, []source.Condition{c}); err != nil && !errors.Is(err, source.ErrNotFound) {
		p.log.Warn("cannot write status", "object", ref.String(), "error", err)
	}
}
