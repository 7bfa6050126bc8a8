package spans

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// maxQueue bounds the spans that wait: with about 1 KiB each, 2 MiB at most.
	// At the exporter's usual pace that is 2,000 sampled spans a second.
	maxQueue = 2048
	// maxBatch is what one call carries, far below gRPC's 4 MiB of a message.
	maxBatch = 512
	// batchWait is how long the first span of a batch waits for others.
	batchWait = time.Second
	// flushTimeout bounds what is sent at the end: within what a pod's default
	// grace of 30 s leaves after draining.
	flushTimeout = 3 * time.Second
)

// Why spans are dropped: label reason of heddle_spans_dropped_total.
const (
	dropFull     = "queue_full"
	dropFailed   = "export_failed"
	dropRejected = "rejected"
	dropOff      = "no_collector"
)

// Config of an Exporter.
type Config struct {
	Resource Resource
	// Version of the program, told as that of the instrumentation scope.
	Version string
	// Dial connects to the collector's HOST:PORT; nil: a net.Dialer.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	Log  *slog.Logger
}

// Exporter sends spans to a collector. While it has none, it drops them.
type Exporter struct {
	c         Config
	log       *slog.Logger
	queue     chan *Span
	collector atomic.Pointer[string]
	changed   chan struct{}

	exported prometheus.Counter
	dropped  *prometheus.CounterVec

	// of Run
	to      *remote
	failing bool // the last batch was lost: told once
}

// New gives an Exporter without a collector.
func New(c Config) *Exporter {
	e := &Exporter{c: c, log: telemetry.Discard(c.Log),
		queue: make(chan *Span, maxQueue), changed: make(chan struct{}, 1),
		exported: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_spans_exported_total", Help: "Spans that the trace collector took.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_spans_dropped_total",
			Help: "Spans that no collector got; reason queue_full, export_failed, rejected or no_collector.",
		}, []string{"reason"}),
	}
	for _, why := range []string{dropFull, dropFailed, dropRejected, dropOff} {
		e.dropped.WithLabelValues(why)
	}
	e.collector.Store(new(string))
	return e
}

// Collectors are the metrics.
func (e *Exporter) Collectors() []prometheus.Collector {
	return []prometheus.Collector{e.exported, e.dropped}
}

// SetCollector names the collector, HOST:PORT; "": there is none. A batch under
// way still goes to the one before.
func (e *Exporter) SetCollector(address string) {
	if old := e.collector.Swap(&address); *old == address {
		return
	}
	select {
	case e.changed <- struct{}{}:
	default: // Run has not looked yet and will find the newest
	}
}

// Offer hands a span over. It never waits: a full queue drops it.
func (e *Exporter) Offer(s *Span) {
	if *e.collector.Load() == "" {
		e.drop(dropOff, 1)
		return
	}
	select {
	case e.queue <- s:
	default:
		e.drop(dropFull, 1)
	}
}

func (e *Exporter) drop(why string, n int) {
	if n > 0 {
		e.dropped.WithLabelValues(why).Add(float64(n))
	}
}

// Run sends until ctx ends, and then what is left, for flushTimeout at most.
func (e *Exporter) Run(ctx context.Context) error {
	var batch []*Span
	timer := time.NewTimer(batchWait)
	timer.Stop()
	defer timer.Stop()
	defer func() { e.to.close(ctx) }()
	for {
		select {
		case <-ctx.Done():
			e.flush(ctx, batch)
			return nil
		case <-e.changed:
			e.reconnect(ctx)
			continue
		case s := <-e.queue:
			if batch = append(batch, s); len(batch) == 1 {
				timer.Reset(batchWait)
			}
			if len(batch) < maxBatch {
				continue
			}
		case <-timer.C:
		}
		if left := e.send(ctx, batch); left {
			continue // ctx has ended: flush sends it
		}
		clear(batch)
		batch = batch[:0]
	}
}

// reconnect takes the newest collector. Only while there is one, the SDK's
// exporter exists.
func (e *Exporter) reconnect(ctx context.Context) {
	address := *e.collector.Load()
	e.to.close(ctx)
	e.to, e.failing = nil, false
	if address == "" {
		return
	}
	to, err := connect(ctx, address, e.c)
	if err != nil {
		e.log.Warn("trace collector cannot be used", "collector", address, "err", err)
		return
	}
	e.to = to
	e.log.Info("spans go to a trace collector", "collector", address)
}

// send sends a batch and counts what became of it; true: it was not decided
// when ctx ended.
func (e *Exporter) send(ctx context.Context, batch []*Span) (left bool) {
	if len(batch) == 0 {
		return false
	}
	if e.to == nil {
		e.drop(dropOff, len(batch))
		return false
	}
	rejected, err := e.to.export(ctx, batch)
	switch {
	case err == nil:
		e.took(len(batch), rejected)
		return false
	case ctx.Err() != nil:
		return true
	}
	e.drop(dropFailed, len(batch))
	if !e.failing {
		e.log.Warn("trace collector does not take spans", "collector", e.to.address, "err", err)
	}
	e.failing = true
	return false
}

func (e *Exporter) took(n, rejected int) {
	rejected = min(max(rejected, 0), n)
	e.exported.Add(float64(n - rejected))
	e.drop(dropRejected, rejected)
	if e.failing {
		e.log.Info("trace collector takes spans again", "collector", e.to.address)
	}
	e.failing = false
}

// flush sends batch and what still waits, though ctx has ended.
func (e *Exporter) flush(ctx context.Context, batch []*Span) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	for {
		for len(batch) < maxBatch {
			select {
			case s := <-e.queue:
				batch = append(batch, s)
				continue
			default:
			}
			break
		}
		if len(batch) == 0 {
			return
		}
		if e.send(ctx, batch) {
			e.drop(dropFailed, len(batch)+len(e.queue))
			return
		}
		batch = batch[:0]
	}
}
