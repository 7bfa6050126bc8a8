package serve

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// encodings keeps updates in their bytes, so that each is encoded once however
// many peers get it. Two generations: when the young one is full it becomes
// the old one, and what nobody asked for since then is forgotten.
type encodings struct {
	made       prometheus.Counter
	mu         sync.Mutex
	young, old map[stepKey]*encoding
	bytes      int // of young
}

// step is one way from what a peer holds to what it shall hold.
type step struct {
	from, to *state.Resource // from nil: whole
	revision uint64          // told to the peer
}

// stepKey is a step by its versions, which are hashes of content. It must not
// hold the resources themselves: a step of a hundred bytes between two forms of
// a large Service would keep both of them in memory.
type stepKey struct {
	name, from, to string
	revision       uint64
}

func (s step) key() stepKey {
	k := stepKey{name: s.to.Name, to: string(s.to.Version), revision: s.revision}
	if s.from != nil {
		k.from = string(s.from.Version)
	}
	return k
}

type encoding struct {
	once sync.Once
	size atomic.Int64
	msg  *wire.Encoded
	form string
	err  error
}

func newEncodings(made prometheus.Counter) *encodings {
	return &encodings{made: made, young: map[stepKey]*encoding{}}
}

// get gives the bytes of a step, made by the first who asks.
func (c *encodings) get(s step) *encoding {
	e := c.find(s.key())
	e.once.Do(func() {
		e.make(s)
		c.made.Inc()
		if e.err == nil {
			e.size.Store(int64(e.msg.Len()))
			c.grow(e.msg.Len())
		}
	})
	return e
}

func (c *encodings) find(s stepKey) *encoding {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.young[s]; e != nil {
		return e
	}
	e := c.old[s]
	if e == nil {
		e = &encoding{}
	} else {
		c.bytes += int(e.size.Load())
	}
	c.young[s] = e
	c.bytes += entryOverhead
	return e
}

// grow counts bytes and turns the generations over.
func (c *encodings) grow(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += n
	if c.bytes > cacheBytes || len(c.young) > cacheEntries {
		c.old, c.young, c.bytes = c.young, map[stepKey]*encoding{}, 0
	}
}

func (e *encoding) make(s step) {
	u := s.to.Update
	e.form = "whole"
	if s.from != nil {
		u = state.Diff(s.from, s.to)
		if u.GetDestinationDelta() != nil || u.GetNodeDelta() != nil {
			e.form = "delta"
		}
	}
	// The envelope is ours: the same content under the name, version and
	// revision of this step.
	out := &pb.Update{Name: s.to.Name, Version: s.to.Version, Revision: s.revision, Content: u.GetContent()}
	e.msg, e.err = wire.Encode(&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: out}})
}
