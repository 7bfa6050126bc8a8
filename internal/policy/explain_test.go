package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/api/wire"
)

func from(a wire.AccessRule_Action, source string, r *wire.AccessRule) *wire.AccessRule {
	r.Action, r.Source = a, source
	return r
}

func TestExplain(t *testing.T) {
	addr := netip.MustParseAddr("10.1.2.3")
	tests := []struct {
		name string
		p    *wire.InboundPolicy
		who  Caller
		want string
	}{
		{"nothing said", &wire.InboundPolicy{Mode: 1}, Caller{id(web), addr}, "allow"},
		{"by an allow", rules(from(A, "one", &wire.AccessRule{Ports: []uint32{81, 82}}), from(A, "two", &wire.AccessRule{})), Caller{id(web), addr},
			"allow by 1\n one allow - is for ports 81, 82\n two allow + anybody"},
		{"by a deny", rules(from(A, "one", &wire.AccessRule{}), from(D, "two", &wire.AccessRule{Namespaces: []string{"shop"}})), Caller{id(web), addr},
			"access_denied by 1\n one allow + anybody\n two deny + " + web},
		{"not covered", rules(from(A, "K/a/b#0", &wire.AccessRule{Identities: []string{other, "spiffe://mesh.test/ns/x/*"}})), Caller{id(web), addr},
			"access_denied by -1\n K/a/b#0 allow - is for identities " + other + ", spiffe://mesh.test/ns/x/*"},
		{"plaintext", rules(from(A, "one", &wire.AccessRule{Namespaces: []string{"shop"}}), from(D, "two", &wire.AccessRule{Namespaces: []string{"no"}})), Caller{Addr: addr},
			"access_denied by 1\n one allow - wants a proven identity\n two deny + no identity is proven, so nothing shows that this deny means others"},
		{"address", rules(from(A, "one", &wire.AccessRule{Prefixes: [][]byte{prefix("10.2.0.0/16")}}), from(A, "two", &wire.AccessRule{Prefixes: [][]byte{prefix("10.1.0.0/16")}})), Caller{id(web), addr},
			"allow by 1\n one allow - is for address 10.2.0.0/16, not 10.1.2.3\n two allow + address 10.1.2.3"},
		{"address not known", rules(from(A, "one", &wire.AccessRule{Prefixes: [][]byte{prefix("10.2.0.0/16")}})), Caller{ID: id(web)},
			"access_denied by -1\n one allow - is for address 10.2.0.0/16, and the caller's address is not known"},
		{"strict", &wire.InboundPolicy{Mode: 2, Rules: []*wire.AccessRule{rw(A, &wire.AccessRule{})}}, Caller{Addr: addr}, "plaintext_refused"},
		{"broken", &wire.InboundPolicy{Mode: 1, Broken: []string{"x"}}, Caller{id(web), addr}, "access_denied"},
		{"audit", rules(from(L, "l", &wire.AccessRule{}), from(A, "l", &wire.AccessRule{})), Caller{id(web), addr}, "allow by 1\n l audit + anybody\n l allow + anybody"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := Explain(Compile(tt.p, td), tt.who, Request{Port: 80})
			got := string(e.Reason)
			if e.Allow {
				got = "allow"
			}
			if len(e.Rules) > 0 {
				got += fmt.Sprintf(" by %d", e.By)
			}
			for _, r := range e.Rules {
				got += fmt.Sprintf("\n %s %s %s %s", r.Source, r.Action, map[bool]string{true: "+", false: "-"}[r.Matches], r.Why)
			}
			if got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// Over many random policies and callers, an explanation never says another
// thing than the decision, and the rule it names is one that matches and could
// have decided it.
func TestExplainAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	pick := func(list ...string) []string {
		var out []string
		for _, s := range list {
			if r.IntN(4) == 0 {
				out = append(out, s)
			}
		}
		return out
	}
	for range 20_000 {
		p := &wire.InboundPolicy{Mode: wire.MtlsMode(r.IntN(3)), Selected: r.IntN(2) == 0}
		for i := range r.IntN(5) {
			wr := &wire.AccessRule{Source: fmt.Sprintf("K/n/p#%d", i/2), Action: wire.AccessRule_Action(r.IntN(4)), AnyAuthenticated: r.IntN(5) == 0,
				Identities: pick(web, other, alien, "spiffe://mesh.test/ns/shop/sa/*"), Namespaces: pick("shop", "other")}
			for _, s := range pick("10.1.0.0/16", "0.0.0.0/0", "fd00::/8") {
				wr.Prefixes = append(wr.Prefixes, prefix(s))
			}
			if r.IntN(3) == 0 {
				wr.Ports = []uint32{uint32(80 + r.IntN(2))}
			}
			wr.Methods = pick("GET")
			p.Rules = append(p.Rules, wr)
		}
		if r.IntN(10) == 0 {
			p.Broken = []string{"K/n/b"}
		}
		if r.IntN(3) == 0 {
			p.NodeAddresses = [][]byte{netip.MustParseAddr("10.9.0.1").AsSlice(), netip.MustParseAddr("fd00::1").AsSlice()}
			p.Probes = []*wire.Probe{{Port: 80, Path: "/healthz"}, {Port: 81}}
		}
		c := Compile(p, td)
		who := Caller{ID: id([]string{"", web, other, alien}[r.IntN(4)])}
		if a := []string{"", "10.1.2.3", "10.9.0.1", "fd00::1", "::ffff:10.1.2.3"}[r.IntN(5)]; a != "" {
			who.Addr = netip.MustParseAddr(a)
		}
		req := Request{Port: uint16(80 + r.IntN(2)), Path: []string{"", "/healthz", "/x"}[r.IntN(3)]}
		e := Explain(c, who, req)
		if d := Decide(c, who, req); e.Decision != d {
			t.Fatalf("%v of %+v %+v: explained %+v, decided %+v", p, who, req, e.Decision, d)
		}
		matching := 0
		for _, j := range e.Rules {
			if j.Why == "" {
				t.Fatalf("no reason in %+v of %v", j, p)
			}
			if j.Matches && j.Action != "audit" {
				matching++
			}
		}
		switch {
		case e.By >= 0:
			if by := e.Rules[e.By]; !by.Matches || by.Source != e.Source || (by.Action == "allow") != e.Allow {
				t.Fatalf("%+v is said to have decided %+v of %v", by, e.Decision, p)
			}
		case len(e.Rules) > 0 && !e.ProbeOnly && (e.Allow && matching > 0 || !e.Allow && !strings.HasPrefix(e.Source, "no rule allows") && e.Source != ""):
			t.Fatalf("nothing is said to have decided %+v of %v", e, p)
		}
	}
}
