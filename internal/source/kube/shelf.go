package kube

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/kube/apiserver"
)

// shelf holds one kind as its Reflector tells it (cache.ReflectorStore). Its
// fields are under Source.mu.
type shelf struct {
	source  *Source
	kind    apiserver.Kind
	synced  bool
	objects map[source.Key]*entry
	dirty   map[source.Key]bool   // differ from the newest snapshot
	bad     map[source.Key]*entry // those with problems
	gone    bool                  // the kind is no longer served
	since   time.Time             // of the first failure to watch; zero: it works
	told    time.Time             // when a failure was logged last
}

// entry is one object. It is never changed.
type entry struct {
	value    any // as manifest.Object.Value, but *ranges; nil: it was never good
	problems []source.Problem
	broken   []source.BrokenPolicy
}

// expect makes the shelf of a kind that is being listed now.
func (s *Source) expect(k apiserver.Kind) *shelf {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := &shelf{source: s, kind: k, objects: map[source.Key]*entry{}, dirty: map[source.Key]bool{}, bad: map[source.Key]*entry{}}
	if old := s.shelves[k.Name]; old != nil { // gone, and back before a snapshot said so
		sh.dirty = old.dirty
	}
	s.shelves[k.Name] = sh
	return sh
}

// forget takes a kind's objects away.
func (s *Source) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shelves[name]
	for k := range sh.objects {
		sh.dirty[k] = true
	}
	clear(sh.objects)
	clear(sh.bad)
	sh.gone, sh.since = true, time.Time{}
	s.touch()
}

// touch signals that a snapshot is due.
func (s *Source) touch() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// Add takes an object that is new.
func (sh *shelf) Add(o any) error { return sh.Update(o) }

// Update takes an object as it is now.
func (sh *shelf) Update(o any) error {
	sh.source.mu.Lock()
	defer sh.source.mu.Unlock()
	if sh.put(o.(*object)) {
		sh.source.touch()
	}
	return nil
}

// Delete takes an object away.
func (sh *shelf) Delete(o any) error {
	sh.source.mu.Lock()
	defer sh.source.mu.Unlock()
	x := o.(*object)
	sh.source.saw(x.ResourceVersion)
	k := source.Key{Namespace: x.Namespace, Name: x.Name}
	if sh.objects[k] != nil {
		sh.drop(k)
		sh.source.touch()
	}
	return nil
}

// Replace takes everything there is.
func (sh *shelf) Replace(all []any, version string) error {
	sh.source.mu.Lock()
	defer sh.source.mu.Unlock()
	there := make(map[source.Key]bool, len(all))
	for _, o := range all {
		x := o.(*object)
		there[source.Key{Namespace: x.Namespace, Name: x.Name}] = true
		sh.put(x)
	}
	for k := range sh.objects {
		if !there[k] {
			sh.drop(k)
		}
	}
	sh.source.saw(version)
	sh.synced = true
	sh.recovered()
	sh.source.touch()
	return nil
}

// Bookmark says up to where everything is known.
func (sh *shelf) Bookmark(version string) error {
	sh.source.mu.Lock()
	defer sh.source.mu.Unlock()
	if before := sh.source.seen; sh.source.saw(version) > before {
		sh.source.heard = true
		sh.source.touch()
	}
	return nil
}

// Resync is a Reflector's word for something that we do not want.
func (sh *shelf) Resync() error { return nil }

func (sh *shelf) drop(k source.Key) {
	delete(sh.objects, k)
	delete(sh.bad, k)
	sh.dirty[k] = true
}

// put takes an object; false: it says what it said.
func (sh *shelf) put(o *object) bool {
	sh.source.saw(o.ResourceVersion)
	k := source.Key{Namespace: o.Namespace, Name: o.Name}
	old := sh.objects[k]
	now := newEntry(old, o)
	if old != nil && old.value == now.value && slices.Equal(old.problems, now.problems) && reflect.DeepEqual(old.broken, now.broken) {
		return false
	}
	sh.objects[k] = now
	if delete(sh.bad, k); len(now.problems) > 0 {
		sh.bad[k] = now
	}
	sh.dirty[k] = true
	return true
}

