package files

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/manifest"
)

// assemble makes one snapshot of all files. Of two documents of one name the
// one in the oldest file wins and the other is reported: whoever comes later
// cannot take an object over. What equals prev keeps prev's pointers, and a
// kind without a change keeps its very map.
func assemble(prev *source.Snapshot, all []*version) *source.Snapshot {
	slices.SortFunc(all, func(a, b *version) int {
		if a.stat.mtime != b.stat.mtime {
			return int(min(max(a.stat.mtime-b.stat.mtime, -1), 1))
		}
		return strings.Compare(a.path, b.path)
	})
	s := &source.Snapshot{
		Namespaces: map[string]*source.Namespace{}, Nodes: map[string]*source.Node{},
		Pods: map[source.Key]*source.Pod{}, Services: map[source.Key]*source.Service{},
		EndpointSlices: map[source.Key]*source.EndpointSlice{}, ServiceAccounts: map[source.Key]*source.ServiceAccount{},
		AccessPolicies: map[source.Key]*v1alpha1.AccessPolicy{}, TrafficPolicies: map[source.Key]*v1alpha1.TrafficPolicy{},
		Routes: map[source.Ref]*source.Route{},
	}
	owner := map[source.Ref]string{}
	for _, v := range all {
		s.Problems = append(s.Problems, v.problems...)
		s.BrokenPolicies = append(s.BrokenPolicies, v.broken...)
		for _, o := range v.objects {
			if first, twice := owner[o.Ref]; twice {
				s.Problems = append(s.Problems, source.Problem{
					File: v.path, Line: o.Line, Ref: o.Ref, Err: "stands already in " + first,
					Fix: "keep one of the two; until then the one in the oldest file counts",
				})
				continue
			}
			owner[o.Ref] = v.path
			place(s, o)
		}
	}
	tidy(s)
	if prev != nil {
		s.Namespaces, s.Nodes = keep(prev.Namespaces, s.Namespaces), keep(prev.Nodes, s.Nodes)
		s.Pods, s.Services = keep(prev.Pods, s.Pods), keep(prev.Services, s.Services)
		s.EndpointSlices, s.ServiceAccounts = keep(prev.EndpointSlices, s.EndpointSlices), keep(prev.ServiceAccounts, s.ServiceAccounts)
		s.AccessPolicies, s.TrafficPolicies = keep(prev.AccessPolicies, s.AccessPolicies), keep(prev.TrafficPolicies, s.TrafficPolicies)
		s.Routes = keep(prev.Routes, s.Routes)
		if reflect.DeepEqual(prev.Mesh, s.Mesh) {
			s.Mesh = prev.Mesh
		}
	}
	return s
}

func place(s *source.Snapshot, o manifest.Object) {
	key := source.Key{Namespace: o.Ref.Namespace, Name: o.Ref.Name}
	switch v := o.Value.(type) {
	case *source.Namespace:
		s.Namespaces[key.Name] = v
	case *source.Node:
		s.Nodes[key.Name] = v
	case *source.Pod:
		s.Pods[key] = v
	case *source.Service:
		s.Services[key] = v
	case *source.EndpointSlice:
		s.EndpointSlices[key] = v
	case *source.ServiceAccount:
		s.ServiceAccounts[key] = v
	case []netip.Prefix:
		s.ServiceCIDRs = append(s.ServiceCIDRs, v...)
	case *v1alpha1.MeshConfig:
		s.Mesh = v
	case *v1alpha1.AccessPolicy:
		s.AccessPolicies[key] = v
	case *v1alpha1.TrafficPolicy:
		s.TrafficPolicies[key] = v
	case *source.Route:
		s.Routes[o.Ref] = v
	}
}

// tidy sorts the lists, and takes out policies that are good in one file and
// bad in another: they are bad.
func tidy(s *source.Snapshot) {
	s.Tidy()
	for _, b := range s.BrokenPolicies {
		delete(s.AccessPolicies, source.Key{Namespace: b.Ref.Namespace, Name: b.Ref.Name})
	}
}

