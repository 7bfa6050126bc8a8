package services

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// errStrange says that the kernel holds something that we did not write.
var errStrange = errors.New("not as we wrote it")

// load looks at what the kernel holds and queues what is needed for our table
// to be there in today's form. What keys lead to is read; the endpoints in
// their chains are not, so that each is written anew.
func load(b *batch) (*Rules, map[string]bool, error) {
	have, rules, err := read()
	if err == nil {
		b.create()
		return have, keyChains(have, rules), nil
	}
	if !errors.Is(err, errStrange) {
		return nil, nil, err
	}
	// There is none, or one of another form: begin anew, in this transaction.
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, word(unix.NFTA_TABLE_NAME, b.table))
	b.deleteTable()
	b.create()
	return &Rules{Keys: map[Key]Target{}}, map[string]bool{}, nil
}

// keyChains are all chains but the static ones: those with rules, and those
// that keys lead to.
func keyChains(have *Rules, rules map[string]int) map[string]bool {
	out := map[string]bool{}
	for name := range rules {
		if !slices.ContainsFunc(statics, func(c chain) bool { return c.name == name }) {
			out[name] = true
		}
	}
	for _, t := range have.Keys {
		if t.Verdict == Forward {
			out[t.Chain] = true
		}
	}
	return out
}

// read gives what the table's sets say, and the number of rules in each chain
// that has any. Only what is listed by our table's name is listed: a list of all
// tables' chains misses some of ours when others write theirs meanwhile.
func read() (*Rules, map[string]int, error) {
	for _, c := range statics {
		if err := c.look(); err != nil {
			return nil, nil, err
		}
	}
	counts, err := countRules()
	if err != nil {
		return nil, nil, err
	}
	r, err := readSets()
	return r, counts, err
}

func readSets() (*Rules, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	sets, err := conn.GetSets(table)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	byName := map[string]*nftables.Set{}
	for _, s := range sets {
		byName[s.Name] = s
	}
	r := &Rules{Keys: map[Key]Target{}, Addrs: map[netip.Addr]bool{}, Hairpin: map[netip.Addr]bool{}}
	for _, f := range families {
		for _, kind := range setKinds {
			want := f.set(kind)
			got := byName[want.name]
			// The library mistakes the key's type of a map to verdicts; there the
			// elements tell.
			if got == nil || got.IsMap != want.verdicts || !want.verdicts && got.KeyType.Bytes != want.keyLen {
				return nil, fmt.Errorf("set %s: %w", want.name, errStrange)
			}
			elements, err := conn.GetSetElements(got)
			if err != nil {
				return nil, fmt.Errorf("list set %s: %w", want.name, err)
			}
			for _, e := range elements {
				if err := r.take(f, kind, e); err != nil {
					return nil, fmt.Errorf("set %s: %w", want.name, err)
				}
			}
		}
	}
	return r, nil
}

// look compares a static chain with the kernel's.
func (c chain) look() error {
	strange := fmt.Errorf("chain %s: %w", c.name, errStrange)
	body, err := netlink.MarshalAttributes([]netlink.Attribute{word(unix.NFTA_CHAIN_TABLE, tableName), word(unix.NFTA_CHAIN_NAME, c.name)})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	out, err := ask(message(unix.NFT_MSG_GETCHAIN, 0, unix.NFPROTO_INET, body))
	switch {
	case errors.Is(err, unix.ENOENT):
		return strange
	case err != nil:
		return fmt.Errorf("look at chain %s: %w", c.name, err)
	case len(out) != 1 || len(out[0].Data) < nfHeader:
		return strange
	}
	ad, err := netlink.NewAttributeDecoder(out[0].Data[nfHeader:])
	if err != nil {
		return errors.Join(strange, err)
	}
	ad.ByteOrder = binary.BigEndian
	got := chain{name: c.name}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TYPE:
			got.kind = ad.String()
		case unix.NFTA_CHAIN_HOOK:
			ad.Nested(got.hookFrom)
		}
	}
	if ad.Err() != nil || got != c {
		return strange
	}
	return nil
}

func (c *chain) hookFrom(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_HOOK_HOOKNUM:
			c.hook = ad.Uint32()
		case unix.NFTA_HOOK_PRIORITY:
			c.priority = int32(ad.Uint32())
		}
	}
	return nil
}

// take reads one element of a set.
func (r *Rules) take(f family, kind string, e nftables.SetElement) error {
	n := int(f.addrLen)
	if len(e.Key) < n {
		return errStrange
	}
	a, _ := netip.AddrFromSlice(e.Key[:n])
	switch kind {
	case addrSet:
		r.Addrs[a] = true
	case hairpinSet:
		if len(e.Key) != 2*n || string(e.Key[:n]) != string(e.Key[n:]) {
			return errStrange
		}
		r.Hairpin[a] = true
	default:
		if len(e.Key) != n+8 {
			return errStrange
		}
		k := Key{Addr: a, Proto: e.Key[n], Port: binary.BigEndian.Uint16(e.Key[n+4:])}
		t, err := readVerdict(e.Val)
		if err != nil {
			return fmt.Errorf("key %s: %w", k, err)
		}
		if _, double := r.Keys[k]; double || (t.Verdict == Forward) != (kind == serviceMap) {
			return fmt.Errorf("key %s: %w", k, errStrange)
		}
		r.Keys[k] = t
	}
	return nil
}

