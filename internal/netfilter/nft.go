package netfilter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/redirect"
)

const (
	tableName = "heddle"
	// scratchName is a table that exists only inside the transaction that
	// probes the kernel.
	scratchName = "heddle_probe"

	// hookPriority is one before dstnat (-100), where other programs put their
	// NAT rules: the first to translate wins, and it must be us.
	hookPriority = -101

	// socketBuffer holds the largest batch (four full skip lists, some 600
	// bytes a rule) and the kernel's answers to it. Too small a buffer would
	// lose answers of a transaction that has been done.
	socketBuffer = 8 << 20
)

// TCP's flag byte: a first packet has SYN and none of the others.
const (
	tcpFlagsOffset = 13
	tcpFlagsMask   = 0x17 // FIN, SYN, RST, ACK
	tcpFlagSYN     = 0x02
)

// nft writes over netlink. One table of family inet serves both families. Its
// two base chains only enter the regular chains, which hold the plan: so a new
// plan changes rules, never hooks, and a packet sees one plan or the other.
// (With a hook replaced, a packet between the two could see neither.)
type nft struct{}

// chains of one table, by direction: base chain, regular chain.
type nftChains struct {
	table            *nftables.Table
	output, outbound *nftables.Chain
	prerouting       *nftables.Chain
	inbound          *nftables.Chain
}

func chainsOf(table string) nftChains {
	t := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	accept := nftables.ChainPolicyAccept
	base := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return &nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeNAT, Hooknum: hook,
			Priority: nftables.ChainPriorityRef(hookPriority), Policy: &accept}
	}
	return nftChains{
		table:      t,
		output:     base("output", nftables.ChainHookOutput),
		outbound:   &nftables.Chain{Name: "outbound", Table: t},
		prerouting: base("prerouting", nftables.ChainHookPrerouting),
		inbound:    &nftables.Chain{Name: "inbound", Table: t},
	}
}

func (c nftChains) all() []*nftables.Chain {
	return []*nftables.Chain{c.output, c.outbound, c.prerouting, c.inbound}
}

// rules gives what each chain holds for a plan, in order.
func (c nftChains) rules(p redirect.Plan) map[string][]nftRule {
	m := map[string][]nftRule{
		c.output.Name:     {{name: "first packets", exprs: enter(c.outbound.Name)}},
		c.prerouting.Name: {{name: "first packets", exprs: enter(c.inbound.Name)}},
	}
	for _, r := range p.Rules {
		name := c.outbound.Name
		if r.Inbound {
			name = c.inbound.Name
		}
		m[name] = append(m[name], nftRule{r.Name, exprsOf(r)})
	}
	return m
}

type nftRule struct {
	name  string // shown as the rule's comment
	exprs []expr.Any
}

// add queues the chains and the plan.
func (c nftChains) add(conn *nftables.Conn, p redirect.Plan) {
	for _, ch := range c.all() {
		conn.AddChain(ch)
	}
	rules := c.rules(p)
	for _, ch := range c.all() {
		for _, r := range rules[ch.Name] {
			conn.AddRule(&nftables.Rule{Table: c.table, Chain: ch, Exprs: r.exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.name)})
		}
	}
}

func (nft) conn() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(socketBuffer), c.SetWriteBuffer(socketBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return conn, nil
}

// probe adds a table with every kind of rule and deletes it again in one and
// the same transaction: the kernel checks all of it and nothing is ever seen.
func (n nft) probe(context.Context) error {
	conn, err := n.conn()
	if err != nil {
		return err
	}
	c := chainsOf(scratchName)
	conn.AddTable(c.table)
	c.add(conn, everyKind())
	conn.DelTable(c.table)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("the kernel refused a trial transaction: %w", err)
	}
	return nil
}

func (n nft) apply(_ context.Context, p redirect.Plan) error {
	conn, err := n.conn()
	if err != nil {
		return err
	}
	c := chainsOf(tableName)
	same, err := sameChains(conn, c)
	if err != nil {
		return err
	}
	conn.AddTable(c.table)
	if same {
		conn.FlushTable(c.table)
	} else {
		// Chains of another version, or none: begin anew, still in one
		// transaction.
		conn.DelTable(c.table)
		conn.AddTable(c.table)
	}
	c.add(conn, p)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("the kernel refused the transaction: %w", err)
	}
	return nil
}

// sameChains tells whether the kernel holds exactly our chains with our hooks.
func sameChains(conn *nftables.Conn, c nftChains) (bool, error) {
	have, err := listChains(conn, c.table)
	if err != nil {
		return false, err
	}
	if len(have) != len(c.all()) {
		return false, nil
	}
	for _, want := range c.all() {
		if got := have[want.Name]; got == nil || chainText(got) != chainText(want) {
			return false, nil
		}
	}
	return true, nil
}

func listChains(conn *nftables.Conn, t *nftables.Table) (map[string]*nftables.Chain, error) {
	list, err := conn.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	out := map[string]*nftables.Chain{}
	for _, ch := range list {
		if ch.Table != nil && ch.Table.Name == t.Name {
			out[ch.Name] = ch
		}
	}
	return out, nil
}

