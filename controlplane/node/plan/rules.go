package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/endpoint"
)

// Rules are everything that a node does for Services.
type Rules struct {
	Services map[string]Service // by namespace/name
	// Pods are the ranges of this node's pods: who calls from elsewhere gets
	// the node's own address, so that the answer comes back through us. Empty:
	// nobody can be told apart, and nobody's is rewritten but a pod's own.
	Pods []netip.Prefix
	// Ranges are the Services': an address in them that is no Service's leads
	// nowhere.
	Ranges []netip.Prefix
}

// All compiles what a node of a name is told. What cannot be understood is left
// out and told.
func All(told *wire.NodeServices, name string) (*Rules, []error) {
	n := Node{Name: name, Zone: told.GetZone()}
	r := &Rules{Services: make(map[string]Service, len(told.GetServices()))}
	var errs []error
	for _, ns := range told.GetServices() {
		s, bad := Compile(ns, n)
		r.Services[ns.GetService().GetNamespace()+"/"+ns.GetService().GetName()] = s
		errs = append(errs, bad...)
	}
	var bad []error
	r.Pods, bad = ParsePrefixes(told.GetPodPrefixes())
	errs = append(errs, bad...)
	r.Ranges, bad = ParsePrefixes(told.GetServicePrefixes())
	return r, append(errs, bad...)
}

// Sorted gives the Service's flows in order.
func (s Service) Sorted() []Flow {
	return slices.SortedFunc(maps.Keys(s.Flows), func(a, b Flow) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
}

// Packet is the first packet of a flow as it reaches the node, or leaves it.
type Packet struct {
	From netip.Addr
	To   Flow
}

// Outcome is what becomes of a Packet.
type Outcome struct {
	Fate Fate
	To   []Way // of Fate Sent: one of these, each with the same chance
}

// Fate of a packet.
type Fate uint8

// The fates.
const (
	Passed   Fate = iota // not ours: as if we were not there
	Sent                 // to an endpoint
	Rejected             // the sender is told at once
	Dropped              // silently
)

// Way is an endpoint, and whether the source is rewritten on the way there.
type Way struct {
	Endpoint   netip.AddrPort
	Masquerade bool
}

func (o Outcome) String() string {
	switch o.Fate {
	case Rejected:
		return "reject"
	case Dropped:
		return "drop"
	case Passed:
		return "pass"
	}
	var out []string
	for _, w := range o.To {
		s := w.Endpoint.String()
		if w.Masquerade {
			s += "+masq"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

// Trace says what becomes of a packet: the model that back ends are tested
// against.
func (r *Rules) Trace(p Packet) Outcome {
	for _, s := range r.Services {
		if a, ok := s.Flows[p.To]; ok {
			return r.act(a, p)
		}
	}
	for _, s := range r.Services {
		if slices.Contains(s.Addrs, p.To.Addr) {
			return Outcome{Fate: Rejected}
		}
	}
	if within(r.Ranges, p.To.Addr) {
		return Outcome{Fate: Dropped}
	}
	return Outcome{}
}

func (r *Rules) act(a Action, p Packet) Outcome {
	switch a.Verdict {
	case endpoint.Reject:
		return Outcome{Fate: Rejected}
	case endpoint.Drop:
		return Outcome{Fate: Dropped}
	}
	o := Outcome{Fate: Sent}
	stranger := slices.ContainsFunc(r.Pods, func(q netip.Prefix) bool { return q.Addr().Is4() == p.From.Is4() }) && !within(r.Pods, p.From)
	for _, e := range a.Endpoints {
		o.To = append(o.To, Way{Endpoint: e, Masquerade: stranger || e.Addr() == p.From && r.isLocal(e.Addr())})
	}
	return o
}

func (r *Rules) isLocal(a netip.Addr) bool {
	for _, s := range r.Services {
		if slices.Contains(s.Local, a) {
			return true
		}
	}
	return false
}

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// ParsePrefixes reads the wire's prefixes: an address, then one byte of length.
// A bad one is left out and told.
func ParsePrefixes(list [][]byte) ([]netip.Prefix, []error) {
	var out []netip.Prefix
	var errs []error
	for _, b := range list {
		var p netip.Prefix
		var err error = fmt.Errorf("want 4 or 16 bytes of address and one of length")
		if len(b) > 1 {
			if a, ok := netip.AddrFromSlice(b[:len(b)-1]); ok {
				p, err = a.Prefix(int(b[len(b)-1]))
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("prefix %x: %w", b, err))
			continue
		}
		out = append(out, p)
	}
	return out, errs
}
