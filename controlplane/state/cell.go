package state

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/heddle-mesh/heddle/api/wire"
	iwire "github.com/heddle-mesh/heddle/internal/wire"
)

// entry is one resource's name and its content, without name, version and
// revision.
type entry struct {
	name   string
	update *wire.Update
}

// cell is content that is made when it is first asked for. It is carried from
// world to world as long as nothing that it is made of changes, so it may be
// made for whichever world asks first. Its successor takes over the resources
// if the content turns out to be the same.
type cell struct {
	revision uint64               // of the world that began it
	last     atomic.Pointer[made] // of the cell before; nil: none, or used up
	once     sync.Once
	done     atomic.Pointer[made]
}

// made are the resources of one cell; those with one content share it.
type made struct{ resources []*Resource }

func (m *made) find(name string) *Resource {
	for _, r := range m.resources {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// next begins the successor of c, which may be nil.
func (c *cell) next(revision uint64) *cell {
	n := &cell{revision: revision}
	if c != nil {
		// In this order: last is dropped only after done is there.
		last := c.last.Load()
		if m := c.done.Load(); m != nil {
			last = m
		}
		n.last.Store(last)
	}
	return n
}

func (c *cell) get(w *World, build func() []entry) *made {
	c.once.Do(func() {
		m, last := &made{}, c.last.Load()
		var version []byte
		var content *wire.Destination // that version is the hash of
		for _, e := range build() {
			if d := e.update.GetDestination(); version == nil || d != content {
				version, content = hash(e.update), d
			}
			if last != nil {
				if r := last.find(e.name); r != nil && bytes.Equal(r.Version, version) && version != nil {
					m.resources = append(m.resources, r)
					continue
				}
			}
			u := e.update
			u.Name, u.Version, u.Revision = e.name, version, c.revision
			m.resources = append(m.resources, &Resource{Name: e.name, Version: version, Revision: c.revision, Update: u})
		}
		c.done.Store(m)
		c.last.Store(nil)
	})
	return c.done.Load()
}

// hash is the version of an update's content; its name, version and revision
// are not set yet.
func hash(u *wire.Update) []byte { return iwire.Hash(u) }

// externalMemo keeps the resources of addresses that are not known to the
// mesh. Name and revision say all that is in one, so worlds share it.
type externalMemo struct {
	mu      sync.Mutex
	made    map[externalKey]*Resource
	version []byte
}

type externalKey struct {
	name     string
	revision uint64
}

// maxExternals bounds the memo: peers name these addresses, not the cluster.
const maxExternals = 8192

func newExternalMemo() *externalMemo {
	return &externalMemo{made: map[externalKey]*Resource{}, version: hash(external())}
}

func external() *wire.Update {
	return &wire.Update{Content: &wire.Update_Destination{Destination: &wire.Destination{Kind: &wire.Destination_External{External: &wire.External{}}}}}
}

func (m *externalMemo) get(name string, revision uint64) *Resource {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := externalKey{name, revision}
	if r := m.made[key]; r != nil {
		return r
	}
	if len(m.made) >= maxExternals {
		clear(m.made)
	}
	u := external()
	u.Name, u.Version, u.Revision = name, m.version, revision
	r := &Resource{Name: name, Version: m.version, Revision: revision, Update: u}
	m.made[key] = r
	return r
}
