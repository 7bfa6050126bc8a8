package services

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// socketBuffer holds the largest batch, which the kernel takes in one piece:
	// maxBytes and one more Service port, of 200,000 endpoints at most.
	socketBuffer = 32 << 20
	// maxBytes bounds a batch beside maxBatch: messages with endpoints have up to
	// 40 KB.
	maxBytes = 4 << 20
	// maxElements of one message: a netlink attribute has at most 64 KiB.
	maxElements = 400
	// answerWait bounds the wait for the kernel's answer to a batch. It comes
	// when the commit is done, which takes milliseconds; more means a lost
	// answer.
	answerWait = 30 * time.Second
)

// batch is one transaction being put together. The library's own writer asks
// the kernel to answer each message and does not know every expression.
type batch struct {
	table    string
	messages []netlink.Message
	bytes    int
	ids      uint32
	err      error
	st       *Stats
}

// full says that what is queued is enough for one transaction.
func (b *batch) full() bool { return len(b.messages) >= maxBatch || b.bytes >= maxBytes }

// commit sends what is queued, whole or not at all.
func (b *batch) commit() error {
	if b.err != nil || len(b.messages) == 0 {
		return b.err
	}
	b.st.Messages += len(b.messages)
	list := b.messages
	b.messages, b.bytes = nil, 0
	list[len(list)-1].Header.Flags |= netlink.Acknowledge
	border := func(kind int) netlink.Message {
		m := netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request}}
		m.Data = binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES)
		return m
	}
	all := append([]netlink.Message{border(unix.NFNL_MSG_BATCH_BEGIN)}, list...)
	if err := send(append(all, border(unix.NFNL_MSG_BATCH_END))); err != nil {
		return fmt.Errorf("the kernel refused a transaction: %w", err)
	}
	b.st.Transactions++
	return nil
}

// send sends a batch whose last message but one asks for an answer, and waits
// for it. An error of any message comes before it.
func send(all []netlink.Message) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer conn.Close()
	if err := errors.Join(conn.SetWriteBuffer(socketBuffer), conn.SetReadBuffer(socketBuffer)); err != nil {
		return fmt.Errorf("size the netlink buffers: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(answerWait)); err != nil {
		return fmt.Errorf("bound the wait: %w", err)
	}
	sent, err := conn.SendMessages(all)
	if err != nil {
		return err
	}
	last := sent[len(sent)-2].Header.Sequence
	for {
		got, err := conn.Receive()
		if err != nil {
			return err
		}
		for _, m := range got {
			if m.Header.Sequence == last && m.Header.Type == netlink.Error {
				return nil
			}
		}
	}
}

// add queues a message about the table.
func (b *batch) add(kind int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) {
	body, err := netlink.MarshalAttributes(attrs)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("encode: %w", err)
	}
	b.bytes += len(body)
	b.messages = append(b.messages, message(kind, flags, unix.NFPROTO_INET, body))
}

// message is a request to nf_tables; body follows the nfnetlink header.
func message(kind int, flags netlink.HeaderFlags, family byte, body []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, body...),
	}
}

func word(kind uint16, s string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(s), 0)}
}

func number(kind uint16, n uint32) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.BigEndian.AppendUint32(nil, n)}
}

// nest puts attributes into one.
func (b *batch) nest(kind uint16, attrs ...netlink.Attribute) netlink.Attribute {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("encode: %w", err)
	}
	return netlink.Attribute{Type: kind | netlink.Nested, Data: data}
}

// create queues the table, its chains and its sets; what is there stays.
func (b *batch) create() {
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, word(unix.NFTA_TABLE_NAME, b.table))
	for _, c := range statics {
		b.newChain(c)
	}
	for _, f := range families {
		for _, kind := range setKinds {
			s := f.set(kind)
			s.id = b.id()
			b.newSet(s)
		}
	}
}

// id gives a number for a set of this batch.
func (b *batch) id() uint32 {
	b.ids++
	return b.ids
}

func (b *batch) newChain(c chain) {
	attrs := []netlink.Attribute{word(unix.NFTA_CHAIN_TABLE, b.table), word(unix.NFTA_CHAIN_NAME, c.name)}
	if c.kind != "" {
		attrs = append(attrs,
			b.nest(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, c.hook), number(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))),
			number(unix.NFTA_CHAIN_POLICY, nfAccept), word(unix.NFTA_CHAIN_TYPE, c.kind))
	}
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, attrs...)
}

// flush queues the end of all rules of a chain.
func (b *batch) flush(chain string) {
	b.add(unix.NFT_MSG_DELRULE, 0, word(unix.NFTA_RULE_TABLE, b.table), word(unix.NFTA_RULE_CHAIN, chain))
}