// readVerdict reads a map's data; of a chain the endpoints stay unknown.
func readVerdict(b []byte) (Target, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return Target{}, errors.Join(errStrange, err)
	}
	ad.ByteOrder = binary.BigEndian
	var code int32
	var chain string
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_VERDICT_CODE:
			code = int32(ad.Uint32())
		case unix.NFTA_VERDICT_CHAIN:
			chain = ad.String()
		}
	}
	switch {
	case ad.Err() != nil:
		return Target{}, errors.Join(errStrange, ad.Err())
	case code == unix.NFT_GOTO && chain == chainReject:
		return Target{Verdict: Reject}, nil
	case code == unix.NFT_GOTO && chain != "":
		return Target{Verdict: Forward, Chain: chain}, nil
	case code == nfDrop && chain == "":
		return Target{Verdict: Drop}, nil
	}
	return Target{}, fmt.Errorf("verdict %d %q: %w", code, chain, errStrange)
}

// Meddled says that somebody else changed what the table holds, or wiped it;
// the next Apply mends it.
// It is cheap while nobody wrote any rules since our last Apply; a thorough
// look compares all the same.
func (t *Table) Meddled(thorough bool) (bool, error) {
	if t.have == nil {
		return true, nil
	}
	gen, err := generation()
	if err != nil {
		return false, err
	}
	if gen == t.gen && !thorough {
		return false, nil
	}
	err = t.verify()
	if errors.Is(err, errStrange) {
		t.have = nil
		t.log.Warn("somebody changed our rules in the kernel", "table", tableName, "error", err)
		return true, nil
	}
	if err == nil {
		t.gen = gen
	}
	return false, err
}

// verify compares the kernel with what was applied last: chains, the number of
// rules in each, and all elements of the sets.
func (t *Table) verify() error {
	have, rules, err := read()
	if err != nil {
		return err
	}
	want := map[string]int{}
	for _, r := range rulesFor(t.have.Pods, t.have.Ranges) {
		want[r.chain]++
	}
	for k, target := range t.have.Keys {
		if target.Verdict == Forward {
			want[target.Chain] = target.chainRules()
		}
		got, ok := have.Keys[k]
		if !ok || entry(got) != entry(target) {
			return fmt.Errorf("key %s: %w", k, errStrange)
		}
	}
	for name, n := range want {
		if rules[name] != n {
			return fmt.Errorf("chain %s holds %d rules, should be %d: %w", name, rules[name], n, errStrange)
		}
	}
	if len(have.Keys) != len(t.have.Keys) || !sameAddrs(have.Addrs, t.have.Addrs) || !sameAddrs(have.Hairpin, t.have.Hairpin) {
		return fmt.Errorf("keys and addresses: %w", errStrange)
	}
	return nil
}

func sameAddrs(a, b map[netip.Addr]bool) bool {
	return len(a) == len(b) && len(missing(a, b)) == 0
}

func ask(m netlink.Message) ([]netlink.Message, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer conn.Close()
	return conn.Execute(m)
}

// generation is a number that grows with every change of any rules.
func generation() (uint32, error) {
	out, err := ask(message(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil))
	if err != nil {
		return 0, fmt.Errorf("ask for the ruleset's generation: %w", err)
	}
	for _, m := range out {
		if len(m.Data) < nfHeader {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[nfHeader:])
		if err != nil {
			return 0, fmt.Errorf("read the ruleset's generation: %w", err)
		}
		ad.ByteOrder = binary.BigEndian
		for ad.Next() {
			if ad.Type() == unix.NFTA_GEN_ID {
				return ad.Uint32(), nil
			}
		}
	}
	return 0, errors.New("the kernel did not tell the ruleset's generation")
}

const nfHeader = 4 // bytes that begin each nfnetlink message

// countRules gives the number of rules in each chain of the table.
func countRules() (map[string]int, error) {
	body, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: []byte(tableName + "\x00")}})
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	list, err := ask(message(unix.NFT_MSG_GETRULE, netlink.Dump, unix.NFPROTO_INET, body))
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	out := map[string]int{}
	for _, m := range list {
		if len(m.Data) < nfHeader {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[nfHeader:])
		if err != nil {
			return nil, fmt.Errorf("read a rule: %w", err)
		}
		var of, chain string
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				of = ad.String()
			case unix.NFTA_RULE_CHAIN:
				chain = ad.String()
			}
		}
		if of == tableName {
			out[chain]++
		}
	}
	return out, nil
}
