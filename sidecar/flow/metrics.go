package flow

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/http1"
)

// maxPeers bounds the distinct sets of labels: what is beyond counts as peer
// and service "other", so that no client can make series without end.
const maxPeers = 1000

// maxRules bounds the audit rules that are told apart, maxServices the Services
// of the counters that know no peer: both come and go for as long as a pod lives.
const (
	maxRules    = 200
	maxServices = maxPeers
)

const other = "other"

// latencyBuckets, in seconds, are dense where a mesh's answers lie.
var latencyBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}

// Metrics are the data path's numbers. What a connection needs of them is
// looked up once, when it is set up: Peer.
type Metrics struct {
	requests   *prometheus.CounterVec
	latency    *prometheus.HistogramVec
	conns      *prometheus.CounterVec
	open       *prometheus.GaugeVec
	bytes      *prometheus.CounterVec
	handshakes *prometheus.CounterVec
	refused    *prometheus.CounterVec
	replays    *prometheus.CounterVec
	audits     *prometheus.CounterVec
	retries    *prometheus.CounterVec
	denied     *prometheus.CounterVec
	circuit    *prometheus.CounterVec
	ejections  *prometheus.CounterVec

	mu       sync.Mutex
	peers    map[peerKey]*Peer
	rules    map[string]bool // audit rules that have a series
	services map[string]bool
}

type peerKey struct {
	direction, peer, service string
	tls                      bool
}

// Peer counts what passes between us and one peer.
type Peer struct {
	classes        [6]prometheus.Counter // by status/100; 0: no answer
	latency        prometheus.Observer
	replays        prometheus.Counter
	conns          prometheus.Counter
	open           prometheus.Gauge
	sent, received prometheus.Counter
}

// NewMetrics makes the vectors; Collectors gives them to a registry.
func NewMetrics() *Metrics {
	labels := []string{"direction", "peer", "service", "tls"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &Metrics{
		requests: counter("heddle_requests_total", "HTTP requests, by class of the status that the client was told; code none: no answer.",
			"direction", "peer", "service", "tls", "code"),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "heddle_request_duration_seconds", Help: "Time from a whole request head to the end of the answer.", Buckets: latencyBuckets,
		}, labels),
		conns: counter("heddle_tcp_connections_total", "Opaque TCP connections that were established.", labels...),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "heddle_tcp_open_connections", Help: "Opaque TCP connections open now.",
		}, labels),
		bytes: counter("heddle_bytes_total", "Bytes to (sent) and from (received) the client, HTTP heads included, TLS not.",
			"direction", "peer", "service", "tls", "way"),
		handshakes: counter("heddle_handshakes_total", "TLS handshakes with other sidecars; result ok or the reason of the failure.", "direction", "result"),
		refused:    counter("heddle_refused_total", "Connections and requests refused or failed by the sidecar.", "direction", "reason"),
		replays:    counter("heddle_replays_total", "Requests sent again because the first attempt provably did not reach the application.", labels...),
		audits:     counter("heddle_audited_total", "Requests, and connections without any, that an audit rule of an AccessPolicy means; reason: why they were refused, none if not.", "policy", "reason"),
		retries:    counter("heddle_retries_total", "Requests and connection attempts made once more because a TrafficPolicy says so, by what had failed.", "service", "cause"),
		denied:     counter("heddle_retries_denied_total", "Requests not sent again although that was wanted: the budget is used up, or the body is too long to be kept.", "service", "reason"),
		circuit:    counter("heddle_circuit_open_total", "Requests and connections refused because as much was under way as a TrafficPolicy's circuit breaker lets, by which limit.", "service", "limit"),
		ejections:  counter("heddle_ejections_total", "Endpoints ejected because they kept failing.", "service"),
		peers:      map[peerKey]*Peer{},
		rules:      map[string]bool{},
		services:   map[string]bool{},
	}
}

