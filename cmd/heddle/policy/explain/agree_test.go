package explain

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	decide "github.com/heddle-mesh/heddle/internal/policy"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// dice makes random worlds of few names, so that they meet.
type dice struct{ *rand.Rand }

func one[T any](d dice, list ...T) T { return list[d.IntN(len(list))] }

func several[T any](d dice, list ...T) []T {
	var out []T
	for _, v := range list {
		if d.IntN(3) == 0 {
			out = append(out, v)
		}
	}
	return out
}

func (d dice) policy(i int) *v1alpha1.AccessPolicy {
	p := &v1alpha1.AccessPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: one(d, "shop", "shop", "admin"), Name: fmt.Sprint("p", i)}}
	if d.IntN(2) == 0 {
		p.Spec.Selector = map[string]string{"app": one(d, "web", "orders")}
	}
	if d.IntN(3) == 0 {
		p.Spec.MTLS = &v1alpha1.MTLSRule{Mode: one(d, v1alpha1.MTLSStrict, v1alpha1.MTLSPermissive), Ports: several[uint16](d, 80, 90)}
	}
	for range d.IntN(4) {
		r := v1alpha1.AccessRule{Action: one(d, v1alpha1.Allow, v1alpha1.Allow, v1alpha1.Deny, v1alpha1.Audit), Ports: several[uint16](d, 80, 90)}
		for range d.IntN(3) {
			f := v1alpha1.AccessFrom{Namespaces: several(d, "shop", "admin"), CIDRs: several(d, "10.1.0.5/32", "10.0.0.0/8", "fd00::/8"),
				Identities: several(d, "spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/shop/*", "spiffe://other.test/ns/shop/sa/web")}
			if len(f.Namespaces)+len(f.CIDRs)+len(f.Identities) > 0 || d.IntN(20) == 0 { // naming nobody is a mistake
				r.From = append(r.From, f)
			}
		}
		if d.IntN(40) == 0 {
			r.Action = "alow"
		}
		p.Spec.Rules = append(p.Spec.Rules, r)
	}
	return p
}

func (d dice) world() *source.Snapshot {
	s := &source.Snapshot{Revision: 1, Pods: map[source.Key]*source.Pod{}, AccessPolicies: map[source.Key]*v1alpha1.AccessPolicy{},
		Nodes: map[string]*source.Node{"n": {Name: "n", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.1")}}}}
	for i, app := range []string{"web", "orders", "other"} {
		p := &source.Pod{Namespace: "shop", Name: app, UID: app, ServiceAccount: app, Labels: map[string]string{"app": app}, Phase: "Running", Node: "n",
			Meshed: d.IntN(8) > 0, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(5 + i)})}}
		if d.IntN(2) == 0 {
			p.Probes = []source.Probe{{Port: 80, Path: "/healthz"}}
		}
		s.Pods[source.Key{Namespace: "shop", Name: app}] = p
	}
	for i := range d.IntN(5) {
		p := d.policy(i)
		s.AccessPolicies[source.Key{Namespace: p.Namespace, Name: p.Name}] = p
	}
	if d.IntN(2) == 0 {
		s.Mesh = &v1alpha1.MeshConfig{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.MeshConfigSpec{MTLS: one(d, "", v1alpha1.MTLSStrict, v1alpha1.MTLSPermissive)}}
	}
	return s
}

// byTheBook judges as docs/policy.md reads, from the policies themselves, with
// nothing of the compiler's or of Decide's.
func byTheBook(s *source.Snapshot, pod *source.Pod, port uint16, id string, addr netip.Addr) string {
	answer := func() string {
		var mine []*v1alpha1.AccessPolicy
		for _, p := range s.AccessPolicies {
			if p.Namespace == pod.Namespace && (p.Spec.Selector == nil || p.Spec.Selector["app"] == pod.Labels["app"]) {
				mine = append(mine, p)
			}
		}
		for _, p := range mine {
			if len(p.Validate()) > 0 {
				return "access_denied"
			}
		}
		if id == "" && bookMode(s, mine, port) == v1alpha1.MTLSStrict {
			return "plaintext_refused"
		}
		allow, selected := false, false
		for _, p := range mine {
			for _, r := range p.Spec.Rules {
				if r.Action == v1alpha1.Audit {
					continue
				}
				selected = true
				if len(r.Ports) > 0 && !slices.Contains(r.Ports, port) {
					continue
				}
				for _, f := range append(r.From, v1alpha1.AccessFrom{})[:max(1, len(r.From))] {
					named := len(f.Identities)+len(f.Namespaces) > 0
					if len(f.CIDRs) > 0 && !slices.ContainsFunc(f.CIDRs, func(c string) bool { return netip.MustParsePrefix(c).Contains(addr) }) {
						continue
					}
					matches := (len(f.Identities) == 0 || slices.ContainsFunc(f.Identities, func(want string) bool {
						base, star := strings.CutSuffix(want, "*")
						return id == want || star && strings.HasPrefix(id, base)
					})) && (len(f.Namespaces) == 0 || slices.ContainsFunc(f.Namespaces, func(ns string) bool {
						return strings.HasPrefix(id, "spiffe://cluster.local/ns/"+ns+"/")
					}))
					switch {
					case r.Action == v1alpha1.Deny && (matches || named && id == ""):
						return "access_denied"
					case r.Action == v1alpha1.Allow && matches:
						allow = true
					}
				}
			}
		}
		if selected && !allow {
			return "access_denied"
		}
		return Allowed
	}()
	if answer != Allowed && id == "" && addr == s.Nodes["n"].Addresses[0] && port == 80 && len(pod.Probes) > 0 {
		return probeOnly
	}
	return answer
}

