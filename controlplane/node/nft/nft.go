// Package nft is the nftables back end of the node agent: it turns a plan into
// what internal/netfilter/services writes, and after each write deletes tracked
// UDP flows that lead to endpoints which are gone (internal/netfilter/flows).
// controlplane/node calls it, one goroutine at a time.
package nft

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/heddle-mesh/heddle/controlplane/node/plan"
	"github.com/heddle-mesh/heddle/internal/endpoint"
	"github.com/heddle-mesh/heddle/internal/netfilter/flows"
	"github.com/heddle-mesh/heddle/internal/netfilter/services"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Backend is the nftables back end in the namespace of its caller.
type Backend struct {
	log   *slog.Logger
	table *services.Table
	udp   map[plan.Flow][]netip.AddrPort // endpoints that flows may go on with; nil: never swept
}

// New gives a Backend that has not looked at the kernel yet.
func New(log *slog.Logger) *Backend {
	return &Backend{log: telemetry.Discard(log), table: services.New(log)}
}

// Probe says what the kernel lacks.
func Probe() error { return services.Probe() }

// Clean takes everything of ours out of the kernel.
func Clean() error { return services.Clean() }

// Report is what one Apply did.
type Report struct {
	services.Stats
	Flows flows.Stats
	// FlowsErr says that stale UDP flows could not be looked for; the rules are
	// in the kernel all the same, and the next Apply looks again.
	FlowsErr error
}

// Apply brings the kernel to the rules, then UDP flows to the rules: never
// before, or a packet in between would bind a new flow to an old endpoint.
func (b *Backend) Apply(r *plan.Rules) (Report, error) {
	var rep Report
	var err error
	if rep.Stats, err = b.table.Apply(toKernel(r)); err != nil {
		return rep, err
	}
	rep.Flows, rep.FlowsErr = b.sweep(r)
	return rep, nil
}

// Add brings the rules' Services into the kernel and leaves all others that are
// there: for a start at which it is not known yet what the others should be.
func (b *Backend) Add(r *plan.Rules) (Report, error) {
	st, err := b.table.Add(toKernel(r))
	return Report{Stats: st}, err
}

// Meddled says that the kernel does not hold what Apply wrote last; see
// services.Table. The next Apply mends it.
func (b *Backend) Meddled(thorough bool) (bool, error) { return b.table.Meddled(thorough) }

// toKernel renders the plan. Two Services cannot have one flow: the control
// plane gives each address to one; should they all the same, the first by name
// has it.
func toKernel(r *plan.Rules) *services.Rules {
	out := &services.Rules{Keys: map[services.Key]services.Target{}, Addrs: map[netip.Addr]bool{}, Hairpin: map[netip.Addr]bool{},
		Pods: r.Pods, Ranges: r.Ranges}
	for _, name := range slices.Sorted(maps.Keys(r.Services)) {
		s := r.Services[name]
		for _, a := range s.Addrs {
			out.Addrs[a] = true
		}
		for _, a := range s.Local {
			out.Hairpin[a] = true
		}
		for f, a := range s.Flows {
			k := services.Key{Addr: f.Addr, Proto: uint8(f.Proto), Port: f.Port}
			if _, taken := out.Keys[k]; !taken {
				out.Keys[k] = target(a)
			}
		}
	}
	return out
}

func target(a plan.Action) services.Target {
	switch a.Verdict {
	case endpoint.Usable:
		return services.Target{Verdict: services.Forward, Chain: a.Name, Endpoints: a.Endpoints}
	case endpoint.Drop:
		return services.Target{Verdict: services.Drop}
	}
	return services.Target{Verdict: services.Reject}
}

// sweep deletes tracked UDP flows to Services whose endpoint does not serve
// any more, or that were never translated: sent before there was a rule, they
// would miss every rule for as long as their client sends. It looks at the
// kernel's table only after a change that can have made such flows.
func (b *Backend) sweep(r *plan.Rules) (flows.Stats, error) {
	now := map[plan.Flow][]netip.AddrPort{}
	for _, s := range r.Services {
		for f, a := range s.Flows {
			if f.Proto == plan.UDP {
				now[f] = a.Serving
			}
		}
	}
	judged := map[plan.Flow][]netip.AddrPort{}
	for f, serving := range now {
		if was, ok := b.udp[f]; !ok || !slices.Equal(was, serving) {
			judged[f] = serving
		}
	}
	for f := range b.udp {
		if _, ok := now[f]; !ok {
			judged[f] = nil // the Service is gone, and with it every endpoint
		}
	}
	if len(judged) == 0 {
		b.udp = now
		return flows.Stats{}, nil
	}
	st, err := flows.Sweep(func(f flows.Flow) bool {
		serving, ours := judged[plan.Flow{Addr: f.To.Addr(), Proto: plan.UDP, Port: f.To.Port()}]
		return ours && !slices.Contains(serving, f.From)
	})
	if err != nil {
		return st, fmt.Errorf("delete stale UDP flows: %w", err) // and b.udp stays: the next sweep judges the same again
	}
	b.udp = now
	return st, nil
}
