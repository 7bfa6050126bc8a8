package kind

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// lookAgain is how often a node's addresses are looked for.
const lookAgain = 200 * time.Millisecond

// place is where a node and its pods are in the network.
type place struct {
	name      string
	addresses []netip.Addr   // of the node, one of each family
	pods      []netip.Prefix // of its pods, one of each family
}

// Network gives pods a network: on every node a ptp interface per pod, and a
// route to the pods of each other node. With ptp every packet of a pod is
// routed by its node, so that its connection tracking sees both directions of
// a Service's connection even between two pods of one node; on a bridge that
// depends on the machine's br_netfilter.
func (c Cluster) Network(ctx context.Context) error {
	places, err := c.places(ctx)
	if err != nil {
		return err
	}
	return c.each(func(node string) error {
		script, err := networkScript(node, places)
		if err != nil {
			return err
		}
		_, err = c.Cell.Pipe(ctx, script, "docker", "exec", "-i", node, "sh", "-eu", "-s")
		return err
	})
}

// places waits until the cluster has given every node addresses and ranges.
func (c Cluster) places(ctx context.Context) ([]place, error) {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		out, err := c.Cell.Output(ctx, "kubectl", "get", "nodes", "-o", "json")
		if err != nil {
			return nil, err
		}
		places, err := parsePlaces([]byte(out))
		if err == nil && len(places) == len(nodes) {
			return places, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for %d nodes with addresses and pod ranges of both families: %d so far", len(nodes), len(places)), err)
		case <-tick.C:
		}
	}
}

// parsePlaces reads `kubectl get nodes -o json`. A node that lacks an address
// or a range of a family is an error: it is not ready to be networked.
func parsePlaces(b []byte) ([]place, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ PodCIDRs []netip.Prefix }
			Status   struct {
				Addresses []struct{ Type, Address string }
			}
		}
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("read the nodes: %w", err)
	}
	var out []place
	for _, n := range list.Items {
		p := place{name: n.Metadata.Name, pods: n.Spec.PodCIDRs}
		for _, a := range n.Status.Addresses {
			if a.Type != "InternalIP" {
				continue
			}
			addr, err := netip.ParseAddr(a.Address)
			if err != nil {
				return nil, fmt.Errorf("node %s: %w", p.name, err)
			}
			p.addresses = append(p.addresses, addr)
		}
		for _, r := range p.pods {
			if !p.via(r).IsValid() {
				return nil, fmt.Errorf("node %s has pods in %v and no address of that family", p.name, r)
			}
		}
		if len(p.pods) < 2 {
			return nil, fmt.Errorf("node %s has pod ranges %v, not one of each family", p.name, p.pods)
		}
		out = append(out, p)
	}
	return out, nil
}

// via is the node's own address of a range's family.
func (p place) via(r netip.Prefix) netip.Addr {
	for _, a := range p.addresses {
		if a.Is4() == r.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// networkScript is what a node runs.
func networkScript(node string, places []place) (string, error) {
	var b strings.Builder
	b.WriteString("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n")
	for _, p := range places {
		if p.name == node {
			conf, err := cniConfig(p)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "cat > /etc/cni/net.d/10-pods.conflist <<'JSON'\n%s\nJSON\n", conf)
			continue
		}
		for _, r := range p.pods {
			fmt.Fprintf(&b, "ip route replace %s via %s\n", r, p.via(r))
		}
	}
	return b.String(), nil
}

// cniConfig is the configuration of a node's pod network (CNI spec 1.0,
// section 1).
func cniConfig(p place) ([]byte, error) {
	type object = map[string]any
	var ranges [][]object
	var routes []object
	for _, r := range p.pods {
		all := "0.0.0.0/0"
		if r.Addr().Is6() {
			all = "::/0"
		}
		ranges = append(ranges, []object{{"subnet": r.String()}})
		routes = append(routes, object{"dst": all})
	}
	return json.Marshal(object{
		"cniVersion": "1.0.0", "name": "pods",
		"plugins": []object{
			{"type": "ptp", "ipMasq": false, "ipam": object{"type": "host-local", "ranges": ranges, "routes": routes}},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	})
}
