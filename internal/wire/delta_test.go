package wire_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/wire"
)

func endpoint(key uint16, port uint32) *pb.Endpoint {
	return &pb.Endpoint{Key: binary.BigEndian.AppendUint16(nil, key), Address: []byte{10, 0, 0, byte(key)}, Ports: []uint32{port}, Ready: true}
}

func service(name string, eps map[uint16]uint32) *pb.Destination {
	s := &pb.Service{Namespace: "shop", Name: name}
	for k, port := range eps {
		s.Endpoints = append(s.Endpoints, endpoint(k, port))
	}
	slices.SortFunc(s.Endpoints, func(a, b *pb.Endpoint) int { return bytes.Compare(a.Key, b.Key) })
	return &pb.Destination{Kind: &pb.Destination_Service{Service: s}}
}

// A delta applied gives what the whole would have given, and leaves what it
// was applied to as it was.
func TestApplyEqualsWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		was, now := map[uint16]uint32{}, map[uint16]uint32{}
		delta := &pb.DestinationDelta{}
		for k := range uint16(20) {
			had := r.IntN(2) == 0
			if had {
				was[k] = 1
			}
			switch r.IntN(3) {
			case 0:
				now[k] = uint32(r.IntN(2) + 1)
				delta.Upserted = append(delta.Upserted, endpoint(k, now[k]))
			case 1:
				if had {
					delta.Removed = append(delta.Removed, endpoint(k, 0).Key)
				}
			case 2:
				if had {
					now[k] = 1
				}
			}
		}
		name := "orders"
		if r.IntN(4) == 0 {
			name = "renamed"
			delta.Service = &pb.Service{Namespace: "shop", Name: name}
		}
		old, want := service("orders", was), service(name, now)
		got, err := wire.Apply(old, delta)
		if err != nil {
			t.Fatal(err)
		}
		if !wire.Equal(got, want) || !bytes.Equal(wire.Hash(got), wire.Hash(want)) {
			t.Fatalf("delta %v\ngave %v\nwant %v", delta, got, want)
		}
		if !wire.Equal(old, service("orders", was)) {
			t.Fatal("Apply changed what it was given")
		}
	}
}

func TestApplyRefuses(t *testing.T) {
	whole := service("orders", map[uint16]uint32{1: 1})
	for name, tt := range map[string]struct {
		to    *pb.Destination
		delta *pb.DestinationDelta
	}{
		"no service":    {&pb.Destination{Kind: &pb.Destination_External{}}, &pb.DestinationDelta{}},
		"nothing":       {nil, &pb.DestinationDelta{}},
		"no key":        {whole, &pb.DestinationDelta{Upserted: []*pb.Endpoint{{}}}},
		"twice":         {whole, &pb.DestinationDelta{Upserted: []*pb.Endpoint{endpoint(1, 1), endpoint(1, 2)}}},
		"with endpoint": {whole, &pb.DestinationDelta{Service: whole.GetService()}},
	} {
		if got, err := wire.Apply(tt.to, tt.delta); err == nil {
			t.Errorf("%s: gave %v", name, got)
		}
	}
}

func TestHash(t *testing.T) {
	a, b := &pb.MeshSettings{TrustDomain: "a"}, &pb.MeshSettings{TrustDomain: "b"}
	if h := wire.Hash(a); len(h) != 16 || bytes.Equal(h, wire.Hash(b)) || !bytes.Equal(h, wire.Hash(wire.Clone(a))) {
		t.Errorf("Hash = %x", h)
	}
	if h := wire.Hash(&pb.MeshSettings{TrustDomain: "\xff"}); h != nil {
		t.Errorf("Hash of what cannot be encoded = %x", h)
	}
}

// Whatever a peer or a control plane sends: no panic, and what was decoded
// encodes to something that decodes to the same.
func FuzzDecode(f *testing.F) {
	for _, m := range []wire.Message{
		&pb.PeerMessage{Message: &pb.PeerMessage_Hello{Hello: &pb.Hello{Held: []*pb.Held{{Name: "addr/10.0.0.1", Version: []byte{1}}}}}},
		&pb.PeerMessage{Message: &pb.PeerMessage_Ack{Ack: &pb.Ack{Name: "mesh", Refused: "no"}}},
		&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: &pb.Update{Name: "addr/10.0.0.1", Content: &pb.Update_Destination{Destination: service("orders", map[uint16]uint32{1: 1})}}}},
		&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: &pb.Update{Content: &pb.Update_DestinationDelta{DestinationDelta: &pb.DestinationDelta{Removed: [][]byte{{1}}}}}}},
	} {
		b, err := wire.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range []wire.Message{&pb.PeerMessage{}, &pb.ControlMessage{}} {
			if wire.Unmarshal(b, m) != nil {
				continue
			}
			again, err := wire.Marshal(m)
			if err != nil {
				t.Fatalf("decoded, but does not encode: %v", err)
			}
			back := wire.Clone(m)
			if err := wire.Unmarshal(again, back); err != nil {
				t.Fatalf("does not decode again: %v", err)
			}
			if c, ok := m.(*pb.ControlMessage); ok {
				_, _ = wire.Apply(service("orders", map[uint16]uint32{1: 1}), c.GetUpdate().GetDestinationDelta())
			}
		}
	})
}
