// Package services writes the forwarding of Services into the kernel's packet
// filter: one nftables table of our own, written over netlink in transactions,
// with only what changed in each. It knows keys, endpoints and verdicts as
// values and decides nothing about them (controlplane/node/plan does); it reads
// back, and says whether somebody else has meddled. controlplane/node/nft calls
// it, one goroutine at a time.
//
// The table (family inet, so one transaction serves both families):
//
//	prerouting, output  nat     -> services: vmap by address, protocol, port -> one chain per Service port
//	postrouting         nat     -> masquerade: a pod that gets itself, and who calls from elsewhere
//	forward, output_late -> refusals: vmap of keys without endpoints, other ports, other addresses
//	input               vmap of keys without endpoints
//
// No packet is marked: whether a flow is ours is seen by its original
// destination, which connection tracking remembers.
package services

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Key is what a new flow is known by.
type Key struct {
	Addr  netip.Addr
	Proto uint8 // number in the IP header
	Port  uint16
}

func (k Key) String() string {
	return fmt.Sprintf("%d/%s", k.Proto, netip.AddrPortFrom(k.Addr, k.Port))
}

func compareKeys(a, b Key) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
}

// Verdict is what becomes of a Key's new flows; the zero value refuses.
type Verdict uint8

// The verdicts.
const (
	Reject Verdict = iota
	Drop
	Forward
)

// Target is the verdict and, of Forward, where to.
type Target struct {
	Verdict   Verdict
	Chain     string // name of the Key's own chain, unique among keys; letters, digits and / . _ - after a first letter
	Endpoints []netip.AddrPort
}

func (t Target) equal(o Target) bool {
	return t.Verdict == o.Verdict && t.Chain == o.Chain && slices.Equal(t.Endpoints, o.Endpoints)
}

// Rules are everything that the table shall hold. They are read-only once
// given to Apply.
type Rules struct {
	Keys    map[Key]Target
	Addrs   map[netip.Addr]bool // Services' addresses: their other ports are refused
	Hairpin map[netip.Addr]bool // endpoints that, calling themselves, need their source rewritten
	Pods    []netip.Prefix      // sources outside them are rewritten; none of a family: no source of it is
	Ranges  []netip.Prefix      // Services': what is nobody's in them is dropped
}

// Stats say what one Apply did.
type Stats struct {
	Full         bool // the whole table was compared with the kernel, not with what we remember
	Keys         int  // keys added, changed and removed
	Messages     int  // to the kernel
	Transactions int
}

// Table is our table in the network namespace of the goroutine that calls.
type Table struct {
	log    *slog.Logger
	have   *Rules          // in the kernel, as far as we know; nil: not known
	chains map[string]bool // of keys, in the kernel, wanted or not
	// gen is the generation that the kernel's ruleset has if nobody but us wrote
	// since it was as have says: each transaction adds one. It is not asked for
	// after a write, or somebody else's write just after ours would be taken for
	// ours.
	gen uint32
}

// New gives a Table that has not looked at the kernel yet.
func New(log *slog.Logger) *Table { return &Table{log: telemetry.Discard(log)} }

// Forget makes the next Apply compare with the kernel itself.
func (t *Table) Forget() { t.have = nil }

// Apply brings the kernel to want. A key is changed within one transaction, so
// no packet finds it half-made or missing; keys are taken in batches, so that
// no transaction is too large for the kernel. After an error the next Apply
// compares with the kernel itself.
func (t *Table) Apply(want *Rules) (Stats, error) {
	var st Stats
	err := t.apply(want, &st)
	t.gen += uint32(st.Transactions)
	if err != nil {
		t.have = nil
		return st, err
	}
	t.have = want
	t.sweep(want)
	return st, nil
}

// Add brings want's keys and addresses to the kernel, in one transaction, and
// leaves all else that the table holds as it is; Pods and Ranges are not read.
// It is for few keys, while it is not known what others there should be. The
// next Apply compares with the kernel itself.
func (t *Table) Add(want *Rules) (Stats, error) {
	var st Stats
	t.have = nil
	b := &batch{table: tableName, st: &st}
	have, chains, err := load(b)
	if err != nil {
		return st, err
	}
	if len(have.Keys) == 0 && len(have.Addrs) == 0 {
		b.statics(nil, nil)
	}
	t.chains = chains
	b.addresses(addrSet, missing(want.Addrs, have.Addrs), nil)
	b.addresses(hairpinSet, missing(want.Hairpin, have.Hairpin), nil)
	for _, k := range slices.SortedFunc(maps.Keys(want.Keys), compareKeys) {
		old, had := have.Keys[k]
		t.key(b, k, change{old, had, want.Keys[k], true})
		st.Keys++
	}
	return st, b.commit()
}

