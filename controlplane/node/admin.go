package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/nft"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
	"github.com/heddle-mesh/heddle/internal/control"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// headTimeout bounds slow clients of the admin port.
	headTimeout = 5 * time.Second
	// stuck is how long the rules may not have been looked after before the
	// agent says that it is not alive: sixty times the usual.
	stuck = time.Minute
)

// view is what is shown of the programmer's work.
type view struct {
	rules    *plan.Rules // in the kernel
	revision uint64
	complete bool // once rules were written by what the control plane told
	err      error
	looked   time.Time
}

// wrote shows an attempt to write.
func (a *agent) wrote(r *plan.Rules, told *pb.Update, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.view.err, a.view.looked = err, time.Now()
	if err == nil {
		a.view.rules, a.view.revision = r, told.GetRevision()
		a.view.complete = a.view.complete || told != nil
	}
}

func (a *agent) looked() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.view.looked = time.Now()
}

// ready: rules are in the kernel that came from the control plane, now or in
// an earlier run.
func (a *agent) ready() (bool, string) {
	a.mu.Lock()
	v := a.view
	a.mu.Unlock()
	switch {
	case !v.complete && v.err != nil:
		return false, "cannot write the rules: " + v.err.Error()
	case !v.complete:
		return false, "waiting for the control plane: " + a.link.state().LastError
	}
	return true, "ready"
}

func (a *agent) live() (bool, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if since := time.Since(a.view.looked); !a.view.looked.IsZero() && a.view.err == nil && since > stuck {
		return false, "rules were not looked after for " + since.Round(time.Second).String()
	}
	return true, "live"
}

func (a *agent) serveAdmin(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	say := func(f func() (bool, string)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			ok, why := f()
			if !ok {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = io.WriteString(w, why+"\n")
		}
	}
	mux.HandleFunc("GET /ready", say(a.ready))
	mux.HandleFunc("GET /live", say(a.live))
	mux.Handle("GET /metrics", a.registry.Handler())
	mux.HandleFunc("GET /debug/services", ownNodeOnly(a.debug))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: headTimeout, ReadTimeout: headTimeout, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the admin port: %w", err)
	}
	return ctx.Err()
}

// ownNodeOnly refuses callers from elsewhere: the port stands open on the
// node's address, and who forwards where is not everybody's business.
func ownNodeOnly(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		local, errLocal := netip.ParseAddrPort(at.String())
		if err != nil || errLocal != nil || !from.Addr().Unmap().IsLoopback() && from.Addr() != local.Addr() {
			http.Error(w, "ask on the node itself", http.StatusForbidden)
			return
		}
		f(w, r)
	}
}

// Debug is what /debug/services shows.
type Debug struct {
	Node         string
	Version      string
	Revision     uint64
	ControlPlane control.State
	Error        string `json:",omitempty"`
	Pods, Ranges []netip.Prefix
	Services     map[string][]DebugFlow
}

// DebugFlow is one address, protocol and port of a Service.
type DebugFlow struct {
	Flow      string
	Verdict   string
	Endpoints []netip.AddrPort
}

func (a *agent) debug(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	v := a.view
	a.mu.Unlock()
	d := Debug{Node: a.cfg.Node, Version: a.cfg.Version, Revision: v.revision, ControlPlane: a.link.state(), Services: map[string][]DebugFlow{}}
	if v.err != nil {
		d.Error = v.err.Error()
	}
	if v.rules != nil {
		d.Pods, d.Ranges = v.rules.Pods, v.rules.Ranges
		for name, s := range v.rules.Services {
			list := []DebugFlow{}
			for _, f := range s.Sorted() {
				act := s.Flows[f]
				list = append(list, DebugFlow{f.String(), act.Verdict.String(), act.Endpoints})
			}
			d.Services[name] = list
		}
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(d)
}

// metrics of the agent.
type metrics struct {
	writes          *prometheus.CounterVec
	keys            prometheus.Counter
	seconds         prometheus.Histogram
	meddled, udp    prometheus.Counter
	settingsMissing *prometheus.GaugeVec
}

func newMetrics(reg *telemetry.Registry) *metrics {
	m := &metrics{
		writes:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "heddle_node_writes_total", Help: "Writes of rules to the kernel."}, []string{"result"}),
		keys:    prometheus.NewCounter(prometheus.CounterOpts{Name: "heddle_node_keys_written_total", Help: "Addresses with protocol and port that were added, changed or removed."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "heddle_node_write_seconds", Help: "One write, rules and UDP flows.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		meddled: prometheus.NewCounter(prometheus.CounterOpts{Name: "heddle_node_meddled_total", Help: "Times that somebody else had changed our rules, which were mended."}),
		udp:     prometheus.NewCounter(prometheus.CounterOpts{Name: "heddle_node_udp_flows_deleted_total", Help: "Tracked UDP flows deleted because their endpoint was gone."}),
		settingsMissing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "heddle_node_setting_missing", Help: "1: a kernel setting is not as forwarding needs it."},
			[]string{"setting"}),
	}
	reg.Register(m.writes, m.keys, m.seconds, m.meddled, m.udp, m.settingsMissing)
	return m
}

func (m *metrics) applied(r nft.Report, took time.Duration, err error) {
	if err != nil {
		m.writes.WithLabelValues("failed").Inc()
		return
	}
	m.writes.WithLabelValues("ok").Inc()
	m.keys.Add(float64(r.Keys))
	m.udp.Add(float64(r.Flows.Deleted))
	m.seconds.Observe(took.Seconds())
}