// ranges are a ServiceCIDR's, behind a pointer as all other values.
type ranges struct{ list []netip.Prefix }

// generated are our kinds, whose generation the API server counts.
type generated interface{ SetGeneration(int64) }

// newEntry is an object with what stays of its last good version: a bad
// AccessPolicy is broken and denies, any other bad object stays as it was. As
// in a folder, that memory ends with the process.
func newEntry(old *entry, o *object) *entry {
	e := &entry{problems: o.text.Problems, broken: o.text.Broken}
	if len(o.text.Objects) == 1 {
		e.value = o.text.Objects[0].Value
		if list, ok := e.value.([]netip.Prefix); ok {
			e.value = &ranges{list}
		}
	}
	if g, ok := e.value.(generated); ok {
		g.SetGeneration(o.Generation)
	}
	for i := range e.problems {
		if e.problems[i].Generation != 0 {
			e.problems[i].Generation = o.Generation
		}
	}
	switch {
	case old == nil:
	case e.value == nil && len(e.broken) == 0:
		e.value = old.value
	case e.value != nil && reflect.DeepEqual(old.value, e.value):
		e.value = old.value
	}
	return e
}

// saw notes a resourceVersion. They are numbers that grow over all kinds of
// one etcd (KEP-5504); what is none counts for nothing.
func (s *Source) saw(version string) uint64 {
	if n, err := strconv.ParseUint(version, 10, 64); err == nil && n > s.seen {
		s.seen = n
	}
	return s.seen
}

const (
	// awayAfter is how long a kind may fail to be watched before that is a
	// Problem: an API server that restarts is back by then.
	awayAfter = 10 * time.Second
	// tellAgain is how often a failure that lasts is logged.
	tellAgain = time.Minute
)

// failed notes that the kind could not be listed or watched.
func (sh *shelf) failed(err error) {
	s, now := sh.source, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, context.Canceled) || sh.kind.Optional && apierrors.IsNotFound(err) {
		return // we are ending; or its CRD went, which discovering will see
	}
	if sh.since.IsZero() {
		sh.since = now
	}
	if now.Sub(sh.told) >= tellAgain {
		sh.told = now
		s.log.Warn("cannot watch, what is known stays", "kind", sh.kind.Name, "known", len(sh.objects), "error", err)
	}
}

// works notes that the API server lets us watch the kind.
func (sh *shelf) works() {
	sh.source.mu.Lock()
	defer sh.source.mu.Unlock()
	if sh.synced {
		sh.recovered()
	}
}

func (sh *shelf) recovered() {
	if !sh.since.IsZero() {
		sh.source.log.Info("watching again", "kind", sh.kind.Name, "after", time.Since(sh.since).Round(time.Millisecond).String())
		sh.since, sh.told = time.Time{}, time.Time{}
		sh.source.touch()
	}
}

// away are the kinds that are not served or have failed for too long, each a Problem whose words
// do not change; s.mu is held.
func (s *Source) away(now time.Time) (out []source.Problem) {
	for _, k := range s.lacking {
		out = append(out, source.Problem{
			Ref: source.Ref{Kind: "CustomResourceDefinition", Name: k.Plural + "." + k.Group}, Err: "is not installed",
			Fix: "apply the CRDs of Heddle's chart (heddle install does): until then there is no " + k.Name,
		})
	}
	for _, sh := range s.shelves {
		if !sh.since.IsZero() && now.Sub(sh.since) >= awayAfter {
			out = append(out, source.Problem{
				Ref: source.Ref{Kind: "APIServer", Name: s.Host()}, Field: sh.kind.Plural, Err: "cannot be listed or watched",
				Fix: "what was known before stays in force; the log says why: is the API server up, may this service account list and watch them?",
			})
		}
	}
	return out
}