func (b *batch) newSet(s set) {
	var flags uint32
	attrs := []netlink.Attribute{word(unix.NFTA_SET_TABLE, b.table), word(unix.NFTA_SET_NAME, s.name), number(unix.NFTA_SET_ID, s.id),
		number(unix.NFTA_SET_KEY_TYPE, s.keyType), number(unix.NFTA_SET_KEY_LEN, s.keyLen)}
	order := uint32(byteOrderBig)
	switch {
	case s.verdicts:
		flags = unix.NFT_SET_MAP
		attrs = append(attrs, number(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT))
	case s.dataLen > 0:
		flags = unix.NFT_SET_MAP
		attrs = append(attrs, number(unix.NFTA_SET_DATA_TYPE, s.dataType), number(unix.NFTA_SET_DATA_LEN, s.dataLen))
	}
	if s.anonymous > 0 {
		flags |= unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT
		attrs = append(attrs, b.nest(unix.NFTA_SET_DESC, number(unix.NFTA_SET_DESC_SIZE, uint32(s.anonymous))))
		order = byteOrderHost
	}
	attrs = append(attrs, number(unix.NFTA_SET_FLAGS, flags),
		netlink.Attribute{Type: unix.NFTA_SET_USERDATA, Data: userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order)})
	b.add(unix.NFT_MSG_NEWSET, netlink.Create, attrs...)
}

// Byte orders of keys as nft shows them (libnftnl).
const (
	byteOrderHost = 1
	byteOrderBig  = 2
)

// element of a set or map.
type element struct {
	key, value []byte
	verdict    *Target // of a map to verdicts
}

// elements queues the coming or going (NFT_MSG_NEWSETELEM, …DELSETELEM) of
// elements.
func (b *batch) elements(kind int, s set, list []element) {
	for part := range slices.Chunk(list, maxElements) {
		var attrs []netlink.Attribute
		for _, e := range part {
			item := []netlink.Attribute{b.nest(unix.NFTA_SET_ELEM_KEY, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: e.key})}
			switch {
			case kind == unix.NFT_MSG_DELSETELEM:
			case e.verdict != nil:
				item = append(item, b.nest(unix.NFTA_SET_ELEM_DATA, b.verdict(*e.verdict)))
			case e.value != nil:
				item = append(item, b.nest(unix.NFTA_SET_ELEM_DATA, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: e.value}))
			}
			attrs = append(attrs, b.nest(unix.NFTA_LIST_ELEM, item...))
		}
		b.add(kind, netlink.Create, word(unix.NFTA_SET_ELEM_LIST_TABLE, b.table), word(unix.NFTA_SET_ELEM_LIST_SET, s.name),
			number(unix.NFTA_SET_ELEM_LIST_SET_ID, s.id), b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, attrs...))
	}
}

// verdict is what a key's element leads to.
func (b *batch) verdict(t Target) netlink.Attribute {
	gotoChain := int32(unix.NFT_GOTO)
	code := number(unix.NFTA_VERDICT_CODE, uint32(gotoChain))
	switch t.Verdict {
	case Forward:
		return b.nest(unix.NFTA_DATA_VERDICT, code, word(unix.NFTA_VERDICT_CHAIN, t.Chain))
	case Drop:
		return b.nest(unix.NFTA_DATA_VERDICT, number(unix.NFTA_VERDICT_CODE, nfDrop))
	}
	return b.nest(unix.NFTA_DATA_VERDICT, code, word(unix.NFTA_VERDICT_CHAIN, chainReject))
}

// Verdicts (linux/netfilter.h).
const (
	nfDrop   = 0
	nfAccept = 1
)

func (b *batch) newRule(r rule) {
	var exprs []netlink.Attribute
	for _, e := range r.exprs {
		exprs = append(exprs, netlink.Attribute{Type: unix.NFTA_LIST_ELEM | netlink.Nested, Data: b.encode(e)})
	}
	b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, word(unix.NFTA_RULE_TABLE, b.table), word(unix.NFTA_RULE_CHAIN, r.chain),
		b.nest(unix.NFTA_RULE_EXPRESSIONS, exprs...),
		netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: userdata.AppendString(nil, userdata.TypeComment, r.comment)})
}

func (b *batch) encode(e expression) []byte {
	switch e := e.(type) {
	case originalDst:
		const original = 0 // IP_CT_DIR_ORIGINAL
		data := b.nest(unix.NFTA_EXPR_DATA, number(unix.NFTA_CT_KEY, uint32(e)), number(unix.NFTA_CT_DREG, unix.NFT_REG_1),
			netlink.Attribute{Type: unix.NFTA_CT_DIRECTION, Data: []byte{original}})
		return b.nest(0, word(unix.NFTA_EXPR_NAME, "ct"), data).Data
	case expr.Any:
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil && b.err == nil {
			b.err = fmt.Errorf("encode a rule: %w", err)
		}
		return data
	}
	b.err = fmt.Errorf("encode a rule: %T is no expression", e)
	return nil
}

