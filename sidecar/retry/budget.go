package retry

import (
	"sync/atomic"
	"time"
)

const (
	// window is over how many seconds a budget counts, the present one included:
	// as long as a rolling restart's worst moment lasts.
	window = 10
	// slots holds the window and some seconds more, so that a slot is not begun
	// anew while a late reader still sums it.
	slots = 16
)

// Budget counts requests and retries of one destination. It has no lock: each
// second has a word that holds the second's number and its count.
type Budget struct {
	born              time.Time // seconds are counted from here
	requests, retries [slots]atomic.Uint64
}

// NewBudget gives a budget with nothing spent.
func NewBudget() *Budget { return &Budget{born: time.Now()} }

// second of a moment, never 0, which is an unused slot's.
func (b *Budget) second(now time.Time) uint64 { return uint64(max(now.Sub(b.born)/time.Second, 0)) + 1 }

func add(counts *[slots]atomic.Uint64, sec uint64) {
	slot := &counts[sec%slots]
	for {
		old := slot.Load()
		if old>>32 == sec&(1<<32-1) {
			slot.Add(1)
			return
		}
		if slot.CompareAndSwap(old, sec<<32|1) {
			return
		}
	}
}

func sum(counts *[slots]atomic.Uint64, sec uint64) (n uint64) {
	for i := uint64(0); i < window && i < sec; i++ {
		if v := counts[(sec-i)%slots].Load(); v>>32 == (sec-i)&(1<<32-1) {
			n += v & (1<<32 - 1)
		}
	}
	return n
}

// Request counts a request, not its retries. It costs one atomic addition.
func (b *Budget) Request(now time.Time) { add(&b.requests, b.second(now)) }

// Spend takes one retry out of the budget; false: it is used up. Callers at
// the same moment may be refused the last one all, but never overspend.
func (b *Budget) Spend(now time.Time, r *Rule) bool {
	sec := b.second(now)
	add(&b.retries, sec)
	if float64(sum(&b.retries, sec)) <= r.Ratio*float64(sum(&b.requests, sec))+r.Min*window {
		return true
	}
	slot := &b.retries[sec%slots]
	if v := slot.Load(); v>>32 == sec&(1<<32-1) && v&(1<<32-1) > 0 {
		slot.CompareAndSwap(v, v-1) // lost: it counts until the window has passed
	}
	return false
}