// chainText says what matters of a chain.
func chainText(c *nftables.Chain) string {
	if c.Hooknum == nil || c.Priority == nil {
		return "regular chain"
	}
	policy := nftables.ChainPolicyAccept
	if c.Policy != nil {
		policy = *c.Policy
	}
	return fmt.Sprintf("type %s hook %d priority %d policy %d", c.Type, *c.Hooknum, *c.Priority, policy)
}

func (n nft) clean(context.Context) error {
	conn, err := n.conn()
	if err != nil {
		return err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("list tables: %w", err)
		}
		return nil // a kernel without nf_tables holds none of it
	}
	for _, t := range tables {
		if t.Name == tableName {
			conn.DelTable(&nftables.Table{Name: tableName, Family: nftables.TableFamilyINet})
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) { // somebody was faster
		return fmt.Errorf("delete the table %s: %w", tableName, err)
	}
	return nil
}

func (n nft) verify(_ context.Context, p redirect.Plan) error {
	conn, err := n.conn()
	if err != nil {
		return err
	}
	c := chainsOf(tableName)
	have, err := listChains(conn, c.table)
	if err != nil {
		return err
	}
	rules := c.rules(p)
	for _, want := range c.all() {
		got := have[want.Name]
		if got == nil {
			return fmt.Errorf("chain %s is missing", want.Name)
		}
		if g, w := chainText(got), chainText(want); g != w {
			return fmt.Errorf("chain %s is %q, should be %q", want.Name, g, w)
		}
		held, err := conn.GetRules(c.table, want)
		if err != nil {
			return fmt.Errorf("list the rules of chain %s: %w", want.Name, err)
		}
		if err := sameRules(held, rules[want.Name]); err != nil {
			return fmt.Errorf("chain %s: %w", want.Name, err)
		}
		delete(have, want.Name)
	}
	for name := range have {
		return fmt.Errorf("there is a chain %s, which is not ours", name)
	}
	return nil
}

func sameRules(got []*nftables.Rule, want []nftRule) error {
	if len(got) != len(want) {
		return fmt.Errorf("it holds %d rules, should be %d", len(got), len(want))
	}
	for i, w := range want {
		g, err := encode(got[i].Exprs)
		if err != nil {
			return err
		}
		e, err := encode(w.exprs)
		if err != nil {
			return err
		}
		if !bytes.Equal(g, e) {
			return fmt.Errorf("rule %d (%s) differs from the plan", i+1, w.name)
		}
	}
	return nil
}

func encode(exprs []expr.Any) ([]byte, error) {
	var out []byte
	for _, e := range exprs {
		b, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
		if err != nil {
			return nil, fmt.Errorf("encode a rule: %w", err)
		}
		out = append(out, b...)
	}
	return out, nil
}

// enter sends the first packets of TCP connections to a chain.
func enter(chain string) []expr.Any {
	return append(isTCP(),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlagsOffset, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{tcpFlagsMask}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{tcpFlagSYN}},
		&expr.Verdict{Kind: expr.VerdictJump, Chain: chain},
	)
}

func isTCP() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
	}
}

// exprsOf is the other renderer of a rule, besides Rule's iptables words.
func exprsOf(r redirect.Rule) []expr.Any {
	var es []expr.Any
	if r.Dst.IsValid() {
		es = append(es, matchDst(r)...)
	}
	if r.ViaLo {
		es = append(es,
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte("lo"), make([]byte, unix.IFNAMSIZ-2)...)})
	}
	if r.UID != nil {
		es = append(es,
			&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, *r.UID)})
	}
	if r.Local {
		es = append(es,
			&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)})
	}
	if r.Ports != (redirect.PortRange{}) {
		es = append(es, matchPorts(r.Ports)...)
	}
	if r.To == 0 {
		return append(es, &expr.Verdict{Kind: expr.VerdictReturn})
	}
	return append(es,
		&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, r.To)},
		&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED})
}

func matchDst(r redirect.Rule) []expr.Any {
	addr := r.Dst.Addr().AsSlice()
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the destination in the IPv4 header
	if r.Dst.Addr().Is6() {
		family, offset = unix.NFPROTO_IPV6, 24
	}
	es := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
	if r.Dst.Bits() == 0 {
		return es
	}
	n := uint32(len(addr))
	es = append(es, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: n})
	if r.Dst.Bits() < len(addr)*8 {
		mask := make([]byte, n)
		for i := range r.Dst.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		es = append(es, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: n, Mask: mask, Xor: make([]byte, n)})
	}
	return append(es, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr})
}

// matchPorts names TCP although only TCP comes here, so that nft shows ports
// and not bytes.
func matchPorts(p redirect.PortRange) []expr.Any {
	first, last := binary.BigEndian.AppendUint16(nil, p.First), binary.BigEndian.AppendUint16(nil, p.Last)
	es := append(isTCP(), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
	if p.First == p.Last {
		return append(es, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: first})
	}
	return append(es,
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: first},
		&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: last})
}