// statics queues the rules of the static chains.
func (b *batch) statics(pods, ranges []netip.Prefix) {
	for _, c := range statics {
		b.flush(c.name)
	}
	for _, r := range rulesFor(pods, ranges) {
		b.newRule(r)
	}
}

// addresses queues changes of a set of addresses.
func (b *batch) addresses(kind string, add, remove []netip.Addr) {
	for _, f := range families {
		b.elements(unix.NFT_MSG_NEWSETELEM, f.set(kind), f.addressElements(kind, add))
		b.elements(unix.NFT_MSG_DELSETELEM, f.set(kind), f.addressElements(kind, remove))
	}
}

func (f family) addressElements(kind string, list []netip.Addr) []element {
	var out []element
	for _, a := range list {
		if familyOf(a).proto != f.proto {
			continue
		}
		key := a.AsSlice()
		if kind == hairpinSet {
			key = append(key, a.AsSlice()...)
		}
		out = append(out, element{key: key})
	}
	return out
}

// chain queues a key's chain anew: few endpoints as rules of their own, more of
// them as a map and one rule.
func (b *batch) chain(k Key, t Target) {
	f := familyOf(k.Addr)
	b.newChain(chain{name: t.Chain})
	b.flush(t.Chain)
	if n := len(t.Endpoints); n <= maxWalk {
		for i, e := range t.Endpoints {
			b.newRule(rule{t.Chain, k.String(), f.toThis(e, n-i)})
		}
		return
	}
	m := f.endpoints(b.id(), len(t.Endpoints))
	var list []element
	for i, e := range t.Endpoints {
		value := append(e.Addr().AsSlice(), byte(e.Port()>>8), byte(e.Port()), 0, 0)
		list = append(list, element{key: binaryutil.NativeEndian.PutUint32(uint32(i)), value: value})
	}
	b.newSet(m)
	b.elements(unix.NFT_MSG_NEWSETELEM, m, list)
	b.newRule(rule{t.Chain, k.String(), f.toOne(m)})
}

// key queues a key's element; kind as of elements.
func (b *batch) key(kind int, k Key, t Target) {
	f := familyOf(k.Addr)
	key := append(k.Addr.AsSlice(), k.Proto, 0, 0, 0)
	key = append(binary.BigEndian.AppendUint16(key, k.Port), 0, 0)
	s := f.set(refusalMap)
	if t.Verdict == Forward {
		s = f.set(serviceMap)
	}
	b.elements(kind, s, []element{{key: key, verdict: &t}})
}

// deleteChains empties chains and takes them away.
func deleteChains(names []string) error {
	b := &batch{table: tableName, st: &Stats{}}
	for _, name := range names {
		b.flush(name)
		b.add(unix.NFT_MSG_DELCHAIN, 0, word(unix.NFTA_CHAIN_TABLE, b.table), word(unix.NFTA_CHAIN_NAME, name))
	}
	return b.commit()
}

func (b *batch) deleteTable() {
	b.add(unix.NFT_MSG_DELTABLE, 0, word(unix.NFTA_TABLE_NAME, b.table))
}

// Clean takes the table away; that there is none is no error.
func Clean() error {
	b := &batch{table: tableName, st: &Stats{}}
	b.deleteTable()
	if err := b.commit(); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("delete table %s: %w", tableName, err)
	}
	return nil
}

// Probe tries every kind of rule that the table needs in a transaction that
// leaves nothing behind, and says what the kernel lacks.
func Probe() error {
	b := &batch{table: probeName, st: &Stats{}}
	b.create()
	b.statics([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")})
	for _, e := range []string{"192.0.2.1:1", "[2001:db8::1]:1"} {
		to := netip.MustParseAddrPort(e)
		for _, n := range []int{2, maxWalk + 1} { // both forms of a chain
			name := fmt.Sprint("probe", familyOf(to.Addr()).suffix, "-", n)
			b.chain(Key{Addr: to.Addr()}, Target{Chain: name, Endpoints: slices.Repeat([]netip.AddrPort{to}, n)})
		}
	}
	b.deleteTable()
	err := b.commit()
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("write packet filter rules: %w (needs CAP_NET_ADMIN)", err)
	case err != nil:
		return fmt.Errorf("this kernel cannot do what forwarding needs (nf_tables for inet with nat, masq, numgen, ct, reject): %w", err)
	}
	return nil
}
