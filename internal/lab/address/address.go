// Package address hands out the lab's addresses: ClusterIPs from the Service
// ranges, pod addresses from a node's range. It only counts; giving an address
// to an interface is internal/lab/fabric's work. internal/lab calls it.
package address

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/big"
	"net/netip"
	"slices"
)

// ErrTaken says that an address belongs to somebody else.
var ErrTaken = errors.New("address is taken")

// window bounds how much of a range is used: 65,536 addresses, so that an IPv6
// range of any length is as cheap as an IPv4 one.
const window = 1 << 16

// Pool hands out the addresses of one prefix. It is not safe for concurrent
// use: one goroutine owns the lab's objects.
type Pool struct {
	prefix netip.Prefix
	size   int // usable offsets are 1..size
	owner  map[netip.Addr]string
	addr   map[string]netip.Addr
	next   int // where Next looks first
}

// NewPool gives the pool of a prefix. The network's own address and, in IPv4,
// the broadcast address are never handed out, nor are the reserved ones.
func NewPool(prefix netip.Prefix, reserved ...netip.Addr) *Pool {
	prefix = prefix.Masked()
	bits := prefix.Addr().BitLen() - prefix.Bits()
	size := window - 1
	if bits < 16 {
		size = 1<<bits - 1
	}
	if prefix.Addr().Is4() && bits <= 16 {
		size-- // broadcast
	}
	p := &Pool{prefix: prefix, size: max(size, 0), owner: map[netip.Addr]string{}, addr: map[string]netip.Addr{}, next: 1}
	for _, a := range reserved {
		p.owner[a] = "reserved"
	}
	return p
}

// Prefix is the pool's range.
func (p *Pool) Prefix() netip.Prefix { return p.prefix }

// Of is what owner holds.
func (p *Pool) Of(owner string) (netip.Addr, bool) {
	a, ok := p.addr[owner]
	return a, ok
}

// Claim gives one certain address to owner, which may hold it already.
func (p *Pool) Claim(owner string, a netip.Addr) error {
	if !p.prefix.Contains(a) || a == p.prefix.Addr() {
		return fmt.Errorf("%v is not of the range %v", a, p.prefix)
	}
	if o, taken := p.owner[a]; taken && o != owner {
		return fmt.Errorf("%w: %v is %s's", ErrTaken, a, o)
	}
	p.Free(owner)
	p.owner[a], p.addr[owner] = owner, a
	return nil
}

// Stable gives owner an address that follows from its name, so that the same
// Services have the same addresses in the lab's next life without a record of
// them; only where two names collide does the order count.
func (p *Pool) Stable(owner string) (netip.Addr, error) {
	h := fnv.New64a()
	h.Write([]byte(owner))
	if p.size == 0 {
		return netip.Addr{}, fmt.Errorf("the range %v is empty", p.prefix)
	}
	return p.take(owner, int(h.Sum64()%uint64(p.size))+1)
}

// Next gives owner the next free address, going round, so that an address is
// not soon another's.
func (p *Pool) Next(owner string) (netip.Addr, error) { return p.take(owner, p.next) }

func (p *Pool) take(owner string, start int) (netip.Addr, error) {
	if a, ok := p.addr[owner]; ok {
		return a, nil
	}
	for i := range p.size {
		offset := (start-1+i)%p.size + 1
		a := p.at(offset)
		if _, taken := p.owner[a]; taken {
			continue
		}
		p.owner[a], p.addr[owner] = owner, a
		p.next = offset%p.size + 1
		return a, nil
	}
	return netip.Addr{}, fmt.Errorf("the range %v is full", p.prefix)
}

// Free returns what owner holds.
func (p *Pool) Free(owner string) {
	if a, ok := p.addr[owner]; ok {
		delete(p.owner, a)
		delete(p.addr, owner)
	}
}

func (p *Pool) at(offset int) netip.Addr {
	base := p.prefix.Addr()
	n := new(big.Int).SetBytes(base.AsSlice())
	n.Add(n, big.NewInt(int64(offset)))
	out := make([]byte, base.BitLen()/8)
	n.FillBytes(out)
	a, _ := netip.AddrFromSlice(out)
	return a
}

// Owners are all who hold an address, in no order.
func (p *Pool) Owners() []string { return slices.Collect(maps.Keys(p.addr)) }
