package wire

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	pb "github.com/heddle-mesh/heddle/api/wire"
)

// errNotService refuses a delta to what has no endpoints.
var errNotService = errors.New("a delta applies to a Service only")

func apply(old *pb.Destination, delta *pb.DestinationDelta) (*pb.Destination, error) {
	was := old.GetService()
	if was == nil {
		return nil, errNotService
	}
	now := was
	if delta.GetService() != nil {
		now = delta.GetService()
		if len(now.Endpoints) != 0 {
			return nil, errors.New("the Service of a delta carries endpoints")
		}
	}
	endpoints, err := patch(was.Endpoints, delta)
	if err != nil {
		return nil, err
	}
	next := shallow(now)
	next.Endpoints = endpoints
	return &pb.Destination{Kind: &pb.Destination_Service{Service: next}}, nil
}

// patch removes, replaces and adds endpoints.
func patch(was []*pb.Endpoint, delta *pb.DestinationDelta) ([]*pb.Endpoint, error) {
	drop := make(map[string]bool, len(delta.GetRemoved())+len(delta.GetUpserted()))
	for _, k := range delta.GetRemoved() {
		drop[string(k)] = true
	}
	for _, e := range delta.GetUpserted() {
		if len(e.GetKey()) == 0 {
			return nil, errors.New("an endpoint of a delta has no key")
		}
		if drop[string(e.Key)] {
			return nil, fmt.Errorf("endpoint %x stands twice in a delta", e.Key)
		}
		drop[string(e.Key)] = true
	}
	out := make([]*pb.Endpoint, 0, len(was)+len(delta.GetUpserted()))
	for _, e := range was {
		if !drop[string(e.Key)] {
			out = append(out, e)
		}
	}
	out = append(out, delta.GetUpserted()...)
	slices.SortStableFunc(out, func(a, b *pb.Endpoint) int { return bytes.Compare(a.Key, b.Key) })
	return out, nil
}