// Collectors are all vectors.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.latency, m.conns, m.open, m.bytes, m.handshakes, m.refused, m.replays, m.audits, m.retries, m.denied, m.circuit, m.ejections}
}

// Peer gives the counters for a peer: its SPIFFE ID, "" without mTLS; service
// is the Service called, "" inbound. tls: the connection is mutual TLS.
func (m *Metrics) Peer(direction, peer, service string, tls bool) *Peer {
	k := peerKey{direction, peer, service, tls}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.peers[k]; p != nil {
		return p
	}
	if len(m.peers) >= maxPeers {
		k.peer, k.service = other, other
		if p := m.peers[k]; p != nil {
			return p
		}
	}
	l := []string{k.direction, k.peer, k.service, strconv.FormatBool(k.tls)}
	p := &Peer{
		latency:  m.latency.WithLabelValues(l...),
		replays:  m.replays.WithLabelValues(l...),
		conns:    m.conns.WithLabelValues(l...),
		open:     m.open.WithLabelValues(l...),
		sent:     m.bytes.WithLabelValues(append(l, "sent")...),
		received: m.bytes.WithLabelValues(append(l, "received")...),
	}
	for i, class := range []string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		p.classes[i] = m.requests.WithLabelValues(append(l, class)...)
	}
	m.peers[k] = p
	return p
}

// Request counts an exchange.
func (p *Peer) Request(x *http1.Exchange) {
	class := x.Status / 100
	if class < 0 || class >= len(p.classes) {
		class = 0
	}
	p.classes[class].Inc()
	p.latency.Observe(x.Duration.Seconds())
	p.sent.Add(float64(x.Sent))
	p.received.Add(float64(x.Received))
	if x.Replayed {
		p.replays.Inc()
	}
}

// Connected counts an opaque connection; its result is called when it ends.
func (p *Peer) Connected() (ended func(sent, received int64)) {
	p.conns.Inc()
	p.open.Inc()
	return func(sent, received int64) {
		p.open.Dec()
		p.sent.Add(float64(sent))
		p.received.Add(float64(received))
	}
}

// Refused counts a refusal or failure.
func (m *Metrics) Refused(direction string, reason telemetry.Reason) {
	m.refused.WithLabelValues(direction, string(reason)).Inc()
}

// Audited counts what an audit rule means; ReasonOK: it was let in.
func (m *Metrics) Audited(rule string, reason telemetry.Reason) {
	rule = m.label(m.rules, rule, maxRules)
	if reason == telemetry.ReasonOK {
		reason = "none"
	}
	m.audits.WithLabelValues(rule, string(reason)).Inc()
}

// label gives a label's value, other if it would be one too many.
func (m *Metrics) label(have map[string]bool, value string, most int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case have[value]:
	case len(have) < most:
		have[value] = true
	default:
		return other
	}
	return value
}

func (m *Metrics) service(name string) string { return m.label(m.services, name, maxServices) }

// Retried counts what was tried once more, or more often, because of a policy.
func (m *Metrics) Retried(service, cause string, times int) {
	m.retries.WithLabelValues(m.service(service), cause).Add(float64(times))
}

// RetryDenied counts a request that was not sent again.
func (m *Metrics) RetryDenied(service string, reason telemetry.Reason) {
	m.denied.WithLabelValues(m.service(service), string(reason)).Inc()
}

// CircuitOpen counts what a circuit breaker refused; limit is requests,
// connections or pending.
func (m *Metrics) CircuitOpen(service, limit string) {
	m.circuit.WithLabelValues(m.service(service), limit).Inc()
}

// Ejected counts an endpoint's ejection.
func (m *Metrics) Ejected(service string) { m.ejections.WithLabelValues(m.service(service)).Inc() }

// Handshake counts a handshake; ReasonOK: it succeeded.
func (m *Metrics) Handshake(direction string, reason telemetry.Reason) {
	if reason == telemetry.ReasonOK {
		reason = "ok"
	}
	m.handshakes.WithLabelValues(direction, string(reason)).Inc()
}
