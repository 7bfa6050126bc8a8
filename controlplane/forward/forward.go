// Package forward makes what node agents are told of Services: each Service as
// it is forwarded, without what only the mesh needs, and the list of all of
// them for one node. It is pure and joins no slices itself: controlplane/state
// does, calls it, and keeps what it made from world to world. What a node makes
// of it is controlplane/node/plan's business.
package forward

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"net/netip"
	"slices"
	"sync"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/source"
	iwire "github.com/heddle-mesh/heddle/internal/wire"
)

// Service is one Service on its way to the nodes. It is made when the first
// node asks and is carried from world to world as long as nothing that it is
// made of changes.
type Service struct {
	once sync.Once
	made *wire.NodeService // nil: nothing to forward
	hash []byte
}

// get makes the Service on first use.
func (s *Service) get(build func() *wire.NodeService) (*wire.NodeService, []byte) {
	s.once.Do(func() {
		if s.made = build(); s.made != nil {
			s.hash = iwire.Hash(s.made)
		}
	})
	return s.made, s.hash
}

// Parts are what a Service is made of. VIPs are the addresses that are its
// own, Endpoints those of both families.
type Parts struct {
	Service   *source.Service
	VIPs      []netip.Addr
	Ports     []*wire.ServicePort
	Endpoints []*wire.Endpoint
}

// Make gives the wire's form. Endpoints keep what decides over forwarding and
// lose what the mesh alone reads (who is behind them).
func Make(p Parts) *wire.NodeService {
	s := &wire.Service{Namespace: p.Service.Namespace, Name: p.Service.Name}
	for _, a := range p.VIPs {
		s.Vips = append(s.Vips, a.AsSlice())
	}
	for _, port := range p.Ports {
		s.Ports = append(s.Ports, &wire.ServicePort{Name: port.Name, Port: port.Port, Transport: port.Transport})
	}
	for _, e := range p.Endpoints {
		s.Endpoints = append(s.Endpoints, &wire.Endpoint{
			Key: e.Key, Address: e.Address, Ports: e.Ports, Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating,
			Node: e.Node, Zone: e.Zone, HintZones: e.HintZones, HintNodes: e.HintNodes,
		})
	}
	if p.Service.InternalLocal {
		s.InternalTrafficPolicy = wire.TrafficScope_TRAFFIC_SCOPE_LOCAL
	}
	return &wire.NodeService{Service: s}
}

// List is all Services of one world, made once for all nodes.
type List struct {
	once sync.Once
	all  []*wire.NodeService // in the order of compareNames
	hash []byte
}

// Item is a Service of a List and what makes it (nil result: not forwarded).
type Item struct {
	Service *Service
	Build   func() *wire.NodeService
}

// get collects the list on first use.
func (l *List) get(items func(yield func(Item) bool)) ([]*wire.NodeService, []byte) {
	l.once.Do(func() {
		type hashed struct {
			service *wire.NodeService
			hash    []byte
		}
		var list []hashed
		for it := range items {
			if s, hash := it.Service.get(it.Build); s != nil {
				list = append(list, hashed{s, hash})
			}
		}
		slices.SortFunc(list, func(a, b hashed) int { return compareNames(a.service, b.service) })
		sum := sha256.New()
		for _, h := range list {
			l.all = append(l.all, h.service)
			sum.Write(h.hash)
		}
		l.hash = sum.Sum(nil)
	})
	return l.all, l.hash
}

func compareNames(a, b *wire.NodeService) int {
	return cmp.Or(cmp.Compare(a.GetService().GetNamespace(), b.GetService().GetNamespace()),
		cmp.Compare(a.GetService().GetName(), b.GetService().GetName()))
}

// Place is what is told of the node itself, beside the Services.
type Place struct {
	Node     *source.Node // nil: not known yet
	Services []netip.Prefix
}

// For gives the whole resource of one node and its version.
func (l *List) For(p Place, items func(yield func(Item) bool)) (*wire.NodeServices, []byte) {
	all, hash := l.get(items)
	n := &wire.NodeServices{ServicePrefixes: prefixes(p.Services)}
	if p.Node != nil {
		n.Zone, n.PodPrefixes = p.Node.Zone, prefixes(p.Node.PodCIDRs)
	}
	// The list's hash stands for the list: it is the same for all nodes.
	sum := sha256.New()
	sum.Write(hash)
	sum.Write(iwire.Hash(n))
	n.Services = all
	return n, sum.Sum(nil)[:versionBytes:versionBytes]
}

// versionBytes is the length of a version, as of iwire.Hash.
const versionBytes = 16

func prefixes(list []netip.Prefix) [][]byte {
	var out [][]byte
	for _, p := range list {
		out = append(out, append(p.Addr().AsSlice(), byte(p.Bits())))
	}
	slices.SortFunc(out, bytes.Compare)
	return out
}

// Diff gives what brings a node from old to new, nil if only the whole does.
func Diff(base []byte, old, new *wire.NodeServices) *wire.NodeServicesDelta {
	if old.GetZone() != new.GetZone() || !slices.EqualFunc(old.GetPodPrefixes(), new.GetPodPrefixes(), bytes.Equal) ||
		!slices.EqualFunc(old.GetServicePrefixes(), new.GetServicePrefixes(), bytes.Equal) {
		return nil
	}
	d := &wire.NodeServicesDelta{BaseVersion: base}
	was, now := old.GetServices(), new.GetServices()
	for i, j := 0, 0; i < len(was) || j < len(now); {
		c := 1
		switch {
		case j == len(now):
			c = -1
		case i < len(was):
			c = compareNames(was[i], now[j])
		}
		switch {
		case c < 0:
			d.Removed = append(d.Removed, was[i].GetService().GetNamespace()+"/"+was[i].GetService().GetName())
			i++
		case c > 0:
			d.Upserted = append(d.Upserted, now[j])
			j++
		default:
			if was[i] != now[j] && !iwire.Equal(was[i], now[j]) {
				d.Upserted = append(d.Upserted, now[j])
			}
			i, j = i+1, j+1
		}
	}
	if len(d.Upserted) >= len(now) {
		return nil
	}
	return d
}