// keep gives old's pointers to what is equal, and old itself if all is.
func keep[K comparable, V any](old, now map[K]*V) map[K]*V {
	same := len(old) == len(now)
	for k, v := range now {
		was, ok := old[k]
		switch {
		case !ok:
			same = false
		case was == v:
		case reflect.DeepEqual(was, v):
			now[k] = was
		default:
			same = false
		}
	}
	if same && old != nil {
		return old
	}
	return now
}

// equal says whether two snapshots say the same, their revision aside.
func equal(a, b *source.Snapshot) bool {
	return a != nil && b != nil &&
		sameMap(a.Namespaces, b.Namespaces) && sameMap(a.Nodes, b.Nodes) && sameMap(a.Pods, b.Pods) &&
		sameMap(a.Services, b.Services) && sameMap(a.EndpointSlices, b.EndpointSlices) &&
		sameMap(a.ServiceAccounts, b.ServiceAccounts) && sameMap(a.AccessPolicies, b.AccessPolicies) &&
		sameMap(a.TrafficPolicies, b.TrafficPolicies) && sameMap(a.Routes, b.Routes) && a.Mesh == b.Mesh &&
		slices.Equal(a.ServiceCIDRs, b.ServiceCIDRs) && slices.Equal(a.Problems, b.Problems) &&
		reflect.DeepEqual(a.BrokenPolicies, b.BrokenPolicies)
}

func sameMap[K comparable, V any](a, b map[K]*V) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// version is one accepted content of one file.
type version struct {
	path     string // below the folder
	stat     stat
	hash     [32]byte
	objects  []manifest.Object
	problems []source.Problem
	broken   []source.BrokenPolicy
}

// succeed makes the version of a new content, with what stays of the last good
// one: an object whose document went bad keeps its last good value; an
// AccessPolicy does not, it is broken and denies. Where a document cannot even
// say whose it is, everything that vanished may be meant.
//
// Last good lives in this process: after a restart a bad object does not
// exist until it is corrected, as for a replica that never saw it good.
// Writing the last good values beside the manifests would make a second truth
// that people cannot see. What must hold after a restart, that a bad
// AccessPolicy denies, follows from the file alone.
func succeed(old *version, path string, x *manifest.Text) *version {
	v := &version{path: path, objects: x.Objects, problems: x.Problems, broken: x.Broken}
	if old == nil || len(x.Bad) == 0 && !x.Nameless {
		return v
	}
	now := map[source.Ref]bool{}
	for _, o := range x.Objects {
		now[o.Ref] = true
	}
	bad := map[source.Ref]bool{}
	for _, r := range x.Bad {
		bad[r] = true
	}
	for _, b := range x.Broken {
		now[b.Ref] = true
	}
	v.objects = slices.Clone(x.Objects)
	for _, o := range old.objects {
		switch p, isPolicy := o.Value.(*v1alpha1.AccessPolicy); {
		case now[o.Ref] || !bad[o.Ref] && !x.Nameless:
		case isPolicy:
			v.broken = append(v.broken, source.BrokenPolicy{
				Ref: o.Ref, Selector: p.Spec.Selector, Err: fmt.Sprintf("its document in %s cannot be read any more", path),
			})
		default:
			v.objects = append(v.objects, o)
		}
	}
	if x.Nameless {
		for _, b := range old.broken {
			if !now[b.Ref] {
				v.broken = append(v.broken, b)
			}
		}
	}
	return v
}

// worse says whether a new content has more mistakes than the old one.
func worse(old *version, x *manifest.Text) bool {
	if old == nil {
		return len(x.Problems) > 0
	}
	return len(x.Problems) > len(old.problems)
}

// lost says whether a new content has fewer objects than the old one.
func lost(old *version, x *manifest.Text) bool {
	if old == nil {
		return false
	}
	now := map[source.Ref]bool{}
	for _, o := range x.Objects {
		now[o.Ref] = true
	}
	return slices.ContainsFunc(old.objects, func(o manifest.Object) bool { return !now[o.Ref] })
}