// maxBatch bounds a transaction: the kernel holds a lock of all packet filters
// while it commits, some microseconds for each message.
const maxBatch = 4000

func (t *Table) apply(want *Rules, st *Stats) error {
	b := &batch{table: tableName, st: st}
	if t.have == nil {
		var err error
		st.Full = true
		if t.gen, err = generation(); err != nil {
			return err
		}
		if t.have, t.chains, err = load(b); err != nil {
			return err
		}
		b.statics(want.Pods, want.Ranges)
	} else if !slices.Equal(t.have.Pods, want.Pods) || !slices.Equal(t.have.Ranges, want.Ranges) {
		b.statics(want.Pods, want.Ranges)
	}
	b.addresses(addrSet, missing(want.Addrs, t.have.Addrs), nil)
	b.addresses(hairpinSet, missing(want.Hairpin, t.have.Hairpin), nil)
	for _, k := range changedKeys(t.have.Keys, want.Keys) {
		old, had := t.have.Keys[k]
		now, has := want.Keys[k]
		t.key(b, k, change{old, had, now, has})
		st.Keys++
		if b.full() {
			if err := b.commit(); err != nil {
				return err
			}
		}
	}
	b.addresses(addrSet, nil, missing(t.have.Addrs, want.Addrs))
	b.addresses(hairpinSet, nil, missing(t.have.Hairpin, want.Hairpin))
	return b.commit()
}

// change of one key.
type change struct {
	old Target
	had bool
	now Target
	has bool
}

// key queues what brings one key from old to now.
func (t *Table) key(b *batch, k Key, c change) {
	if c.has && c.now.Verdict == Forward {
		if !c.had || c.old.Chain != c.now.Chain || !slices.Equal(c.old.Endpoints, c.now.Endpoints) {
			b.chain(k, c.now)
			t.chains[c.now.Chain] = true
		}
	}
	if c.had && c.has && entry(c.old) == entry(c.now) {
		return
	}
	if c.had {
		b.key(unix.NFT_MSG_DELSETELEM, k, c.old)
	}
	if c.has {
		b.key(unix.NFT_MSG_NEWSETELEM, k, c.now)
	}
}

// entry is what a key's entry in a map says, as far as it can differ.
func entry(t Target) string {
	if t.Verdict == Forward {
		return "forward " + t.Chain
	}
	return []string{Reject: "reject", Drop: "drop"}[t.Verdict]
}

// sweep deletes chains that no key leads to any more, in a transaction of its
// own: old kernels hold a chain busy for a while after its last element went,
// and then it is tried again with the next change. An unused chain does no harm.
func (t *Table) sweep(want *Rules) {
	used := make(map[string]bool, len(want.Keys))
	for _, target := range want.Keys {
		if target.Verdict == Forward {
			used[target.Chain] = true
		}
	}
	var stale []string
	for name := range t.chains {
		if !used[name] {
			stale = append(stale, name)
		}
	}
	if len(stale) == 0 {
		return
	}
	slices.Sort(stale)
	for part := range slices.Chunk(stale, maxBatch/4) {
		if err := deleteChains(part); err != nil {
			t.log.Debug("chains that are not used any more stay for now", "chains", len(part), "error", err)
			return
		}
		t.gen++
		for _, name := range part {
			delete(t.chains, name)
		}
	}
}

func missing(want, have map[netip.Addr]bool) []netip.Addr {
	var out []netip.Addr
	for a := range want {
		if !have[a] {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// changedKeys are those that differ, in order.
func changedKeys(have, want map[Key]Target) []Key {
	out := map[Key]bool{}
	for k, now := range want {
		if old, ok := have[k]; !ok || !old.equal(now) {
			out[k] = true
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			out[k] = true
		}
	}
	return slices.SortedFunc(maps.Keys(out), compareKeys)
}
