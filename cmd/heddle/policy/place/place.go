// Package place is where the CLI's policies stand: a cluster, a folder of
// manifests as a control plane without Kubernetes reads it, or a lab. It reads
// the world, and reads and writes objects of Heddle's kinds; what they mean it
// does not know. heddle policy calls it.
package place

import (
	"context"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

// Place is where policies and the world they are for stand.
type Place interface {
	// Namespace of objects and names that name none.
	Namespace() string
	// World is everything, once.
	World(ctx context.Context) (*source.Snapshot, error)
	// Policies are the objects of our kinds, of one namespace or ("") of all.
	Policies(ctx context.Context, namespace string) ([]*Object, error)
	// Put makes the object say what the JSON says.
	Put(ctx context.Context, ref source.Ref, text []byte) (Done, error)
	// One reads an object with what the control plane says of it; nil: none.
	One(ctx context.Context, ref source.Ref) (*Object, error)
}

// Done is what Put did.
type Done struct {
	What string // created, configured or unchanged
	// Generation that One is to show once what was put has arrived; 0: it has.
	Generation int64
}

// Object is one of our kinds as it stands.
type Object struct {
	Ref        source.Ref
	Generation int64
	Created    time.Time // zero: not known
	JSON       []byte    // as people wrote it, with status where the place keeps it; nil: cannot be read
	Where      string    // file:line, in a folder
	Conditions []source.Condition
}

// Accepted is what the control plane says of the present generation; false: it
// has said nothing yet.
func (s *Object) Accepted() (source.Condition, bool) {
	for _, c := range s.Conditions {
		if c.Type == "Accepted" && c.ObservedGeneration == s.Generation {
			return c, true
		}
	}
	return source.Condition{}, false
}
