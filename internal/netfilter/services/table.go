package services

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names in the kernel. Chains of keys are named by their users; a name of ours
// has no slash, a key's chain has.
const (
	tableName = "heddle_node"
	// probeName is a table that exists only inside the transaction that probes
	// the kernel.
	probeName = "heddle_node_probe"

	chainServices   = "services"
	chainRefusals   = "refusals"
	chainReject     = "refuse"
	chainMasquerade = "rewrite"
)

// Priorities of hooks (linux/netfilter_ipv4.h).
const (
	dstNATPriority = -100
	srcNATPriority = 100
	// lateOutput is just after dstnat: what was not translated is judged.
	lateOutput = -90
	// early is before other programs' filters: what we refuse is refused at
	// once, whatever they would make of it.
	early = -110
)

// chain is a chain of the table; with a hook, packets enter by it.
type chain struct {
	name     string
	kind     string // nat or filter; empty: only other chains lead here
	hook     uint32
	priority int32
}

// statics are all chains but those of keys.
var statics = []chain{
	{"prerouting", "nat", unix.NF_INET_PRE_ROUTING, dstNATPriority},
	{"output", "nat", unix.NF_INET_LOCAL_OUT, dstNATPriority},
	{"postrouting", "nat", unix.NF_INET_POST_ROUTING, srcNATPriority},
	{"forward", "filter", unix.NF_INET_FORWARD, early},
	{"input", "filter", unix.NF_INET_LOCAL_IN, early},
	{"output_late", "filter", unix.NF_INET_LOCAL_OUT, lateOutput},
	{name: chainReject},
	{name: chainServices},
	{name: chainRefusals},
	{name: chainMasquerade},
}

// Kinds of sets; each is there once per family.
const (
	serviceMap = "services" // key -> goto its chain
	refusalMap = "refusals" // key -> reject or drop
	addrSet    = "addresses"
	hairpinSet = "hairpin"
)

var setKinds = []string{serviceMap, refusalMap, addrSet, hairpinSet}

// family is one of the two, with what differs in packets and registers.
type family struct {
	suffix   string
	proto    byte // NFPROTO_
	addrType uint32
	addrLen  uint32
	src, dst uint32 // offsets in the network header
	ctDst    uint32 // NFT_CT_ key of a flow's original destination
}

var families = []family{
	{"4", unix.NFPROTO_IPV4, typeIPv4, 4, 12, 16, unix.NFT_CT_DST_IP},
	{"6", unix.NFPROTO_IPV6, typeIPv6, 16, 8, 24, unix.NFT_CT_DST_IP6},
}

// Data types as the nft program shows them; the kernel only keeps them.
const (
	typeInteger = 4
	typeIPv4    = 7
	typeIPv6    = 8
	typeProto   = 12
	typePort    = 13
	typeBits    = 6 // each type of a concatenation takes so many
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}

// slot is the register n*4 bytes into the concatenation that starts at
// register 1.
func slot(bytes uint32) uint32 { return unix.NFT_REG32_00 + bytes/4 }

// set is a set or map of the table.
type set struct {
	name              string
	keyType, keyLen   uint32
	dataType, dataLen uint32 // of a map
	verdicts          bool   // a map to verdicts
	id                uint32 // within a transaction
	anonymous         int    // number of elements of a map that one rule owns; 0: it has a name
}

// set describes one set of a family.
func (f family) set(kind string) set {
	s := set{name: kind + f.suffix, keyType: f.addrType, keyLen: f.addrLen}
	switch kind {
	case serviceMap, refusalMap:
		s.keyType, s.keyLen, s.verdicts = (f.addrType<<typeBits|typeProto)<<typeBits|typePort, f.addrLen+8, true
	case hairpinSet:
		s.keyType, s.keyLen = f.addrType<<typeBits|f.addrType, 2*f.addrLen
	}
	return s
}

// expression is a part of a rule: an expr.Any, or originalDst.
type expression any

// originalDst loads the address that a flow was sent to at first: a key of
// NFT_CT_ that tells its family, which the library does not know. Without the
// family nft 1.0 aborts when it lists the rule.
type originalDst uint32

// rule is one rule of ours with the words that nft shows beside it.
type rule struct {
	chain, comment string
	exprs          []expression
}

// rulesFor are the rules of the static chains, in order.
func rulesFor(pods, ranges []netip.Prefix) []rule {
	out := []rule{
		{"prerouting", "all", jump(chainServices)},
		{"output", "all", jump(chainServices)},
		{"postrouting", "flows that we sent to an endpoint", translated(jump(chainMasquerade))},
		{"forward", "new flows", isNew(jump(chainRefusals))},
		{"output_late", "new flows", isNew(jump(chainRefusals))},
		// A reset is not limited in rate, as ICMP errors are.
		{chainReject, "tcp", append(isTCP(), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})},
		{chainReject, "the rest", []expression{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}},
	}
	for _, f := range families {
		out = append(out,
			rule{chainServices, "Services", f.is(append(f.loadKey(), vmap(serviceMap+f.suffix))...)},
			// Who gave the node a Service's address, or one of their range, serves
			// its other ports by other means: another proxy, a cache for names.
			rule{"input", "new flows to Services without endpoints", isNew(f.is(append(f.loadKey(), vmap(refusalMap+f.suffix))...))},
			rule{chainRefusals, "Services without endpoints", f.is(append(f.loadKey(), vmap(refusalMap+f.suffix))...)},
			rule{chainRefusals, "other ports of a Service", f.is(f.load(f.dst, 1), lookup(addrSet+f.suffix), verdict(expr.VerdictGoto, chainReject))})
		for _, p := range ranges {
			if p.Addr().Is4() == (f.suffix == "4") {
				out = append(out, rule{chainRefusals, "no Service's address", append(f.is(f.inside(f.dst, p, expr.CmpOpEq)...), verdict(expr.VerdictDrop, ""))})
			}
		}
		out = append(out, f.masquerade(pods)...)
	}
	return out
}

