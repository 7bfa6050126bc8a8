package services

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// inNS runs f in a namespace of its own; f reports errors by t.Error.
func inNS(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	meshtest.NetNS(t).Do(func() { f(t) })
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// endpoints gives n endpoints of the family.
func endpoints(v6 bool, n int) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		if v6 {
			a = netip.AddrFrom16([16]byte{0xfd, 0, 14: byte(i >> 8), 15: byte(i)})
		}
		out = append(out, netip.AddrPortFrom(a, uint16(8000+i%1000)))
	}
	return out
}

func sample() *Rules {
	return &Rules{
		Keys: map[Key]Target{
			{addr("10.96.0.1"), 6, 80}:  {Forward, "a/b/tcp/80/v4", endpoints(false, 2)},
			{addr("fd96::1"), 6, 80}:    {Forward, "a/b/tcp/80/v6", endpoints(true, 3)},
			{addr("10.96.0.2"), 17, 53}: {Verdict: Reject},
			{addr("10.96.0.3"), 17, 53}: {Verdict: Drop},
		},
		Addrs:   map[netip.Addr]bool{addr("10.96.0.1"): true, addr("fd96::1"): true, addr("10.96.0.2"): true},
		Hairpin: map[netip.Addr]bool{addr("10.244.0.0"): true, addr("fd00::"): true},
		Pods:    []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:1::/64")},
		Ranges:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/112")},
	}
}

// dump gives what the kernel holds of the table, with the endpoints of chains.
func dump() (string, error) {
	have, rules, err := read()
	if err != nil {
		return "", err
	}
	conn, err := nftables.New()
	if err != nil {
		return "", err
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	var out []string
	for k, target := range have.Keys {
		out = append(out, fmt.Sprintf("key %s %s", k, entry(target)))
	}
	for a := range have.Addrs {
		out = append(out, fmt.Sprintf("address %s", a))
	}
	for a := range have.Hairpin {
		out = append(out, fmt.Sprintf("hairpin %s", a))
	}
	static, err := staticRules()
	if err != nil {
		return "", err
	}
	out = append(out, static...)
	for name := range keyChains(have, rules) {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: name, Table: table})
		if err != nil {
			return "", err
		}
		for i, r := range rules {
			line := fmt.Sprintf("chain %s %d:", name, i)
			var direct []byte
			for _, e := range r.Exprs {
				if im, ok := e.(*expr.Immediate); ok {
					direct = append(direct, im.Data...)
					continue
				}
				l, isMap := e.(*expr.Lookup)
				if !isMap || !strings.HasPrefix(l.SetName, "__map") {
					line += fmt.Sprintf(" %T%+v", e, e)
					continue
				}
				list, err := conn.GetSetElements(&nftables.Set{Table: table, Name: l.SetName})
				if err != nil {
					return "", err
				}
				line += fmt.Sprint(" ", mapText(list))
			}
			if n := len(direct) - 2; n > 0 {
				a, _ := netip.AddrFromSlice(direct[:n])
				line += fmt.Sprintf(" %05d=%s", i, netip.AddrPortFrom(a, binary.BigEndian.Uint16(direct[n:])))
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n"), nil
}

// staticRules gives the rules of the static chains in the kernel's own bytes:
// the library does not know all of their expressions.
func staticRules() ([]string, error) {
	var out []string
	for _, c := range statics {
		body, err := netlink.MarshalAttributes([]netlink.Attribute{word(unix.NFTA_RULE_TABLE, tableName), word(unix.NFTA_RULE_CHAIN, c.name)})
		if err != nil {
			return nil, err
		}
		list, err := ask(message(unix.NFT_MSG_GETRULE, netlink.Dump, unix.NFPROTO_INET, body))
		if err != nil {
			return nil, err
		}
		for i, m := range list {
			attrs, err := netlink.UnmarshalAttributes(m.Data[nfHeader:])
			if err != nil {
				return nil, err
			}
			for _, a := range attrs {
				if a.Type&^netlink.Nested == unix.NFTA_RULE_EXPRESSIONS {
					out = append(out, fmt.Sprintf("chain %s %d: %x", c.name, i, a.Data))
				}
			}
		}
	}
	return out, nil
}

func mapText(list []nftables.SetElement) []string {
	var out []string
	for _, e := range list {
		n := len(e.Val) - 4
		a, _ := netip.AddrFromSlice(e.Val[:n])
		out = append(out, fmt.Sprintf("%05d=%s", binaryutil.NativeEndian.Uint32(e.Key), netip.AddrPortFrom(a, binary.BigEndian.Uint16(e.Val[n:]))))
	}
	slices.Sort(out)
	return out
}

// expected is what dump gives for rules written to an empty kernel, but for
// the static rules' inner form.
func expected(r *Rules) []string {
	var out []string
	for k, target := range r.Keys {
		out = append(out, fmt.Sprintf("key %s %s", k, entry(target)))
		if target.Verdict == Forward {
			for i, e := range target.Endpoints {
				out = append(out, fmt.Sprintf("%05d=%s", i, e))
			}
		}
	}
	return out
}

func TestProbeLeavesNothing(t *testing.T) {
	inNS(t, func(t *testing.T) {
		if err := Probe(); err != nil {
			t.Error(err)
		}
		conn, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		if tables, err := conn.ListTables(); err != nil || len(tables) != 0 {
			t.Errorf("tables after the probe: %v, %v", tables, err)
		}
	})
}

func TestApplyAndClean(t *testing.T) {
	inNS(t, func(t *testing.T) {
		table := New(nil)
		st, err := table.Apply(sample())
		if err != nil || !st.Full || st.Keys != 4 || st.Transactions != 1 {
			t.Errorf("first: %+v, %v", st, err)
		}
		got, err := dump()
		if err != nil {
			t.Error(err)
		}
		for _, want := range expected(sample()) {
			if !strings.Contains(got, want) {
				t.Errorf("the kernel lacks %q; it holds\n%s", want, got)
			}
		}
		if st, err := table.Apply(sample()); err != nil || st != (Stats{}) {
			t.Errorf("the same again: %+v, %v", st, err)
		}
		// A changed Service costs only itself.
		next := sample()
		next.Keys[Key{addr("10.96.0.1"), 6, 80}] = Target{Forward, "a/b/tcp/80/v4", endpoints(false, 3)}
		if st, err := table.Apply(next); err != nil || st.Keys != 1 || st.Full || st.Messages > 6 {
			t.Errorf("one more endpoint: %+v, %v", st, err)
		}
		for range 2 {
			if err := Clean(); err != nil {
				t.Error(err)
			}
		}
		if meddled, err := table.Meddled(false); !meddled || err != nil {
			t.Errorf("after it was cleaned: %v, %v", meddled, err)
		}
	})
}

// random gives rules with some of a small world of keys, so that sequences hit
// every change of a key.
func random(r *rand.Rand) *Rules {
	out := &Rules{Keys: map[Key]Target{}, Addrs: map[netip.Addr]bool{}, Hairpin: map[netip.Addr]bool{}}
	for i := range 12 {
		if r.IntN(3) == 0 {
			continue
		}
		v6 := i%2 == 1
		a := netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})
		if v6 {
			a = netip.AddrFrom16([16]byte{0xfd, 0x96, 15: byte(i)})
		}
		if r.IntN(8) > 0 {
			out.Addrs[a] = true
		}
		k := Key{a, []uint8{6, 17, 132}[i%3], uint16(80 + r.IntN(2))}
		target := Target{Verdict: Verdict(r.IntN(3))}
		if target.Verdict == Forward {
			target.Chain, target.Endpoints = fmt.Sprintf("ns/s%d/p/%d/x%d", i, k.Port, r.IntN(2)), endpoints(v6, 1+r.IntN(maxWalk+3))
			if r.IntN(2) == 0 {
				out.Hairpin[target.Endpoints[0].Addr()] = true
			}
		}
		out.Keys[k] = target
	}
	for _, p := range []string{"10.244.1.0/24", "fd00:1::/64"} {
		if r.IntN(3) > 0 {
			out.Pods = append(out.Pods, netip.MustParsePrefix(p))
		}
		if r.IntN(3) == 0 {
			out.Ranges = append(out.Ranges, netip.MustParsePrefix(p))
		}
	}
	return out
}

