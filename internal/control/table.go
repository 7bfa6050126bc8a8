package control

import (
	"bytes"
	"container/list"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/wire"
)

const addrPrefix = "addr/"

// Entry is one address as the control plane last told it.
type Entry[T any] struct {
	t        *table[T]
	addr     netip.Addr
	name     string
	value    atomic.Pointer[T] // nil: no answer yet
	answered chan struct{}     // closed with the first answer, or the refusal to give one

	compiling sync.Mutex // serialises Compile

	// Under table.mu:
	holders   int
	closed    bool          // answered is closed
	changed   chan struct{} // closed with the next version; nil: nobody asked
	element   *list.Element // among the idle; nil: held
	idleSince time.Time
	dest      *pb.Destination
	version   []byte
	revision  uint64
}

// Load gives the newest version. It never blocks.
func (e *Entry[T]) Load() T { return *e.value.Load() }

// Changed gives a channel that is closed once there is a newer version than
// Load gives after this call.
func (e *Entry[T]) Changed() <-chan struct{} {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

// Release ends what Lookup began. Call it once.
func (e *Entry[T]) Release() { e.t.release(e) }

// table holds the entries. Those without a holder are in a list, least
// recently used last, and go when they are too many or idle for too long.
type table[T any] struct {
	compile   func(prev T, d *pb.Destination) T
	maxIdle   int
	idleAfter time.Duration

	mu       sync.Mutex
	entries  map[netip.Addr]*Entry[T]
	idle     *list.List     // of *Entry[T]
	link     *outbox        // of the present stream; nil: none
	offline  chan struct{}  // closed while the control plane is known to be out of reach
	prefixes []netip.Prefix // the cluster's; meaningful once settled
	settled  bool           // mesh settings were received
}

func (t *table[T]) init(cfg Config[T]) {
	t.compile, t.maxIdle, t.idleAfter = cfg.Compile, cfg.MaxIdle, cfg.IdleAfter
	t.entries, t.idle = map[netip.Addr]*Entry[T]{}, list.New()
	t.offline = make(chan struct{})
	close(t.offline)
}

func (t *table[T]) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries)
}

// each calls f for every address of which something is known.
func (t *table[T]) each(f func(addr netip.Addr, v T)) {
	t.mu.Lock()
	all := make([]*Entry[T], 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e)
	}
	t.mu.Unlock()
	for _, e := range all {
		if v := e.value.Load(); v != nil {
			f(e.addr, *v)
		}
	}
}

func (t *table[T]) lookup(ctx context.Context, addr netip.Addr) (*Entry[T], error) {
	e, offline := t.hold(addr.Unmap().WithZone(""))
	if e.value.Load() != nil {
		return e, nil
	}
	wait := time.NewTimer(lookupWait)
	defer wait.Stop()
	why := "no answer in time"
	select {
	case <-e.answered:
		why = "it knows no such address"
	case <-offline:
		why = "it is out of reach"
	case <-wait.C:
	case <-ctx.Done():
		e.Release()
		return nil, ctx.Err()
	}
	if e.value.Load() != nil || t.guess(e) {
		return e, nil
	}
	e.Release()
	return nil, fmt.Errorf("%s: %w: %s", addr, ErrUnknown, why)
}

// hold gives the entry of an address, asking for it if it is new.
func (t *table[T]) hold(addr netip.Addr) (*Entry[T], <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	if e == nil {
		e = &Entry[T]{t: t, addr: addr, name: addrPrefix + addr.String(), answered: make(chan struct{})}
		t.entries[addr] = e
		if t.link != nil {
			t.link.subscribe(e.name)
		}
	}
	e.holders++
	if e.element != nil {
		t.idle.Remove(e.element)
		e.element = nil
	}
	return e, t.offline
}

func (t *table[T]) release(e *Entry[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.holders--; e.holders > 0 {
		return
	}
	if e.value.Load() == nil {
		t.drop(e) // never answered: the next caller asks anew
		return
	}
	e.idleSince = time.Now()
	e.element = t.idle.PushFront(e)
	for t.idle.Len() > t.maxIdle {
		t.drop(t.idle.Back().Value.(*Entry[T]))
	}
}

// drop forgets an entry without a holder. The caller holds mu.
func (t *table[T]) drop(e *Entry[T]) {
	if e.element != nil {
		t.idle.Remove(e.element)
		e.element = nil
	}
	if t.entries[e.addr] == e {
		delete(t.entries, e.addr)
		if t.link != nil {
			t.link.unsubscribe(e.name)
		}
	}
}

// sweep drops what is idle for too long, until ctx ends.
func (t *table[T]) sweep(ctx context.Context) error {
	tick := time.NewTicker(t.idleAfter / sweepShare)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			t.expire(now)
		}
	}
}

