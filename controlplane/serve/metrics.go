package serve

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/internal/wire"
)

type metrics struct {
	peers     prometheus.Gauge
	pushes    *prometheus.CounterVec
	bytes     prometheus.Counter
	encodings prometheus.Counter
	issues    *prometheus.CounterVec
	latency   prometheus.Histogram
	refused   prometheus.Counter
	slow      prometheus.Counter
	dead      prometheus.Counter
	lagging   prometheus.Counter
}

func newMetrics(reg *telemetry.Registry) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "heddle_controlplane_" + name, Help: help})
	}
	m := &metrics{
		peers: prometheus.NewGauge(prometheus.GaugeOpts{Name: "heddle_controlplane_peers", Help: "Open streams."}),
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "heddle_controlplane_pushes_total",
			Help: "Updates sent, by form: whole, delta, none (no such resource)."}, []string{"form"}),
		bytes:     counter("push_bytes_total", "Bytes of updates sent."),
		encodings: counter("encodings_total", "Updates encoded; peers share them."),
		issues: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "heddle_controlplane_issues_total",
			Help: "Answers to requests for an identity, by result."}, []string{"result"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "heddle_controlplane_push_latency_seconds",
			Help:    "From a change of the world to the peer's acknowledgement.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .15, .25, .5, 1, 2.5, 10}}),
		refused: counter("refused_updates_total", "Updates that a peer refused; the log says which and why."),
		slow:    counter("slow_peers_total", "Peers cut off because they did not read."),
		dead:    counter("dead_peers_total", "Peers cut off because nothing was heard of them."),
		lagging: counter("lagging_total", "Times a peer held something newer than this replica's world."),
	}
	for _, form := range []string{"whole", "delta", "none"} {
		m.pushes.WithLabelValues(form)
	}
	if reg != nil {
		reg.Register(m.peers, m.pushes, m.bytes, m.encodings, m.issues, m.latency, m.refused, m.slow, m.dead, m.lagging)
	}
	return m
}

// issued counts one answer to Issue.
func (m *metrics) issued(err error) {
	result := "ok"
	var e *wire.Error
	if errors.As(err, &e) {
		result = e.Code.String()
	} else if err != nil {
		result = "error"
	}
	m.issues.WithLabelValues(result).Inc()
}
