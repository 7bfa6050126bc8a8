package wire

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	pb "github.com/heddle-mesh/heddle/api/wire"
)

// ApplyNode gives a node's Services after a delta; old stays as it is and
// shares with the result what did not change: an unchanged Service keeps its
// pointer. Services come out by namespace and name. That the delta starts from
// old's version is the caller's check.
func ApplyNode(old *pb.NodeServices, delta *pb.NodeServicesDelta) (*pb.NodeServices, error) {
	drop := make(map[string]bool, len(delta.GetRemoved())+len(delta.GetUpserted()))
	for _, name := range delta.GetRemoved() {
		drop[name] = true
	}
	for _, s := range delta.GetUpserted() {
		name := nodeServiceName(s)
		if s.GetService().GetName() == "" {
			return nil, errors.New("a Service of a delta has no name")
		}
		if drop[name] {
			return nil, fmt.Errorf("service %s stands twice in a delta", name)
		}
		drop[name] = true
	}
	next := shallow(old)
	next.Services = make([]*pb.NodeService, 0, len(old.GetServices())+len(delta.GetUpserted()))
	for _, s := range old.GetServices() {
		if !drop[nodeServiceName(s)] {
			next.Services = append(next.Services, s)
		}
	}
	next.Services = append(next.Services, delta.GetUpserted()...)
	slices.SortStableFunc(next.Services, func(a, b *pb.NodeService) int {
		return cmp.Or(cmp.Compare(a.GetService().GetNamespace(), b.GetService().GetNamespace()),
			cmp.Compare(a.GetService().GetName(), b.GetService().GetName()))
	})
	return next, nil
}

func nodeServiceName(s *pb.NodeService) string {
	return s.GetService().GetNamespace() + "/" + s.GetService().GetName()
}
