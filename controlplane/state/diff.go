package state

import (
	"bytes"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/forward"
	iwire "github.com/heddle-mesh/heddle/internal/wire"
)

// Diff brings a peer from old to new: the difference where that is possible
// and smaller, else new whole. old may be nil. The result is the same for all
// peers that hold old, so a caller makes it once.
func Diff(old, new *Resource) *wire.Update {
	if old == nil {
		return new.Update
	}
	if n := new.Update.GetNode(); n != nil && old.Update.GetNode() != nil {
		if d := forward.Diff(old.Version, old.Update.GetNode(), n); d != nil {
			return &wire.Update{Name: new.Name, Version: new.Version, Revision: new.Revision, Content: &wire.Update_NodeDelta{NodeDelta: d}}
		}
		return new.Update
	}
	was, now := old.Update.GetDestination().GetService(), new.Update.GetDestination().GetService()
	if was == nil || now == nil || old.Name != new.Name {
		return new.Update
	}
	d := &wire.DestinationDelta{BaseVersion: old.Version}
	// Both lists are in the order of their keys.
	i, j := 0, 0
	for i < len(was.Endpoints) || j < len(now.Endpoints) {
		var c int
		switch {
		case i == len(was.Endpoints):
			c = 1
		case j == len(now.Endpoints):
			c = -1
		default:
			c = bytes.Compare(was.Endpoints[i].Key, now.Endpoints[j].Key)
		}
		switch {
		case c < 0:
			d.Removed = append(d.Removed, was.Endpoints[i].Key)
			i++
		case c > 0:
			d.Upserted = append(d.Upserted, now.Endpoints[j])
			j++
		default:
			if !iwire.Equal(was.Endpoints[i], now.Endpoints[j]) {
				d.Upserted = append(d.Upserted, now.Endpoints[j])
			}
			i, j = i+1, j+1
		}
	}
	// A removal is a tenth of an endpoint in bytes, about.
	if 10*len(d.Upserted)+len(d.Removed) >= 10*len(now.Endpoints) {
		return new.Update
	}
	if a, b := bare(was), bare(now); !iwire.Equal(a, b) {
		d.Service = b
	}
	return &wire.Update{
		Name: new.Name, Version: new.Version, Revision: new.Revision,
		Content: &wire.Update_DestinationDelta{DestinationDelta: d},
	}
}

// bare gives a Service without its endpoints.
func bare(s *wire.Service) *wire.Service {
	return &wire.Service{
		Namespace: s.Namespace, Name: s.Name, Vips: s.Vips, Ports: s.Ports,
		InternalTrafficPolicy: s.InternalTrafficPolicy, ExternalTrafficPolicy: s.ExternalTrafficPolicy,
		TrafficDistribution: s.TrafficDistribution, SessionAffinity: s.SessionAffinity, Headless: s.Headless,
		PublishNotReadyAddresses: s.PublishNotReadyAddresses, TrafficPolicy: s.TrafficPolicy,
		Routes: s.Routes, Cluster: s.Cluster,
	}
}
