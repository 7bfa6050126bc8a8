package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/e2e/driver"
	"github.com/heddle-mesh/heddle/e2e/observe"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

// purchase is a line of the shopper's log.
type purchase struct {
	Start   time.Time `json:"start"`
	Micros  int64     `json:"micros"`
	Status  int       `json:"status"`
	Reason  string    `json:"reason"`
	Err     string    `json:"err"`
	Replica string    `json:"replica"`
}

// capture is one node's.
type capture struct {
	file, node string
	here       []netip.Prefix
	stats      fabric.CaptureStats
}

// edge is who called whom, by certificate.
type edge struct{ from, to string }

// traffic is what passed on an edge, as the called side counted it.
type traffic struct{ requests, connections float64 }

// report is what the demo saw.
type report struct {
	ready            int
	killed           string
	without, through []purchase
	captures         []capture
	seen             *observe.Tally
	edges            map[edge]*traffic
	changes          []change
	sidecars         int
}

// wantEdges are the ones a shop has; every one must be seen with both names.
var wantEdges = []edge{{"shop/shopper", "shop/web"}, {"shop/web", "shop/orders"}, {"shop/orders", "shop/stock"}}

// addEdges takes in the metrics of one pod's sidecar.
func (r *report) addEdges(pod string, metrics map[string]float64) {
	to := "shop/" + strings.SplitN(pod, "-", 2)[0]
	for key, n := range metrics {
		name, _, _ := strings.Cut(key, ",")
		http, tcp := name == "heddle_requests_total", name == "heddle_tcp_connections_total"
		if driver.Label(key, "direction") != "inbound" || n == 0 || !http && !tcp {
			continue
		}
		peer := driver.Label(key, "peer")
		if peer == "" {
			continue // the node's probes come without a certificate; the capture judges pods
		}
		e := edge{account(peer), to}
		if r.edges[e] == nil {
			r.edges[e] = &traffic{}
		}
		if http {
			r.edges[e].requests += n
		} else {
			r.edges[e].connections += n
		}
	}
}

// account shortens a SPIFFE ID to namespace/account.
func account(id string) string {
	_, path, _ := strings.Cut(strings.TrimPrefix(id, "spiffe://"), "/")
	return strings.NewReplacer("ns/", "", "sa/", "").Replace(path)
}

func failures(ps []purchase) (n int, first string) {
	for _, p := range ps {
		if p.Err != "" {
			if n++; first == "" {
				first = p.Err
				if p.Reason != "" {
					first += " (" + p.Reason + ")"
				}
			}
		}
	}
	return n, first
}

// warmUp is left out of latencies, though not of failures: first connections,
// first look-ups, and programs that have just started.
const warmUp = 2 * time.Second

func steady(ps []purchase) (out []purchase) {
	for _, p := range ps {
		if p.Start.Sub(ps[0].Start) >= warmUp {
			out = append(out, p)
		}
	}
	return out
}

// percentile gives the latency that a share of purchases did not exceed.
func percentile(ps []purchase, share float64) time.Duration {
	ps = steady(ps)
	if len(ps) == 0 {
		return 0
	}
	all := make([]int64, 0, len(ps))
	for _, p := range ps {
		all = append(all, p.Micros)
	}
	slices.Sort(all)
	return time.Duration(all[min(int(share*float64(len(all))), len(all)-1)]) * time.Microsecond
}

