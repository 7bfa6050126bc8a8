package serve

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/wire"
)

var firstPeer = state.Peer{Namespace: "shop", ServiceAccount: "web", PodUID: "uid-1"}

// Many streams come and go, some politely, some cut; nothing stays behind.
func TestStreamsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t).start()
		web := p.store("web", "uid-1")
		once := func(i int) {
			conn := p.conn(web)
			defer conn.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := conn.Stream(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&pb.PeerMessage{Message: &pb.PeerMessage_Hello{Hello: &pb.Hello{Kind: pb.PeerKind_PEER_KIND_SIDECAR}}}); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				if _, err := s.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			switch i % 3 {
			case 0:
				s.CloseSend()
			case 1:
				p.l.Cut()
			}
		}
		once(0)
		synctest.Wait()
		before := runtime.NumGoroutine()
		for i := range 300 {
			once(i)
		}
		synctest.Wait()
		// The runtime's own come and go; a leak would be hundreds.
		if n := runtime.NumGoroutine(); n > before+5 || p.metric("peers") != 0 {
			t.Errorf("%d goroutines, %d before; %v peers", n, before, p.metric("peers"))
		}
		p.stop()
	})
}

// A certificate, not a claim, says who a peer is; and stopping says goodbye.
func TestOverTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t).start()
		defer p.stop()
		conn := p.conn(p.store("web", "uid-9"))
		s, err := conn.Stream(t.Context())
		if err == nil {
			_, err = s.Recv()
		}
		conn.Close()
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != wire.Unauthenticated {
			t.Errorf("a stream for a pod that is gone: %v", err)
		}
		conn = p.conn(p.store("web", "uid-1"))
		defer conn.Close()
		if s, err = conn.Stream(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&pb.PeerMessage{Message: &pb.PeerMessage_Hello{Hello: &pb.Hello{Kind: pb.PeerKind_PEER_KIND_SIDECAR}}}); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			p.stop()
		}()
		for {
			m, err := s.Recv()
			if err != nil {
				t.Fatalf("ended without a goodbye: %v", err)
			}
			if m.GetGoodbye() != nil {
				s.CloseSend()
				return
			}
		}
	})
}

func FuzzHandle(f *testing.F) {
	for _, m := range []*pb.PeerMessage{
		{Message: &pb.PeerMessage_Hello{Hello: &pb.Hello{Kind: 1, Held: []*pb.Held{{Name: "addr/10.0.0.1", Version: []byte{1}}, {Name: "mesh"}}}}},
		{Message: &pb.PeerMessage_Subscribe{Subscribe: &pb.Subscribe{Names: []string{"addr/::1", "x"}}}},
		{Message: &pb.PeerMessage_Unsubscribe{Unsubscribe: &pb.Unsubscribe{Names: []string{"addr/::1", "mesh"}}}},
		{Message: &pb.PeerMessage_Ack{Ack: &pb.Ack{Name: "mesh", Refused: "no"}}},
		{Message: &pb.PeerMessage_Report{Report: &pb.Report{Capture: &pb.CaptureState{OutboundIpv4: 2}}}},
		{},
	} {
		b, err := wire.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	server := New(Config{Worlds: NewLatest()})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		x := newSession(server, nil, firstPeer)
		for _, raw := range [][]byte{a, b} {
			var m pb.PeerMessage
			if wire.Unmarshal(raw, &m) == nil && x.handle(&m, time.Now()) != nil {
				return
			}
		}
		if len(x.refused) > maxBadNames || len(x.subs) > maxNames+len(own[x.who.Kind]) {
			t.Errorf("%d names, %d refused", len(x.subs), len(x.refused))
		}
		x.due(true)
	})
}