// After any sequence of changes, restarts of the agent between them, the
// kernel holds what a fresh full write makes.
func TestSequenceEqualsFullWrite(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	fresh := map[*Rules]string{}
	var sequence []*Rules
	for range 30 {
		sequence = append(sequence, random(r))
	}
	inNS(t, func(t *testing.T) {
		for _, rules := range sequence {
			if err := Clean(); err != nil {
				t.Error(err)
			}
			if _, err := New(nil).Apply(rules); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			var err error
			if fresh[rules], err = dump(); err != nil {
				t.Error(err)
			}
		}
	})
	inNS(t, func(t *testing.T) {
		table := New(nil)
		for i, rules := range sequence {
			if i%7 == 6 {
				table = New(nil)
			}
			if _, err := table.Apply(rules); err != nil {
				t.Errorf("seed %d, step %d: %v", seed, i, err)
				return
			}
			if got, err := dump(); err != nil || got != fresh[rules] {
				t.Errorf("seed %d, step %d: %v; the kernel holds\n%s\nfresh it would hold\n%s", seed, i, err, got, fresh[rules])
				return
			}
			if gen, err := generation(); err != nil || gen != table.gen {
				t.Errorf("seed %d, step %d: generation %d, expected %d: %v", seed, i, gen, table.gen, err)
			}
			if meddled, err := table.Meddled(true); meddled || err != nil {
				t.Errorf("seed %d, step %d: meddled %v, %v", seed, i, meddled, err)
			}
		}
	})
}