func (r *report) print(w io.Writer) {
	line := func(label, format string, args ...any) {
		fmt.Fprintf(w, "  %-11s %s\n", label, fmt.Sprintf(format, args...))
	}
	failed, first := failures(r.through)
	fmt.Fprintf(w, "\nHeddle's shop: shopper -> web -> orders -> stock, on two nodes\n\n")
	line("requests", "%d through the mesh, %d failed; each passed 3 services and 6 sidecars", len(r.through), failed)
	if failed > 0 {
		line("", "the first failure: %s", first)
	}
	line("meanwhile", "%s was killed with kill -9, orders scaled from 2 to 4", r.killed)
	t := r.seen
	line("mTLS", "%.2f %% of the packets with payload between pods: %d of %d (%.1f MB)", 100*t.Share(), t.TLSPackets, t.TLSPackets+t.PlainPackets, float64(t.TLSBytes)/1e6)
	line("", "the word in every request and answer was seen %d times on the wire", t.Secrets)
	if t.PlainPackets > 0 {
		line("", "plaintext: %s", t.FirstPlain)
		for _, from := range slices.Sorted(maps.Keys(t.PlainFrom)) {
			line("", "  %d packets %s", t.PlainFrom[from], from)
		}
	}
	for _, c := range r.captures {
		line("", "captured on %s: %s, %d packets, %d lost", c.node, c.file, c.stats.Written, c.stats.Dropped)
	}
	label := "identities"
	for _, e := range slices.SortedFunc(maps.Keys(r.edges), func(a, b edge) int { return strings.Compare(a.from+a.to, b.from+b.to) }) {
		n := r.edges[e]
		what := fmt.Sprintf("%.0f requests", n.requests)
		if n.connections > 0 {
			what = fmt.Sprintf("%.0f TCP connections", n.connections)
		}
		line(label, "%-14s -> %-14s %s, both sides by certificate", e.from, e.to, what)
		label = ""
	}
	label = "changes"
	ready := map[string]int{}
	for _, c := range r.changes {
		was := ready[c.service]
		if ready[c.service] = c.ready; len(c.took) == 0 || c.ready == was {
			continue // nobody uses it, or a pod that is not ready yet joined
		}
		line(label, "%-7s %d ready: in force in %d sidecars after %v to %v", c.service, c.ready, len(c.took), ms(slices.Min(c.took)), ms(slices.Max(c.took)))
		label = ""
	}
	line("latency", "p50 %v, p99 %v; without a mesh %v, %v (after %v of warm-up)", ms(percentile(r.through, .5)), ms(percentile(r.through, .99)), ms(percentile(r.without, .5)), ms(percentile(r.without, .99)), warmUp)
	line("added", "%v at p50, %v at p99, for six sidecars", ms(percentile(r.through, .5)-percentile(r.without, .5)), ms(percentile(r.through, .99)-percentile(r.without, .99)))
	fmt.Fprintln(w)
}

func ms(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// verdict is nil if all is as it must be.
func (r *report) verdict() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	failed, first := failures(r.through)
	must(failed == 0, "%d of %d requests failed, the first: %s", failed, len(r.through), first)
	must(len(r.through) > 1000, "only %d requests were made: the shopper did not keep its rate", len(r.through))
	must(len(r.without) > 0, "no baseline was measured")
	t := r.seen
	must(t.PlainPackets == 0, "%d packets between pods were not inside mesh TLS, the first: %s", t.PlainPackets, t.FirstPlain)
	must(t.TLSPackets > len(r.through), "only %d packets of mesh TLS were seen for %d requests: the capture missed them", t.TLSPackets, len(r.through))
	must(t.MeshStreams > 0, "no connection named a protocol of Heddle")
	must(t.Secrets == 0, "the secret word was seen %d times, first on %s", t.Secrets, t.FirstSecret)
	for _, c := range r.captures {
		must(c.stats.Dropped == 0, "the capture on %s lost %d packets: nothing can be said of them", c.node, c.stats.Dropped)
	}
	for _, e := range wantEdges {
		n := r.edges[e]
		must(n != nil && n.requests+n.connections > 0, "nothing was seen from %s to %s by certificate", e.from, e.to)
	}
	for e := range r.edges {
		must(slices.Contains(wantEdges, e), "unexpected traffic from %s to %s", e.from, e.to)
	}
	for _, service := range []string{"stock", "orders"} {
		must(slices.ContainsFunc(r.changes, func(c change) bool { return c.service == service && len(c.took) > 0 }),
			"no change of %s's endpoints was seen to reach a sidecar", service)
	}
	return errors.Join(errs...)
}
