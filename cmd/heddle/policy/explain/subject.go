package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/source"
)

// unknownAddress is said where nothing tells where a caller calls from.
const unknownAddress = "no pod runs as this account: its address is not known, and rules with cidrs are taken not to match (--address says one)"

// caller is who calls.
type caller struct {
	text  string
	id    spiffeid.ID  // zero: proves nothing
	addrs []netip.Addr // where it may call from; none: not known
	notes []string
}

// callers finds who is meant.
func (e *Explainer) callers(q Question) (caller, error) {
	var c caller
	if a, err := netip.ParseAddr(q.From); err == nil {
		c = e.address(a.Unmap())
	} else if strings.HasPrefix(q.From, "spiffe:") {
		id, err := spiffeid.FromString(q.From)
		if err != nil {
			return c, fmt.Errorf("--from %s: %w (spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT)", q.From, err)
		}
		c = caller{text: q.From, id: id}
		if ns, sa, ok := e.account(id); ok {
			c.pods(e.podsOf(ns, sa), true)
		}
	} else {
		var err error
		if c, err = e.serviceAccount(q); err != nil {
			return c, err
		}
	}
	if q.Plaintext && !c.id.IsZero() {
		c.text += " in plaintext"
		c.id, c.notes = spiffeid.ID{}, nil
	}
	return c, nil
}

// account reads the service account of an identity of our own trust domain.
func (e *Explainer) account(id spiffeid.ID) (ns, sa string, ok bool) {
	part := strings.Split(id.Path(), "/")
	if id.TrustDomain() != e.domain || len(part) != 5 || part[1] != "ns" || part[3] != "sa" {
		return "", "", false
	}
	return part[2], part[4], true
}

func (e *Explainer) identity(p *source.Pod) spiffeid.ID {
	id, err := spiffeid.FromSegments(e.domain, "ns", p.Namespace, "sa", p.ServiceAccount)
	if err != nil {
		return spiffeid.ID{} // such a pod gets no certificate
	}
	return id
}

// address means the pod that has it, and the pod's identity if it has a
// sidecar.
func (e *Explainer) address(a netip.Addr) caller {
	c := caller{text: a.String(), addrs: []netip.Addr{a}}
	if p := e.podAt(a); p != nil {
		c.text = "pod " + p.Namespace + "/" + p.Name + " (" + a.String() + ")"
		if p.Meshed {
			c.id = e.identity(p)
		} else {
			c.notes = append(c.notes, "the caller has no sidecar and speaks plaintext")
		}
		return c
	}
	for _, n := range e.snap.Nodes {
		if slices.Contains(n.Addresses, a) {
			c.text = "node " + n.Name + " (" + a.String() + ")"
		}
	}
	return c
}

func (e *Explainer) serviceAccount(q Question) (caller, error) {
	ns, name, err := twoParts(q.From, q.Namespace)
	if err != nil {
		return caller{}, fmt.Errorf("--from %s: %w (NAMESPACE/ACCOUNT, spiffe://ID or an IP address)", q.From, err)
	}
	pods := e.podsOf(ns, name)
	if e.snap.ServiceAccounts[source.Key{Namespace: ns, Name: name}] == nil && len(pods) == 0 {
		if p := e.snap.Pods[source.Key{Namespace: ns, Name: name}]; p != nil {
			return caller{}, fmt.Errorf("--from %s: is a pod; it runs as --from %s/%s", q.From, p.Namespace, p.ServiceAccount)
		}
		return caller{}, fmt.Errorf("--from %s: %w", q.From, e.absent("ServiceAccount", ns, name))
	}
	id, err := spiffeid.FromSegments(e.domain, "ns", ns, "sa", name)
	if err != nil {
		return caller{}, fmt.Errorf("--from %s: %w", q.From, err)
	}
	c := caller{text: id.String(), id: id}
	c.pods(pods, false)
	return c, nil
}

// pods adds where the pods of an account call from. Where the identity itself
// was named it is taken as proven, whatever the pods are.
func (c *caller) pods(list []*source.Pod, named bool) {
	bare := 0
	for _, p := range list {
		if p.HostNetwork || !p.Meshed {
			bare++
		}
		c.addrs = append(c.addrs, p.IPs...)
	}
	slices.SortFunc(c.addrs, netip.Addr.Compare)
	c.addrs = slices.Compact(c.addrs)
	switch {
	case len(list) == 0:
		c.notes = append(c.notes, unknownAddress)
	case bare == len(list) && named:
		c.notes = append(c.notes, "no pod of this account has a sidecar: as they are, they prove no identity")
	case bare == len(list):
		c.id = spiffeid.ID{}
		c.notes = append(c.notes, "no pod of this account has a sidecar: it speaks plaintext and proves no identity")
	case bare > 0:
		c.notes = append(c.notes, fmt.Sprintf("%d of the %d pods of this account have no sidecar and speak plaintext: --plaintext asks for those", bare, len(list)))
	}
}

func (e *Explainer) podsOf(ns, account string) []*source.Pod {
	var out []*source.Pod
	for _, p := range e.live() {
		if p.Namespace == ns && p.ServiceAccount == account {
			out = append(out, p)
		}
	}
	return out
}

// live are the pods that are not over, by name.
func (e *Explainer) live() []*source.Pod {
	var out []*source.Pod
	for _, p := range e.snap.Pods {
		if p.Phase != "Succeeded" && p.Phase != "Failed" {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *source.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func twoParts(s, namespace string) (ns, name string, err error) {
	ns, name, two := strings.Cut(s, "/")
	if !two {
		ns, name = namespace, ns
	}
	if ns == "" || name == "" || strings.Contains(name, "/") {
		return "", "", errors.New("is no name")
	}
	return ns, name, nil
}

// absent says that there is no such thing, and what there is.
func (e *Explainer) absent(kind, ns, name string) error {
	var names, elsewhere []string
	spaces := map[string]bool{}
	for _, k := range e.names(kind) {
		spaces[k.Namespace] = true
		switch {
		case k.Namespace == ns:
			names = append(names, k.Name)
		case k.Name == name:
			elsewhere = append(elsewhere, k.Namespace)
		}
	}
	for n := range e.snap.Namespaces {
		spaces[n] = true
	}
	switch {
	case len(elsewhere) > 0:
		slices.Sort(elsewhere)
		elsewhere = slices.Compact(elsewhere)
		return fmt.Errorf("there is no %s %s/%s, but one in %s", kind, ns, name, some(elsewhere))
	case !spaces[ns]:
		var all []string
		for n := range spaces {
			all = append(all, n)
		}
		return fmt.Errorf("there is no namespace %s%s", ns, Near(ns, all))
	}
	return fmt.Errorf("there is no %s %s in namespace %s%s", kind, name, ns, Near(name, names))
}

func (e *Explainer) names(kind string) (out []source.Key) {
	switch kind {
	case "ServiceAccount":
		for k := range e.snap.ServiceAccounts {
			out = append(out, k)
		}
		for _, p := range e.live() {
			out = append(out, source.Key{Namespace: p.Namespace, Name: p.ServiceAccount})
		}
	case "Service":
		for k := range e.snap.Services {
			out = append(out, k)
		}
	case "Deployment":
		for _, p := range e.live() {
			if name := deployment(p); name != "" {
				out = append(out, source.Key{Namespace: p.Namespace, Name: name})
			}
		}
	default:
		for _, p := range e.live() {
			out = append(out, source.Key{Namespace: p.Namespace, Name: p.Name})
		}
	}
	return out
}