func (t *table[T]) expire(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for b := t.idle.Back(); b != nil; b = t.idle.Back() {
		e := b.Value.(*Entry[T])
		if now.Sub(e.idleSince) < t.idleAfter {
			return
		}
		t.drop(e)
	}
}

// guess answers without the control plane: true if the address is certainly
// not the cluster's, so that it goes as it would without us. The entry stays
// subscribed, and the true answer replaces this one.
func (t *table[T]) guess(e *Entry[T]) bool {
	t.mu.Lock()
	ours := !t.settled
	for _, p := range t.prefixes {
		ours = ours || p.Contains(e.addr)
	}
	t.mu.Unlock()
	if ours {
		return false
	}
	e.compiling.Lock()
	defer e.compiling.Unlock()
	if e.value.Load() == nil {
		var none T
		v := t.compile(none, &pb.Destination{Kind: &pb.Destination_External{External: &pb.External{}}})
		e.value.Store(&v)
	}
	return true
}

// settle takes the cluster's prefixes.
func (t *table[T]) settle(prefixes []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prefixes, t.settled = prefixes, true
}

// connect makes out the way for wishes and gives what we hold, at one moment,
// so that no address is in neither.
func (t *table[T]) connect(out *outbox) []*pb.Held {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.link = out
	holds := make([]*pb.Held, 0, len(t.entries))
	for _, e := range t.entries {
		holds = append(holds, &pb.Held{Name: e.name, Version: e.version, Revision: e.revision})
	}
	return holds
}

// reach says whether the control plane can be asked. It stays "yes" over a
// reconnect that works at the first attempt: those who look up wait for it.
func (t *table[T]) reach(yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.offline:
		if yes {
			t.offline = make(chan struct{})
		}
	default:
		if !yes {
			close(t.offline)
		}
	}
}

func (t *table[T]) disconnect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.link = nil
}

// verdict is what became of an update.
type verdict struct {
	refused string // the reason; empty: taken or not ours
	again   bool   // ask for the whole
	ours    bool
	changed bool // another version than the one held is in force now
}

// apply takes an update of one address. One goroutine calls it.
func (t *table[T]) apply(addr netip.Addr, u *pb.Update) verdict {
	t.mu.Lock()
	e := t.entries[addr]
	if e == nil {
		t.mu.Unlock()
		return verdict{} // dropped meanwhile
	}
	was, version, revision := e.dest, e.version, e.revision
	t.mu.Unlock()
	if u.Revision < revision {
		return verdict{ours: true, refused: fmt.Sprintf("revision %d is older than %d, which I hold", u.Revision, revision)}
	}
	var next *pb.Destination
	switch content := u.GetContent().(type) {
	case *pb.Update_Destination:
		next = content.Destination
	case *pb.Update_DestinationDelta:
		if was == nil || !bytes.Equal(content.DestinationDelta.GetBaseVersion(), version) {
			return verdict{ours: true, again: true}
		}
		var err error
		if next, err = wire.Apply(was, content.DestinationDelta); err != nil {
			return verdict{ours: true, again: true, refused: err.Error()}
		}
	case nil:
		t.answer(e) // no such resource: whoever waits need not; what we have stays
		return verdict{ours: true}
	default:
		return verdict{ours: true, refused: "content of another kind"}
	}
	if next.GetKind() == nil {
		return verdict{ours: true, refused: "a destination of no kind I know"}
	}
	t.store(e, next, u)
	return verdict{ours: true, changed: was != nil}
}

// store compiles and publishes a new version.
func (t *table[T]) store(e *Entry[T], d *pb.Destination, u *pb.Update) {
	e.compiling.Lock()
	var prev T
	if p := e.value.Load(); p != nil {
		prev = *p
	}
	v := t.compile(prev, d)
	e.value.Store(&v)
	e.compiling.Unlock()
	t.mu.Lock()
	e.dest, e.version, e.revision = d, u.GetVersion(), u.GetRevision()
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
	t.mu.Unlock()
	t.answer(e)
}

// answer wakes those who wait for the first answer.
func (t *table[T]) answer(e *Entry[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !e.closed {
		e.closed = true
		close(e.answered)
	}
}
