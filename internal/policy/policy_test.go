package policy

import (
	"net/netip"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
)

var td = spiffeid.RequireTrustDomainFromString("mesh.test")

func id(s string) spiffeid.ID {
	if s == "" {
		return spiffeid.ID{}
	}
	return spiffeid.RequireFromString(s)
}

const (
	web   = "spiffe://mesh.test/ns/shop/sa/web"
	web2  = "spiffe://mesh.test/ns/shop/sa/web2"
	other = "spiffe://mesh.test/ns/other/sa/web"
	alien = "spiffe://alien.test/ns/shop/sa/web"
)

func prefix(s string) []byte {
	p := netip.MustParsePrefix(s)
	return append(p.Addr().AsSlice(), byte(p.Bits()))
}

func rules(rs ...*wire.AccessRule) *wire.InboundPolicy {
	return &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_PERMISSIVE, Selected: true, Rules: rs}
}

func rw(a wire.AccessRule_Action, r *wire.AccessRule) *wire.AccessRule {
	r.Action, r.Source = a, a.String()[len("ACTION_"):]
	return r
}

const (
	A = wire.AccessRule_ACTION_ALLOW
	D = wire.AccessRule_ACTION_DENY
	L = wire.AccessRule_ACTION_AUDIT
)

// TestDecide is the truth table of access: want is "allow", "probe" or the
// reason of the refusal, then the rule's source.
func TestDecide(t *testing.T) {
	permissive := &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_PERMISSIVE}
	strict := &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT}
	probes := func(p *wire.InboundPolicy) *wire.InboundPolicy {
		p.Probes = []*wire.Probe{{Port: 80, Path: "/healthz"}, {Port: 81}}
		p.NodeAddresses = [][]byte{netip.MustParseAddr("10.9.0.1").AsSlice(), netip.MustParseAddr("fd00::1").AsSlice()}
		return p
	}
	type w struct {
		id, addr string
		port     uint16
		path     string
	}
	tests := []struct {
		name string
		p    *wire.InboundPolicy
		who  w
		want string
	}{
		{"nil policy", nil, w{id: web, port: 80}, "access_denied no policy"},
		{"mode not said is strict", &wire.InboundPolicy{}, w{port: 80}, "plaintext_refused "},
		{"mode not known is strict", &wire.InboundPolicy{Mode: 9}, w{port: 80}, "plaintext_refused "},
		{"permissive plaintext", permissive, w{port: 80}, "allow "},
		{"strict plaintext", strict, w{port: 80}, "plaintext_refused "},
		{"strict identity", strict, w{id: web, port: 80}, "allow "},
		{"strict port of permissive pod", &wire.InboundPolicy{Mode: 1, Ports: []*wire.PortPolicy{{Port: 80, Mode: 2}}}, w{port: 80}, "plaintext_refused "},
		{"other port of it", &wire.InboundPolicy{Mode: 1, Ports: []*wire.PortPolicy{{Port: 80, Mode: 2}}}, w{port: 81}, "allow "},
		{"permissive port of strict pod", &wire.InboundPolicy{Mode: 2, Ports: []*wire.PortPolicy{{Port: 80, Mode: 1}}}, w{port: 80}, "allow "},
		{"port said twice is strict", &wire.InboundPolicy{Mode: 1, Ports: []*wire.PortPolicy{{Port: 80, Mode: 2}, {Port: 80, Mode: 1}}}, w{port: 80}, "plaintext_refused "},

		{"selected, no rule", rules(), w{id: web, port: 80}, "access_denied "},
		{"policies that do not allow are named once, audit never", rules(&wire.AccessRule{Action: A, Source: "p/a#0", Ports: []uint32{1}}, &wire.AccessRule{Action: A, Source: "p/a#1", Ports: []uint32{1}},
			&wire.AccessRule{Action: L, Source: "p/l#0"}, &wire.AccessRule{Action: D, Source: "p/b#0", Ports: []uint32{1}}), w{id: web, port: 80}, "access_denied no rule allows: p/a, p/b p/l#0"},
		{"a few of many are named", rules(&wire.AccessRule{Action: A, Source: "1", Ports: []uint32{1}}, &wire.AccessRule{Action: A, Source: "2", Ports: []uint32{1}}, &wire.AccessRule{Action: A, Source: "3", Ports: []uint32{1}},
			&wire.AccessRule{Action: A, Source: "4", Ports: []uint32{1}}, &wire.AccessRule{Action: A, Source: "5", Ports: []uint32{1}}), w{id: web, port: 80}, "access_denied no rule allows: 1, 2, 3 and 2 more"},
		{"rules select though the flag is missing", &wire.InboundPolicy{Mode: 1, Rules: []*wire.AccessRule{rw(A, &wire.AccessRule{Ports: []uint32{1}})}}, w{id: web, port: 80}, "access_denied no rule allows: ALLOW"},
		{"audit alone does not select", &wire.InboundPolicy{Mode: 1, Rules: []*wire.AccessRule{rw(L, &wire.AccessRule{})}}, w{port: 80}, "allow  AUDIT"},
		{"allow all", rules(rw(A, &wire.AccessRule{})), w{port: 80}, "allow ALLOW"},
		{"exact identity", rules(rw(A, &wire.AccessRule{Identities: []string{web}})), w{id: web, port: 80}, "allow ALLOW"},
		{"longer identity", rules(rw(A, &wire.AccessRule{Identities: []string{web}})), w{id: web2, port: 80}, "access_denied no rule allows: ALLOW"},
		{"allow of an identity, plaintext", rules(rw(A, &wire.AccessRule{Identities: []string{web}})), w{port: 80}, "access_denied no rule allows: ALLOW"},
		{"star", rules(rw(A, &wire.AccessRule{Identities: []string{"spiffe://mesh.test/ns/shop/sa/*"}})), w{id: web, port: 80}, "allow ALLOW"},
		{"star of more segments", rules(rw(A, &wire.AccessRule{Identities: []string{"spiffe://mesh.test/ns/shop/*"}})), w{id: web, port: 80}, "allow ALLOW"},
		{"star, other namespace", rules(rw(A, &wire.AccessRule{Identities: []string{"spiffe://mesh.test/ns/shop/sa/*"}})), w{id: other, port: 80}, "access_denied no rule allows: ALLOW"},
		{"star, other trust domain", rules(rw(A, &wire.AccessRule{Identities: []string{"spiffe://mesh.test/*"}})), w{id: alien, port: 80}, "access_denied no rule allows: ALLOW"},
		{"star covers no shorter name", rules(rw(A, &wire.AccessRule{Identities: []string{web + "/*"}})), w{id: web, port: 80}, "access_denied no rule allows: ALLOW"},
		{"namespace", rules(rw(A, &wire.AccessRule{Namespaces: []string{"shop"}})), w{id: web, port: 80}, "allow ALLOW"},
		{"namespace is a whole segment", rules(rw(A, &wire.AccessRule{Namespaces: []string{"sho"}})), w{id: web, port: 80}, "access_denied no rule allows: ALLOW"},
		{"namespace of another trust domain", rules(rw(A, &wire.AccessRule{Namespaces: []string{"shop"}})), w{id: alien, port: 80}, "access_denied no rule allows: ALLOW"},
		{"identity and namespace must both match", rules(rw(A, &wire.AccessRule{Identities: []string{web}, Namespaces: []string{"other"}})), w{id: web, port: 80}, "access_denied no rule allows: ALLOW"},
		{"any authenticated, identity", rules(rw(A, &wire.AccessRule{AnyAuthenticated: true})), w{id: alien, port: 80}, "allow ALLOW"},
		{"any authenticated, plaintext", rules(rw(A, &wire.AccessRule{AnyAuthenticated: true})), w{port: 80}, "access_denied no rule allows: ALLOW"},
		{"cidr", rules(rw(A, &wire.AccessRule{Prefixes: [][]byte{prefix("10.1.0.0/16")}})), w{addr: "10.1.2.3", port: 80}, "allow ALLOW"},
		{"cidr, mapped address", rules(rw(A, &wire.AccessRule{Prefixes: [][]byte{prefix("10.1.0.0/16")}})), w{addr: "::ffff:10.1.2.3", port: 80}, "allow ALLOW"},
		{"cidr outside", rules(rw(A, &wire.AccessRule{Prefixes: [][]byte{prefix("10.1.0.0/16")}})), w{addr: "10.2.2.3", port: 80}, "access_denied no rule allows: ALLOW"},
		{"cidr, no address", rules(rw(A, &wire.AccessRule{Prefixes: [][]byte{prefix("0.0.0.0/0")}})), w{port: 80}, "access_denied no rule allows: ALLOW"},
		{"cidr v6", rules(rw(A, &wire.AccessRule{Prefixes: [][]byte{prefix("fd00::/8")}})), w{addr: "fd01::9", port: 80}, "allow ALLOW"},
		{"port", rules(rw(A, &wire.AccessRule{Ports: []uint32{80}})), w{port: 81}, "access_denied no rule allows: ALLOW"},
		{"deny after allow", rules(rw(A, &wire.AccessRule{}), rw(D, &wire.AccessRule{Namespaces: []string{"shop"}})), w{id: web, port: 80}, "access_denied DENY"},
		{"deny of others", rules(rw(A, &wire.AccessRule{}), rw(D, &wire.AccessRule{Namespaces: []string{"other"}})), w{id: web, port: 80}, "allow ALLOW"},
		{"deny of an identity means the unproven too", rules(rw(A, &wire.AccessRule{}), rw(D, &wire.AccessRule{Identities: []string{web}})), w{port: 80}, "access_denied DENY"},
		{"deny of an identity on another port", rules(rw(A, &wire.AccessRule{}), rw(D, &wire.AccessRule{Identities: []string{web}, Ports: []uint32{81}})), w{port: 80}, "allow ALLOW"},
		{"action not said denies", rules(rw(A, &wire.AccessRule{}), rw(0, &wire.AccessRule{Source: "x"})), w{id: web, port: 80}, "access_denied UNSPECIFIED"},
		{"audit beside allow", rules(rw(L, &wire.AccessRule{}), rw(A, &wire.AccessRule{})), w{id: web, port: 80}, "allow ALLOW AUDIT"},
		{"allow of methods is not judged yet", rules(rw(A, &wire.AccessRule{Methods: []string{"GET"}})), w{id: web, port: 80}, "access_denied no rule allows: ALLOW"},
		{"deny of methods neither", rules(rw(A, &wire.AccessRule{}), rw(D, &wire.AccessRule{Methods: []string{"GET"}})), w{id: web, port: 80}, "access_denied DENY"},

		{"broken", &wire.InboundPolicy{Mode: 1, Broken: []string{"AccessPolicy/a/b"}}, w{id: web, port: 80}, "access_denied AccessPolicy/a/b"},
		{"bad identity", rules(rw(A, &wire.AccessRule{}), rw(D, &wire.AccessRule{Identities: []string{"web"}})), w{id: web, port: 80}, `access_denied DENY: identity "web": scheme is missing or invalid`},
		{"star in the middle", rules(rw(A, &wire.AccessRule{Identities: []string{"spiffe://mesh.test/*/sa/web"}})), w{id: web, port: 80}, `access_denied ALLOW: identity "spiffe://mesh.test/*/sa/web": path segment characters are limited to letters, numbers, dots, dashes, and underscores`},
		{"bad prefix", rules(rw(A, &wire.AccessRule{Prefixes: [][]byte{{1, 2, 3}}})), w{id: web, port: 80}, "access_denied ALLOW: prefix 010203 is none"},
		{"prefix too long", rules(rw(A, &wire.AccessRule{Prefixes: [][]byte{{1, 2, 3, 4, 33}}})), w{id: web, port: 80}, "access_denied ALLOW: prefix 0102030421 is none"},
		{"bad port", rules(rw(A, &wire.AccessRule{Ports: []uint32{70000}})), w{id: web, port: 80}, "access_denied ALLOW: port 70000 is none"},
		{"bad namespace", rules(rw(A, &wire.AccessRule{Namespaces: []string{"shop/sa"}})), w{id: web, port: 80}, `access_denied ALLOW: namespace "shop/sa" is not a name`},

		{"probe connects", probes(&wire.InboundPolicy{Mode: 2}), w{addr: "10.9.0.1", port: 80}, "probe "},
		{"probe over v6", probes(&wire.InboundPolicy{Mode: 2}), w{addr: "fd00::1", port: 80}, "probe "},
		{"probe asks its path", probes(&wire.InboundPolicy{Mode: 2}), w{addr: "10.9.0.1", port: 80, path: "/healthz"}, "probe "},
		{"probe asks more", probes(&wire.InboundPolicy{Mode: 2}), w{addr: "10.9.0.1", port: 80, path: "/healthz/admin"}, "plaintext_refused "},
		{"a TCP probe asks nothing", probes(&wire.InboundPolicy{Mode: 2}), w{addr: "10.9.0.1", port: 81, path: "/"}, "plaintext_refused "},
		{"not a probed port", probes(&wire.InboundPolicy{Mode: 2}), w{addr: "10.9.0.1", port: 82}, "plaintext_refused "},
		{"not the node", probes(&wire.InboundPolicy{Mode: 2}), w{addr: "10.9.0.2", port: 80}, "plaintext_refused "},
		{"probe through a broken policy", probes(&wire.InboundPolicy{Broken: []string{"x"}}), w{addr: "10.9.0.1", port: 80}, "probe "},
		{"probe where all may", probes(&wire.InboundPolicy{Mode: 1}), w{addr: "10.9.0.1", port: 80}, "allow "},
		{"an identity is no probe", probes(rules()), w{id: web, addr: "10.9.0.1", port: 80}, "access_denied "},
		{"probe under rules", probes(rules()), w{addr: "10.9.0.1", port: 80, path: "/healthz"}, "probe "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var addr netip.Addr
			if tt.who.addr != "" {
				addr = netip.MustParseAddr(tt.who.addr)
			}
			d := Decide(Compile(tt.p, td), Caller{id(tt.who.id), addr}, Request{tt.who.port, tt.who.path})
			if got := text(d); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func text(d Decision) string {
	s := string(d.Reason)
	switch {
	case d.ProbeOnly && d.Allow:
		s = "probe"
	case d.Allow:
		s = "allow"
	}
	s += " " + d.Source
	if d.Audit != "" {
		s += " " + d.Audit
	}
	return s
}

func TestZeroValuesDeny(t *testing.T) {
	for name, c := range map[string]*Compiled{"nil": nil, "zero": {}, "no trust domain": Compile(rules(rw(A, &wire.AccessRule{})), spiffeid.TrustDomain{})} {
		if d := Decide(c, Caller{ID: id(web)}, Request{Port: 80}); d.Allow {
			t.Errorf("%s allows: %+v", name, d)
		}
		if name != "no trust domain" && c.Mode(80) != wire.MtlsMode_MTLS_MODE_STRICT {
			t.Errorf("%s is not strict", name)
		}
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	p := rules(rw(D, &wire.AccessRule{Namespaces: []string{"other"}, Prefixes: [][]byte{prefix("fd00::/8")}}),
		rw(A, &wire.AccessRule{Identities: []string{other, "spiffe://mesh.test/ns/shop/sa/*"}, Ports: []uint32{80, 81}}))
	p.Ports = []*wire.PortPolicy{{Port: 80, Mode: 2}}
	c := Compile(p, td)
	who, req := Caller{id(web), netip.MustParseAddr("::ffff:10.1.2.3")}, Request{80, "/x"}
	if n := testing.AllocsPerRun(100, func() {
		if !Decide(c, who, req).Allow {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzCompile: whatever stands in a rule, the compiler does not panic, a
// broken policy refuses everybody, and an allow never reaches a caller of
// another trust domain than it names.
func FuzzCompile(f *testing.F) {
	f.Add(uint8(1), web, "shop", []byte{10, 0, 0, 0, 8}, uint32(80))
	f.Add(uint8(2), "spiffe://mesh.test/*", "", []byte{}, uint32(0))
	f.Add(uint8(3), "*", "*", []byte{33}, uint32(65536))
	f.Add(uint8(1), "spiffe://mesh.test/ns/*", "a/b", []byte("0123456789abcdef\x80"), uint32(1))
	f.Fuzz(func(t *testing.T, a uint8, identity, ns string, pfx []byte, port uint32) {
		r := &wire.AccessRule{Action: wire.AccessRule_Action(a), Identities: []string{identity}, Ports: []uint32{port}}
		if ns != "" {
			r.Namespaces = []string{ns}
		}
		if len(pfx) > 0 {
			r.Prefixes = [][]byte{pfx}
		}
		c := Compile(rules(r), td)
		for _, who := range []string{"", web, other, alien} {
			d := Decide(c, Caller{id(who), netip.MustParseAddr("10.1.2.3")}, Request{Port: uint16(port)})
			switch {
			case d.Allow && len(c.Broken()) > 0:
				t.Fatalf("broken %v allows %q", c.Broken(), who)
			case d.Allow && who == "":
				t.Fatalf("rule %v allows plaintext", r)
			case d.Allow && who == alien && (ns != "" || len(identity) < 20 || identity[:20] != "spiffe://alien.test/"):
				t.Fatalf("rule %v allows %s", r, who)
			}
		}
	})
}