// A Service with more endpoints than one message holds, and more keys than one
// transaction.
func TestLarge(t *testing.T) {
	inNS(t, func(t *testing.T) {
		rules := &Rules{Keys: map[Key]Target{{addr("10.96.0.1"), 6, 80}: {Forward, "a/b/tcp/80/v4", endpoints(false, 3000)},
			{addr("fd96::1"), 6, 80}: {Forward, "a/b/tcp/80/v6", endpoints(true, 3000)}}}
		for i := range 1000 {
			rules.Keys[Key{addr("10.97.0.1"), 6, uint16(1 + i)}] = Target{Forward, fmt.Sprintf("many/s/tcp/%d/v4", i), endpoints(false, 1)}
		}
		table := New(nil)
		st, err := table.Apply(rules)
		if err != nil || st.Transactions < 2 {
			t.Errorf("%+v, %v", st, err)
		}
		got, err := dump()
		if err != nil || strings.Count(got, "=10.244.") != 4000 || strings.Count(got, "=[fd00::") != 3000 || !strings.Contains(got, "02999=[fd00::bb7]:8999") {
			t.Errorf("endpoints: %d and %d, %v", strings.Count(got, "=10.244."), strings.Count(got, "=[fd00::"), err)
		}
		if _, err := table.Apply(&Rules{}); err != nil {
			t.Error(err)
		}
		if got, err := dump(); err != nil || strings.Contains(got, "key") || strings.Contains(got, "chain many") {
			t.Errorf("left behind: %v\n%s", err, got)
		}
	})
}

// Messages about endpoints are large: a transaction is bounded by bytes too, or
// the kernel refuses it for its size, again and again.
func TestLargeMessages(t *testing.T) {
	inNS(t, func(t *testing.T) {
		rules := &Rules{Keys: map[Key]Target{}}
		for i := range 60 {
			rules.Keys[Key{addr("fd96::1"), 6, uint16(1 + i)}] = Target{Forward, fmt.Sprintf("many/s/tcp/%d/v6", i), endpoints(true, 3000)}
		}
		table := New(nil)
		st, err := table.Apply(rules)
		if err != nil || st.Transactions < 2 || st.Messages > maxBatch {
			t.Errorf("%+v, %v", st, err)
		}
		if meddled, err := table.Meddled(true); meddled || err != nil {
			t.Errorf("meddled %v, %v", meddled, err)
		}
	})
}

// Whatever somebody else does to the table is noticed and mended.
func TestMeddling(t *testing.T) {
	for name, f := range map[string]func(*batch){
		"the table":     func(b *batch) { b.deleteTable() },
		"a static rule": func(b *batch) { b.flush(chainServices) },
		"a key's rule":  func(b *batch) { b.flush("a/b/tcp/80/v4") },
		"an address":    func(b *batch) { b.addresses(addrSet, nil, []netip.Addr{addr("10.96.0.1")}) },
		"a pod":         func(b *batch) { b.addresses(hairpinSet, []netip.Addr{addr("10.9.9.9")}, nil) },
		"a key":         func(b *batch) { b.key(unix.NFT_MSG_DELSETELEM, Key{addr("10.96.0.2"), 17, 53}, Target{}) },
		"a foreign chain": func(b *batch) {
			b.newChain(chain{name: "x/y/tcp/1/v4"})
			b.newRule(rule{"x/y/tcp/1/v4", "", families[0].toThis(netip.MustParseAddrPort("192.0.2.1:1"), 1)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inNS(t, func(t *testing.T) {
				var log strings.Builder
				table := New(slog.New(slog.NewTextHandler(&log, nil)))
				if _, err := table.Apply(sample()); err != nil {
					t.Error(err)
				}
				before, _ := dump()
				if meddled, err := table.Meddled(false); meddled || err != nil {
					t.Errorf("before: %v, %v", meddled, err)
				}
				b := &batch{table: tableName, st: &Stats{}}
				f(b)
				if err := b.commit(); err != nil {
					t.Error(err)
				}
				meddled, err := table.Meddled(false)
				if name == "a foreign chain" { // harmless: taken away with the next full write
					meddled = !meddled
					table.Forget()
				}
				if !meddled || err != nil {
					t.Errorf("not noticed: %v, %v", meddled, err)
				}
				if st, err := table.Apply(sample()); err != nil || !st.Full {
					t.Errorf("mending: %+v, %v", st, err)
				}
				if after, _ := dump(); after != before {
					t.Errorf("mended to\n%s\nbefore it was\n%s", after, before)
				}
			})
		})
	}
}

// A table of another form, such as an older version's, is replaced.
func TestOtherForm(t *testing.T) {
	inNS(t, func(t *testing.T) {
		b := &batch{table: tableName, st: &Stats{}}
		b.create()
		b.newChain(chain{"old", "nat", 0, -100})
		other := statics[3]
		b.add(unix.NFT_MSG_DELCHAIN, 0, word(1, tableName), word(3, other.name))
		if err := b.commit(); err != nil {
			t.Error(err)
		}
		if _, err := New(nil).Apply(sample()); err != nil {
			t.Error(err)
		}
		if got, err := dump(); err != nil || !strings.Contains(got, "key 6/10.96.0.1:80 forward") {
			t.Errorf("%v\n%s", err, got)
		}
	})
}
