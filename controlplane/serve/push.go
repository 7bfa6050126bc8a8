package serve

import (
	"bytes"
	"slices"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
)

// push brings the peer to the newest world: all it wants, or only what it has
// just asked for.
func (x *session) push(all bool) error {
	names, refused := x.due(all)
	for _, name := range refused {
		if err := x.sendNone(name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := x.pushOne(name); err != nil {
			return err
		}
	}
	return nil
}

// due gives the names to look at, what a peer needs first before the rest.
func (x *session) due(all bool) (names, refused []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if all {
		for name := range x.subs {
			x.fresh[name] = true
		}
	}
	for _, name := range own[x.who.Kind] {
		if x.fresh[name] {
			names = append(names, name)
			delete(x.fresh, name)
		}
	}
	rest := len(names)
	for name := range x.fresh {
		names = append(names, name)
	}
	slices.Sort(names[rest:])
	for name := range x.refused {
		refused = append(refused, name)
	}
	clear(x.fresh)
	clear(x.refused)
	return names, refused
}

// pushOne sends what the newest world says of one name, if the peer has not
// got it.
func (x *session) pushOne(name string) error {
	v := x.s.cfg.Worlds.view.Load()
	next := v.world.Resource(name, x.who)
	if next == nil {
		if x.markNone(name) {
			return x.sendNone(name)
		}
		return nil
	}
	st, send := x.advance(name, step{to: next, revision: next.Revision}, v)
	if !send {
		return nil
	}
	e := x.s.encodings.get(st)
	if e.err != nil {
		x.log.Error("cannot send an update", "name", name, "error", e.err)
		return nil
	}
	if err := x.send(e.msg); err != nil {
		return err
	}
	x.s.metrics.pushes.WithLabelValues(e.form).Inc()
	x.s.metrics.bytes.Add(float64(e.msg.Len()))
	return nil
}

// advance notes that the peer is being sent st.to and completes the step: from
// what, and under which revision. False: nothing is to be sent.
func (x *session) advance(name string, st step, v *view) (step, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	sub := x.subs[name]
	if sub == nil {
		return st, false // unsubscribed meanwhile
	}
	if bytes.Equal(sub.version, st.to.Version) {
		sub.sent = st.to // from here on deltas are possible
		return st, false
	}
	if st.revision < sub.revision {
		if v.world.Revision() < sub.revision {
			// Another replica told the peer of something we have not seen yet.
			x.s.metrics.lagging.Inc()
			return st, false
		}
		// Content that was made long ago and is right again: our world is new
		// enough to say so, under its own revision.
		st.revision = v.world.Revision()
	}
	st.from = sub.sent
	if sub.version != nil && !sub.none {
		sub.changed = v.since
	}
	sub.version, sub.revision, sub.sent, sub.none = st.to.Version, st.revision, st.to, false
	return st, true
}

// markNone says whether the peer has yet to be told that there is nothing.
func (x *session) markNone(name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	sub := x.subs[name]
	if sub == nil || sub.none {
		return false
	}
	sub.version, sub.sent, sub.none, sub.changed = nil, nil, true, time.Time{}
	return true
}

// sendNone tells that there is no such resource, or none for this peer: an
// Update without content. The stream goes on.
func (x *session) sendNone(name string) error {
	world, _ := x.s.cfg.Worlds.Current()
	x.s.metrics.pushes.WithLabelValues("none").Inc()
	return x.sendMessage(&pb.ControlMessage{Message: &pb.ControlMessage_Update{
		Update: &pb.Update{Name: name, Revision: world.Revision()},
	}})
}
