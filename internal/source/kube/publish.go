package kube

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// holdOff gathers changes: a rollout touches pods and slices at once.
	holdOff = 5 * time.Millisecond
	// checkEvery is how exactly awayAfter is kept.
	checkEvery = time.Second
)

// publishing makes snapshots of what the shelves hold, until ctx ends.
func (s *Source) publishing(ctx context.Context) {
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for {
		select {
		case <-s.dirty:
			if !pause(ctx, holdOff) {
				return
			}
		case <-check.C:
		case <-ctx.Done():
			return
		}
		s.publish(time.Now())
	}
}

// publish makes a snapshot if anything differs, once everything was listed.
func (s *Source) publish(now time.Time) {
	next := s.next(now)
	if next == nil {
		return
	}
	s.snapshot.Store(next)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// next is the snapshot that follows the newest one; nil: none does.
func (s *Source) next(now time.Time) *source.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	prev := s.snapshot.Load()
	if prev == nil {
		for _, sh := range s.shelves {
			if !sh.synced && !sh.gone {
				return nil
			}
		}
		if !s.asked {
			return nil
		}
	}
	e := &edit{Snapshot: *empty(), differs: prev == nil}
	if prev != nil {
		e.Snapshot = *prev
	}
	e.Problems, e.BrokenPolicies, e.ServiceCIDRs, e.Mesh = s.away(now), nil, nil, nil
	for name, sh := range s.shelves {
		e.take(sh)
		clear(sh.dirty)
		if sh.gone {
			delete(s.shelves, name)
		}
	}
	e.Tidy()
	if prev != nil {
		e.compare(prev)
	}
	if !e.differs && !e.told && !s.heard {
		return nil
	}
	s.heard = false
	e.Revision = s.revision(prev, e.differs)
	return &e.Snapshot
}

// revision is the newest resourceVersion of which any watch has told, so it is
// equal on replicas that saw the same and goes on after a restart. Events of
// two kinds may overtake each other: a change that the number does not show
// takes the next one, which a replica that has not seen it yet does not reach.
// Bookmarks raise it where nothing changes, about once a minute, so that such
// a replica is never far behind for long.
func (s *Source) revision(prev *source.Snapshot, differs bool) uint64 {
	if prev == nil {
		return max(s.seen, 1)
	}
	if s.seen <= prev.Revision && differs {
		return prev.Revision + 1
	}
	return max(s.seen, prev.Revision)
}

// edit is a snapshot in the making: maps are shared with the one before until
// something in them changes.
type edit struct {
	source.Snapshot
	differs bool // in what peers are told
	told    bool // Problems differ
}

// take carries a shelf's changes over.
func (e *edit) take(sh *shelf) {
	byKey := func(k source.Key) source.Key { return k }
	byName := func(k source.Key) string { return k.Name }
	for _, b := range sh.bad {
		e.Problems = append(e.Problems, b.problems...)
		e.BrokenPolicies = append(e.BrokenPolicies, b.broken...)
	}
	switch sh.kind.Name {
	case "Namespace":
		carry(e, &e.Namespaces, sh, byName)
	case "Node":
		carry(e, &e.Nodes, sh, byName)
	case "Pod":
		carry(e, &e.Pods, sh, byKey)
	case "Service":
		carry(e, &e.Services, sh, byKey)
	case "ServiceAccount":
		carry(e, &e.ServiceAccounts, sh, byKey)
	case "EndpointSlice":
		carry(e, &e.EndpointSlices, sh, byKey)
	case "AccessPolicy":
		carry(e, &e.AccessPolicies, sh, byKey)
	case "TrafficPolicy":
		carry(e, &e.TrafficPolicies, sh, byKey)
	case "ServiceCIDR":
		for _, x := range sh.objects {
			if r, ok := x.value.(*ranges); ok {
				e.ServiceCIDRs = append(e.ServiceCIDRs, r.list...)
			}
		}
	case "MeshConfig":
		if x := sh.objects[source.Key{Name: "default"}]; x != nil {
			e.Mesh, _ = x.value.(*v1alpha1.MeshConfig)
		}
	default:
		carry(e, &e.Routes, sh, func(k source.Key) source.Ref {
			return source.Ref{Kind: sh.kind.Name, Namespace: k.Namespace, Name: k.Name}
		})
	}
}

// carry changes a map of the snapshot as the shelf changed; it is copied
// before the first change.
func carry[K comparable, V any](e *edit, m *map[K]*V, sh *shelf, key func(source.Key) K) {
	copied := false
	for k := range sh.dirty {
		var now *V
		if x := sh.objects[k]; x != nil {
			now, _ = x.value.(*V)
		}
		id := key(k)
		if (*m)[id] == now {
			continue
		}
		if !copied {
			*m, copied, e.differs = maps.Clone(*m), true, true
		}
		if now == nil {
			delete(*m, id)
		} else {
			(*m)[id] = now
		}
	}
}

// compare looks at what is made anew each time, and keeps what is equal.
func (e *edit) compare(prev *source.Snapshot) {
	if reflect.DeepEqual(prev.Mesh, e.Mesh) {
		e.Mesh = prev.Mesh
	} else {
		e.differs = true
	}
	if slices.Equal(prev.ServiceCIDRs, e.ServiceCIDRs) {
		e.ServiceCIDRs = prev.ServiceCIDRs
	} else {
		e.differs = true
	}
	if slices.Equal(prev.Problems, e.Problems) {
		e.Problems = prev.Problems
	} else {
		e.told = true
	}
	if reflect.DeepEqual(prev.BrokenPolicies, e.BrokenPolicies) {
		e.BrokenPolicies = prev.BrokenPolicies
	} else {
		e.differs = true
	}
}
