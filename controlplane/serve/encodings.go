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
	young, old map[step]*encoding
	bytes      int // of young
}

// step is one way from what a peer holds to what it shall hold. Resources are
// compared by pointer: the same content is the same *Resource.
type step struct {
	from, to *state.Resource // from nil: whole
	revision uint64          // told to the peer
}

type encoding struct {
	once sync.Once
	size atomic.Int64
	msg  *wire.Encoded
	form string
	err  error
}

func newEncodings(made prometheus.Counter) *encodings {
	return &encodings{made: made, young: map[step]*encoding{}}
}

// get gives the bytes of a step, made by the first who asks.
func (c *encodings) get(s step) *encoding {
	e := c.find(s)
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

func (c *encodings) find(s step) *encoding {
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
		c.old, c.young, c.bytes = c.young, map[step]*encoding{}, 0
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
