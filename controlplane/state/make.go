package state

import (
	"net/netip"
	"slices"

	"github.com/heddle-mesh/heddle/controlplane/forward"
	"github.com/heddle-mesh/heddle/internal/source"
)

// owner is the object that an address means: a word for its kind, and its key.
func (w *World) owner(a netip.Addr) (kind string, k source.Key) {
	if k, ok := w.vips[a]; ok {
		return "vip", k
	}
	if p := w.podAt(a); p != nil {
		return "pod", keyOfPod(p)
	}
	if k, ok := w.outerVIPs[a]; ok {
		return "outer", k
	}
	return "", source.Key{}
}

// moves finds addresses that belong to another object now. Both owners are
// made anew, and not from what they were: content that an address had before
// must come back under a newer revision than what it had meanwhile.
func (b *builder) moves() {
	for a := range b.touched {
		b.claims(b.prev.vips, b.vips, a)
		b.claims(b.prev.outerVIPs, b.outerVIPs, a)
		oldKind, oldKey := b.prev.owner(a)
		kind, key := b.owner(a)
		if oldKind == kind && oldKey == key {
			continue
		}
		b.moved[a] = true
		for _, o := range []struct {
			kind string
			key  source.Key
		}{{oldKind, oldKey}, {kind, key}} {
			switch o.kind {
			case "pod":
				b.pods[o.key] = true
			case "vip", "outer":
				b.services[o.key] = true
			}
		}
	}
}

// claims makes Services anew whose claim on an address was won or lost, also
// where the address means something else before and after.
func (b *builder) claims(old, now map[netip.Addr]source.Key, a netip.Addr) {
	o, had := old[a]
	n, has := now[a]
	if had == has && o == n {
		return
	}
	b.services[o], b.services[n] = true, true
}

func (b *builder) makeServices() {
	if len(b.services) > 0 || b.forwards == nil {
		b.forwards = &forward.List{}
	}
	var copied bool
	for k := range b.services {
		m := unshare(&b.World.services, &copied)
		old := b.prev.services[k]
		var v4, v6 *cell
		if old != nil {
			v4, v6 = old.v4, old.v6
		}
		if s := b.snap.Services[k]; s != nil {
			if slices.ContainsFunc(slices.Concat(s.ClusterIPs, outerVIPs(s)), func(a netip.Addr) bool { return b.moved[a] }) {
				v4, v6 = nil, nil
			}
			m[k] = &serviceNode{s, v4.next(b.revision), v6.next(b.revision), &forward.Service{}}
		} else {
			delete(m, k)
		}
	}
	// Pods learn the protocols of their ports from their Services.
	for k := range b.reshaped {
		for _, list := range [][]*source.EndpointSlice{b.slicesOf[k], b.prev.slicesOf[k]} {
			b.podsOf(list)
		}
	}
}

func (b *builder) podsOf(list []*source.EndpointSlice) {
	for _, s := range list {
		for i := range s.Endpoints {
			for _, p := range b.podsAt[s.Endpoints[i].Address] {
				b.pods[keyOfPod(p)] = true
			}
		}
	}
}

func (b *builder) makePods() {
	var copied bool
	for k := range b.pods {
		m := unshare(&b.World.pods, &copied)
		p := b.snap.Pods[k]
		if p == nil || over(p) {
			delete(m, k)
			continue
		}
		old := b.prev.pods[k]
		if old == nil {
			old = &podNode{}
		}
		n := &podNode{pod: p, inbound: old.inbound.next(b.revision)}
		if !p.HostNetwork {
			for _, a := range p.IPs {
				var last *cell
				for _, c := range old.workloads {
					if c.addr == a && !b.moved[a] {
						last = c.cell
					}
				}
				n.workloads = append(n.workloads, addrCell{a, last.next(b.revision)})
			}
		}
		m[k] = n
	}
}

func (b *builder) rest() {
	if b.bundle == nil || b.prev.opt.Roots != b.opt.Roots {
		b.bundle = b.bundle.next(b.revision)
	}
	if b.mesh == nil || b.prev.snap != b.snap {
		b.mesh = b.mesh.next(b.revision)
	}
	var copied bool
	for a := range b.moved {
		if kind, _ := b.owner(a); kind == "" {
			unshare(&b.left, &copied)[a] = b.revision
		}
	}
	if len(b.left) > maxLeft {
		b.left, b.base = nil, b.revision
	}
}
