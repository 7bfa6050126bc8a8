package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// uplink is the interface towards the backbone or the node, in the namespace
// of a node, host or pod.
const uplink = "eth0"

func (f *Fabric) makeBackbone() error {
	return f.newNS(f.BackboneNetNS(), false, func(h *netlink.Handle) error {
		_, err := addBridge(h, "backbone")
		return err
	})
}

// makeNode makes a node's namespace. Every node knows the way to every other
// node's pods from the start: routes need no living next hop.
func (f *Fabric) makeNode(n Node) error {
	err := f.newNS(f.NodeNetNS(n.Name), true, func(h *netlink.Handle) error {
		br, err := addBridge(h, "node "+n.Name)
		if err != nil {
			return err
		}
		for _, p := range n.PodCIDRs {
			if err := addAddr(h, br, netip.PrefixFrom(gateway(p), p.Bits())); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return f.join(f.NodeNetNS(n.Name), f.BackboneNetNS(), "n"+short(n.Name), func(h *netlink.Handle, up netlink.Link) error {
		for _, a := range n.Addresses {
			p, _ := prefixOf(f.cfg.Backbone, a)
			if err := addAddr(h, up, netip.PrefixFrom(a, p.Bits())); err != nil {
				return err
			}
		}
		for _, other := range f.cfg.Nodes {
			if other.Name == n.Name {
				continue
			}
			for _, p := range other.PodCIDRs {
				if err := addRoute(h, up, p, nextHop(other, p.Addr())); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// AddPod makes the namespace of a pod and joins it to its node. key names the
// pod within the lab (its UID). It returns the namespace's path.
//
// Pods have single addresses and reach everything, their neighbours too,
// through the node: so what the node does to a connection (NAT of a Service
// address) it also undoes on the way back.
func (f *Fabric) AddPod(node, key string, ips []netip.Addr) (string, error) {
	n, err := f.node(node)
	if err != nil {
		return "", err
	}
	if !nameOK.MatchString(key) {
		return "", fmt.Errorf("add pod %q: the key must be a DNS name", key)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	path := f.PodNetNS(key)
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("add pod %s: it is there already", key)
	}
	if err := f.addPod(n, key, ips); err != nil {
		return "", errors.Join(fmt.Errorf("add pod %s: %w", key, err), f.del(path))
	}
	return path, nil
}

func (f *Fabric) addPod(n Node, key string, ips []netip.Addr) error {
	path := f.PodNetNS(key)
	if err := f.newNS(path, false, nil); err != nil {
		return err
	}
	if err := f.forget(n, ips); err != nil {
		return err
	}
	if err := f.join(path, f.NodeNetNS(n.Name), "p"+short(key), func(h *netlink.Handle, up netlink.Link) error {
		for _, ip := range ips {
			if ip.Is6() && !f.ipv6 {
				continue
			}
			p, ok := prefixOf(n.PodCIDRs, ip)
			if !ok {
				return fmt.Errorf("address %s is outside the node's ranges %v", ip, n.PodCIDRs)
			}
			if ip == gateway(p) {
				return fmt.Errorf("address %s is the node's own", ip)
			}
			if err := addAddr(h, up, netip.PrefixFrom(ip, ip.BitLen())); err != nil {
				return err
			}
			gw := gateway(p)
			if err := addRoute(h, up, netip.PrefixFrom(gw, gw.BitLen()), netip.Addr{}); err != nil {
				return err
			}
			if err := addRoute(h, up, everything(ip), gw); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return f.hairpin(n, "p"+short(key))
}

// hairpin lets a pod reach itself by a Service's address, as network plugins
// do: with br_netfilter the kernel translates on the bridge, and a bridge sends
// nothing back where it came from unless told.
func (f *Fabric) hairpin(n Node, port string) error {
	return f.inside(f.NodeNetNS(n.Name), func(h *netlink.Handle) error {
		l, err := h.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find %s: %w", port, err)
		}
		if err := h.LinkSetHairpin(l, true); err != nil {
			return fmt.Errorf("set hairpin mode of %s: %w", port, err)
		}
		return nil
	})
}

// forget drops what the node learnt about earlier owners of the addresses: it
// would send to their hardware address until ARP times out.
func (f *Fabric) forget(n Node, ips []netip.Addr) error {
	return f.inside(f.NodeNetNS(n.Name), func(h *netlink.Handle) error {
		br, err := h.LinkByName(Bridge)
		if err != nil {
			return fmt.Errorf("find bridge: %w", err)
		}
		for _, ip := range ips {
			// Mostly there is none, which is what we want.
			_ = h.NeighDel(&netlink.Neigh{LinkIndex: br.Attrs().Index, IP: ip.AsSlice()})
		}
		return nil
	})
}

// DelPod takes a pod's namespace away; a pod that is not there is no error.
func (f *Fabric) DelPod(key string) error {
	if !nameOK.MatchString(key) {
		return fmt.Errorf("delete pod %q: the key must be a DNS name", key)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.del(f.PodNetNS(key)); err != nil {
		return fmt.Errorf("delete pod %s: %w", key, err)
	}
	return nil
}

// del removes the veth pair first: a process left in the namespace would keep
// it, and the address, alive.
func (f *Fabric) del(path string) error {
	if pinned(path) {
		err := f.inside(path, func(h *netlink.Handle) error {
			l, err := h.LinkByName(uplink)
			if err != nil {
				return nil // joining never got so far
			}
			return h.LinkDel(l)
		})
		if err != nil {
			return err
		}
	}
	return unpin(path)
}

// AddHost makes a host outside the cluster, reachable from nodes and pods
// (and they from it) at any addresses, such as 203.0.113.10. It returns the
// namespace's path.
func (f *Fabric) AddHost(name string, ips []netip.Addr) (string, error) {
	if !nameOK.MatchString(name) {
		return "", fmt.Errorf("add host %q: the name must be a DNS name", name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	path := f.HostNetNS(name)
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("add host %s: it is there already", name)
	}
	if err := f.addHost(name, ips); err != nil {
		return "", errors.Join(fmt.Errorf("add host %s: %w", name, err), f.del(path))
	}
	return path, nil
}

func (f *Fabric) addHost(name string, ips []netip.Addr) error {
	path := f.HostNetNS(name)
	if err := f.newNS(path, false, nil); err != nil {
		return err
	}
	if !f.ipv6 {
		ips = only4(ips, func(a netip.Addr) netip.Addr { return a })
	}
	err := f.join(path, f.BackboneNetNS(), "h"+short(name), func(h *netlink.Handle, up netlink.Link) error {
		for _, ip := range ips {
			if err := addAddr(h, up, netip.PrefixFrom(ip, ip.BitLen())); err != nil {
				return err
			}
		}
		return f.routesToNodes(h, up, ips)
	})
	if err != nil {
		return err
	}
	for _, n := range f.cfg.Nodes {
		err := f.inside(f.NodeNetNS(n.Name), func(h *netlink.Handle) error {
			up, err := h.LinkByName(uplink)
			if err != nil {
				return fmt.Errorf("node %s: %w", n.Name, err)
			}
			for _, ip := range ips {
				if nextHop(n, ip) == (netip.Addr{}) {
					continue
				}
				if err := addRoute(h, up, netip.PrefixFrom(ip, ip.BitLen()), netip.Addr{}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *Fabric) routesToNodes(h *netlink.Handle, up netlink.Link, ips []netip.Addr) error {
	families := map[bool]bool{}
	for _, ip := range ips {
		families[ip.Is4()] = true
	}
	for _, n := range f.cfg.Nodes {
		for _, a := range n.Addresses {
			if families[a.Is4()] {
				if err := addRoute(h, up, netip.PrefixFrom(a, a.BitLen()), netip.Addr{}); err != nil {
					return err
				}
			}
		}
		for _, p := range n.PodCIDRs {
			if families[p.Addr().Is4()] {
				if err := addRoute(h, up, p, nextHop(n, p.Addr())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// join makes a veth pair: uplink inside the namespace at path, and port in the
// bridge of the namespace at to. Then finish configures the uplink.
func (f *Fabric) join(path, to, port string, finish func(*netlink.Handle, netlink.Link) error) error {
	peer, err := os.Open(to)
	if err != nil {
		return fmt.Errorf("join %s: %w", port, err)
	}
	defer peer.Close()
	err = f.inside(path, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = uplink
		attrs.HardwareAddr = mac(path)
		err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: port, PeerNamespace: netlink.NsFd(peer.Fd())})
		if err != nil {
			return fmt.Errorf("make veth %s: %w", port, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = f.inside(to, func(h *netlink.Handle) error {
		br, err := h.LinkByName(Bridge)
		if err != nil {
			return fmt.Errorf("find bridge: %w", err)
		}
		l, err := h.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find %s: %w", port, err)
		}
		// A port is no host: it needs no address of its own.
		if f.ipv6 {
			if err := sysctl("net/ipv6/conf/"+port+"/disable_ipv6", "1"); err != nil {
				return err
			}
		}
		if err := h.LinkSetMaster(l, br); err != nil {
			return fmt.Errorf("join %s to the bridge: %w", port, err)
		}
		if err := h.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up: %w", port, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return f.inside(path, func(h *netlink.Handle) error {
		up, err := h.LinkByName(uplink)
		if err != nil {
			return fmt.Errorf("find uplink: %w", err)
		}
		if err := h.LinkSetUp(up); err != nil {
			return fmt.Errorf("set uplink up: %w", err)
		}
		return finish(h, up)
	})
}

// addBridge fixes the bridge's hardware address: the kernel would else change
// it with each port, and pods would send to the old one until ARP times out.
func addBridge(h *netlink.Handle, owner string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Bridge
	attrs.HardwareAddr = mac("bridge of " + owner)
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := h.LinkAdd(br); err != nil {
		return nil, fmt.Errorf("make bridge: %w", err)
	}
	if err := h.LinkSetUp(br); err != nil {
		return nil, fmt.Errorf("set bridge up: %w", err)
	}
	return br, nil
}

func addAddr(h *netlink.Handle, l netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD // usable at once
	}
	if err := h.AddrAdd(l, a); err != nil {
		return fmt.Errorf("add address %s: %w", p, err)
	}
	return nil
}

// addRoute adds a route through a next hop, or to the link itself if via is zero.
func addRoute(h *netlink.Handle, l netlink.Link, to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(to)}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := h.RouteReplace(r); err != nil {
		return fmt.Errorf("add route to %s: %w", to, err)
	}
	return nil
}

func everything(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// short makes of any name a part of an interface name (at most 15 bytes with
// one more letter); 56 bits do not meet by chance.
func short(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:7])
}

// mac is a locally administered unicast address that belongs to a name.
func mac(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

func sysctl(key, value string) error {
	if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s: %w", key, err)
	}
	return nil
}

func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }
