// Package explain answers whether somebody may call somebody, by which rule of
// which object, and why others do not count; and how a Service's callers treat
// it. It compiles a snapshot by the control plane's code and asks
// internal/policy, as a sidecar does; nothing is sent. heddle policy explain
// calls it.
package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/controlplane/access"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/controlplane/traffic"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Question is what is asked.
type Question struct {
	From      string // NAMESPACE/ACCOUNT, spiffe://ID or an IP address
	To        string // NAMESPACE/POD, NAMESPACE/deploy/NAME or NAMESPACE/svc/NAME
	Namespace string // of names that say none
	Address   string // the caller's; empty: its pods'
	Port      uint16 // 0: all that are declared
	Plaintext bool   // the caller proves no identity
}

// Explainer answers about one world.
type Explainer struct {
	snap    *source.Snapshot
	world   *state.World
	access  *access.Set
	traffic *traffic.Set
	domain  spiffeid.TrustDomain
	where   map[source.Ref]string // file:line of objects, where known
}

// New compiles a world; trustDomain counts where no MeshConfig says one, and
// where tells file and line of objects that stand in files.
func New(snap *source.Snapshot, trustDomain string, where map[source.Ref]string) (*Explainer, error) {
	if snap.Mesh != nil && snap.Mesh.Spec.TrustDomain != "" {
		trustDomain = snap.Mesh.Spec.TrustDomain
	}
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		return nil, fmt.Errorf("trust domain %q: %w", trustDomain, err)
	}
	return &Explainer{snap: snap, where: where, domain: td, world: state.Build(nil, snap, state.Options{TrustDomain: td.Name()}),
		access: access.New(snap), traffic: traffic.New(&traffic.Set{}, snap)}, nil
}

// Explain answers. An error says that the question is about nobody there is.
func (e *Explainer) Explain(q Question) (*Report, error) {
	who, err := e.callers(q)
	if err != nil {
		return nil, err
	}
	if q.Address != "" {
		a, err := netip.ParseAddr(q.Address)
		if err != nil {
			return nil, fmt.Errorf("--address %s: is no IP address", q.Address)
		}
		who.addrs = []netip.Addr{a.Unmap()}
		who.notes = slices.DeleteFunc(who.notes, func(n string) bool { return n == unknownAddress })
	}
	to, err := e.called(q)
	if err != nil {
		return nil, err
	}
	r := &Report{From: who.text, Identity: who.id.String(), To: to.text, Notes: append(who.notes, to.notes...)}
	for _, a := range who.addrs {
		r.Addresses = append(r.Addresses, a.String())
	}
	for _, d := range to.doors {
		r.add(e.judge(who, d))
	}
	for _, port := range to.ports {
		r.Traffic = append(r.Traffic, e.treatment(to.service, port))
	}
	if len(r.Judged) == 0 {
		return nil, fmt.Errorf("--to %s: there is nothing to judge: %s", q.To, to.empty)
	}
	r.conclude()
	return r, nil
}
