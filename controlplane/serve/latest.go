package serve

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/source"
)

// World is what peers are told of; *state.World is one.
type World interface {
	Revision() uint64
	Resource(name string, p state.Peer) *state.Resource
	PodByUID(uid string) *source.Pod
}

// Latest holds the newest World and wakes all who wait for the next. A reader
// sees the newest, not each.
type Latest struct {
	mu   sync.Mutex // orders Set
	view atomic.Pointer[view]
}

type view struct {
	world World // nil: none yet
	since time.Time
	next  chan struct{} // closed by the Set that replaces this view
}

// NewLatest gives a Latest without a world.
func NewLatest() *Latest {
	l := &Latest{}
	l.view.Store(&view{next: make(chan struct{})})
	return l
}

// Set makes w the newest.
func (l *Latest) Set(w World) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.view.Swap(&view{world: w, since: time.Now(), next: make(chan struct{})})
	close(old.next)
}

// Current gives the newest world, nil before the first, and a channel that is
// closed once there is a newer.
func (l *Latest) Current() (World, <-chan struct{}) {
	v := l.view.Load()
	return v.world, v.next
}
