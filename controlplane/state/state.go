// Package state makes of a source's snapshot what peers are told: one
// immutable World with a resource for each address, each pod's inbound policy,
// the trust bundles and the mesh's settings. It is pure: no I/O, no clock.
// controlplane/serve asks it for resources and differences.
package state

import (
	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Options are what a World needs besides the snapshot.
type Options struct {
	TrustDomain   string // where the MeshConfig names none
	ClusterDomain string // of DNS names, such as cluster.local
	Roots         *wire.TrustBundles
}

// Peer is whom a resource is for, as its credential says.
type Peer struct {
	Kind                              wire.PeerKind
	Namespace, ServiceAccount, PodUID string
}

// Resource is one named thing at one version. It is read-only.
type Resource struct {
	Name     string
	Version  []byte // hash of the content
	Revision uint64
	Update   *wire.Update // whole form
}

// World is everything at one revision, immutable and safe for concurrent use.
type World struct{ revision uint64 }

// Build makes the World of a snapshot, reusing from prev (which may be nil)
// what did not change. Versions are hashes of content, equal on all replicas.
func Build(prev *World, snap *source.Snapshot, opt Options) *World {
	return &World{revision: snap.Revision}
}

// Revision of the snapshot that w was built from.
func (w *World) Revision() uint64 { return w.revision }

// Resource gives what name means to a peer; nil: no such resource. The same
// content gives the same *Resource, with its old revision, from world to world.
func (w *World) Resource(name string, p Peer) *Resource { return nil }

// PodByUID gives a pod that may hold an identity: nil once it is gone or over.
func (w *World) PodByUID(uid string) *source.Pod { return nil }

// Problems are those of the snapshot and those found while building, sorted.
func (w *World) Problems() []source.Problem { return nil }

// Diff brings a peer from old to new: the difference where that is possible
// and smaller, else new whole. old may be nil.
func Diff(old, new *Resource) *wire.Update { return new.Update }