// masquerade gives the rules that rewrite sources.
func (f family) masquerade(pods []netip.Prefix) []rule {
	ours := func() []expression {
		return f.is(originalDst(f.ctDst), lookup(addrSet+f.suffix))
	}
	masq := &expr.Masq{FullyRandom: true}
	out := []rule{{chainMasquerade, "an endpoint that got itself",
		append(ours(), f.load(f.src, 1), f.load(f.dst, slot(f.addrLen)), lookup(hairpinSet+f.suffix), masq)}}
	stranger, any := ours(), false
	for _, p := range pods {
		if p.Addr().Is4() == (f.suffix == "4") {
			stranger, any = append(stranger, f.inside(f.src, p, expr.CmpOpNeq)...), true
		}
	}
	if any {
		out = append(out, rule{chainMasquerade, "no pod of this node", append(stranger, masq)})
	}
	return out
}

// maxWalk is the most endpoints that a key's chain has as a rule each. A map
// would do for any number, but the kernel names it, and finds it again for each
// message about it, by going through all sets of the table: 5,000 Services
// would be written in a minute. A first packet walks half of so few rules.
const maxWalk = 8

// chainRules is the number of rules in the chain of a Forward.
func (t Target) chainRules() int {
	if len(t.Endpoints) <= maxWalk {
		return len(t.Endpoints)
	}
	return 1
}

// toThis is one of the rules of a key's chain: to e with a chance of one in
// left, the number of endpoints that this rule and those after it have. So each
// of n has the same chance: 1/n, then (n-1)/n of 1/(n-1), and so on.
func (f family) toThis(e netip.AddrPort, left int) []expression {
	var out []expression
	if left > 1 {
		out = append(out,
			&expr.Numgen{Register: 1, Modulus: uint32(left), Type: unix.NFT_NG_RANDOM},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)})
	}
	return append(out,
		&expr.Immediate{Register: 1, Data: e.Addr().AsSlice()},
		&expr.Immediate{Register: unix.NFT_REG_2, Data: binary.BigEndian.AppendUint16(nil, e.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: 1, RegProtoMin: unix.NFT_REG_2, Specified: true})
}

// toOne is the only rule of a key's chain with many endpoints: one of them,
// each with the same chance. m is its map from 0, 1, … to endpoints.
func (f family) toOne(m set) []expression {
	return []expression{
		&expr.Numgen{Register: 1, Modulus: uint32(m.anonymous), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: m.name, SetID: m.id},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: 1, RegProtoMin: slot(f.addrLen), Specified: true},
	}
}

// endpoints describes the map of a key's chain. The kernel names it.
func (f family) endpoints(id uint32, n int) set {
	return set{name: "__map%d", id: id, anonymous: n, keyType: typeInteger, keyLen: 4,
		dataType: f.addrType<<typeBits | typePort, dataLen: f.addrLen + 4}
}

// loadKey loads destination address, protocol and destination port.
func (f family) loadKey() []expression {
	return []expression{
		f.load(f.dst, 1),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: slot(f.addrLen)},
		&expr.Payload{DestRegister: slot(f.addrLen + 4), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

func (f family) load(offset, register uint32) expression {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.addrLen}
}

// inside compares an address with a prefix.
func (f family) inside(offset uint32, p netip.Prefix, op expr.CmpOp) []expression {
	mask := make([]byte, f.addrLen)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expression{
		f.load(offset, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.addrLen, Mask: mask, Xor: make([]byte, f.addrLen)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// is lets only packets of the family on.
func (f family) is(then ...expression) []expression {
	return append([]expression{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
	}, then...)
}

func isTCP() []expression {
	return []expression{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
	}
}

// dstNAT is the bit of a tracked flow's status that says its destination is
// translated (nf_conntrack_common.h).
const dstNAT = 1 << 5

func isNew(then []expression) []expression { return ctBit(expr.CtKeySTATE, expr.CtStateBitNEW, then) }

func translated(then []expression) []expression { return ctBit(expr.CtKeySTATUS, dstNAT, then) }

func ctBit(key expr.CtKey, bit uint32, then []expression) []expression {
	return append([]expression{
		&expr.Ct{Register: 1, Key: key},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bit), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}, then...)
}

func jump(chain string) []expression { return []expression{verdict(expr.VerdictJump, chain)} }

func verdict(kind expr.VerdictKind, chain string) expression {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

func lookup(set string) expression { return &expr.Lookup{SourceRegister: 1, SetName: set} }

func vmap(set string) expression {
	return &expr.Lookup{SourceRegister: 1, SetName: set, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}
}