func bookMode(s *source.Snapshot, mine []*v1alpha1.AccessPolicy, port uint16) v1alpha1.MTLSMode {
	best, mode := 0, v1alpha1.MTLSPermissive
	if s.Mesh != nil && s.Mesh.Spec.MTLS != "" {
		mode = s.Mesh.Spec.MTLS
	}
	for _, p := range mine {
		m := p.Spec.MTLS
		if m == nil || len(m.Ports) > 0 && !slices.Contains(m.Ports, port) {
			continue
		}
		rank := 1
		if len(m.Ports) > 0 {
			rank += 2
		}
		if len(p.Spec.Selector) > 0 {
			rank++
		}
		if rank > best || rank == best && m.Mode == v1alpha1.MTLSStrict {
			best, mode = rank, m.Mode
		}
	}
	return mode
}

// Over random policies and callers, explain, a sidecar that got the policy over
// the wire, and the rules as the documentation has them say the same, each
// computed by itself; and the rule that explain names exists.
func TestAgree(t *testing.T) {
	d := dice{rand.New(rand.NewPCG(4, 6))}
	td := spiffeid.RequireTrustDomainFromString("cluster.local")
	verdicts := map[string]int{}
	for range 3000 {
		snap := d.world()
		e, err := New(snap, td.Name(), nil)
		if err != nil {
			t.Fatal(err)
		}
		pod := snap.Pods[source.Key{Namespace: "shop", Name: one(d, "web", "orders", "other")}]
		port := one[uint16](d, 80, 90)
		from := one(d, "spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/admin/sa/x", "spiffe://other.test/ns/shop/sa/web", "10.9.0.1", "10.200.0.1", "fd00::7")
		q := Question{From: from, To: "shop/" + pod.Name, Port: port}
		id, addr := "", netip.Addr{}
		if strings.HasPrefix(from, "spiffe:") {
			id, addr = from, one(d, netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd00::5"))
			q.Address = addr.String()
		} else {
			addr = netip.MustParseAddr(from)
		}
		r, err := e.Explain(q)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		j := r.Judged[0]
		got := j.Verdict
		if got == denied {
			got = j.Reason
		}
		verdicts[got]++
		if !pod.Meshed {
			if j.Enforced || got != Allowed {
				t.Fatalf("a pod without a sidecar: %+v", j)
			}
			continue
		}
		if want := byTheBook(snap, pod, port, id, addr); got != want {
			t.Fatalf("%+v\n%s\nexplain says %s, the book %s", q, r.Text(), got, want)
		}
		// What the pod's own sidecar would say, of a world built by another replica.
		w := state.Build(nil, snap, state.Options{TrustDomain: td.Name()})
		res := w.Resource("inbound", state.Peer{Namespace: pod.Namespace, ServiceAccount: pod.ServiceAccount, PodUID: pod.UID})
		sent, err := wire.Marshal(res.Update.GetInbound())
		if err != nil {
			t.Fatal(err)
		}
		var came pb.InboundPolicy
		if err := wire.Unmarshal(sent, &came); err != nil {
			t.Fatal(err)
		}
		who := decide.Caller{Addr: addr}
		if id != "" {
			who.ID = spiffeid.RequireFromString(id)
		}
		x := decide.Decide(decide.Compile(&came, td), who, decide.Request{Port: port})
		if x.Allow != (got == Allowed || got == probeOnly) || x.ProbeOnly != (got == probeOnly) || string(x.Reason) != j.Reason {
			t.Fatalf("%+v: explain says %+v, the sidecar %+v", q, j, x)
		}
		if strings.HasPrefix(j.By, "AccessPolicy ") {
			ref := strings.Fields(j.By)[1]
			ns, name, _ := strings.Cut(ref, "/")
			if snap.AccessPolicies[source.Key{Namespace: ns, Name: name}] == nil {
				t.Fatalf("explain names %s, which is not there", j.By)
			}
		}
	}
	for _, v := range []string{Allowed, "access_denied", "plaintext_refused", probeOnly} {
		if verdicts[v] < 20 {
			t.Errorf("only %d times %s: the worlds are too tame", verdicts[v], v)
		}
	}
	t.Log(verdicts)
}
