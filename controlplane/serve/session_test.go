package serve

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/wire"
)

func bubble(t *testing.T, f func(t *testing.T, p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newPlane(t)) })
}

func TestFirstStream(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		x := p.join("web", "uid-1", &pb.Hello{})
		w := x.next().GetWelcome()
		if w.GetReplica() != "replica-1" || w.GetRevision() != 1 || w.GetHeartbeatSeconds() != 5 {
			t.Errorf("welcome %v", w)
		}
		if got := names(x.updates()); got != "bundle@1 mesh@1 inbound@1" {
			t.Errorf("without asking: %s", got)
		}
		x.subscribe("addr/10.96.0.1")
		if got := names(x.updates()); got != "addr/10.96.0.1@1" {
			t.Errorf("asked for: %s", got)
		}
		p.worlds.Set(firstWorld().with(2, resource(2, "mesh", "m2")))
		if got := names(x.updates()); got != "mesh@2" {
			t.Errorf("after a change: %s", got)
		}
		x.tell(&pb.PeerMessage{Message: &pb.PeerMessage_Unsubscribe{Unsubscribe: &pb.Unsubscribe{Names: []string{"addr/10.96.0.1", "mesh"}}}})
		synctest.Wait()
		p.worlds.Set(firstWorld().with(3, resource(3, "mesh", "m3"), service(3, "10.96.0.1", 1)))
		if got := names(x.updates()); got != "mesh@3" {
			t.Errorf("after unsubscribing (mesh cannot be): %s", got)
		}
		if p.metric("peers") != 1 {
			t.Error("the peer is not counted")
		}
		x.leave()
		if p.metric("peers") != 0 {
			t.Error("the peer that left is counted")
		}
	})
}

// A peer that comes back, to any replica, gets what it does not hold.
func TestReconnectGetsOnlyDifferences(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		svc := service(1, "10.96.0.1", 8080, 8081)
		held := []*pb.Held{{Name: "mesh", Version: []byte("m1"), Revision: 1}, {Name: "bundle", Version: []byte("b1"), Revision: 1},
			{Name: "inbound", Version: []byte("i1"), Revision: 1}, {Name: svc.Name, Version: svc.Version, Revision: 1}}
		x := p.join("web", "uid-1", &pb.Hello{Held: held})
		if got := names(x.updates()); got != "" {
			t.Errorf("nothing changed, sent %s", got)
		}
		// From here on the server knows what the peer holds.
		p.worlds.Set(firstWorld().with(2, service(2, "10.96.0.1", 8080, 8082)))
		if us := x.updates(); len(us) != 1 || us[0].Name != svc.Name {
			t.Errorf("after a change: %s", names(us))
		}
		x.leave()
		x = p.join("web", "uid-1", &pb.Hello{Held: held})
		defer x.leave()
		if us := x.updates(); names(us) != svc.Name+"@2" || us[0].GetDestination() == nil {
			t.Errorf("after a change meanwhile: %v", us)
		}
	})
}

func TestDeltasAreSentAndAgree(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		var ports []uint32
		for i := range uint32(100) {
			ports = append(ports, 8000+i)
		}
		was := service(2, "10.96.0.1", ports...)
		p.worlds.Set(firstWorld().with(2, was))
		x := p.join("web", "uid-1", &pb.Hello{})
		defer x.leave()
		x.subscribe(was.Name)
		x.updates()
		ports[50] = 9000
		now := service(3, "10.96.0.1", ports...)
		p.worlds.Set(firstWorld().with(3, now))
		us := x.updates()
		if len(us) != 1 || us[0].GetDestinationDelta() == nil {
			t.Fatalf("not a delta: %s", names(us))
		}
		got, err := wire.Apply(was.Update.GetDestination(), us[0].GetDestinationDelta())
		if err != nil || !wire.Equal(got, now.Update.GetDestination()) || string(us[0].Version) != string(now.Version) {
			t.Errorf("the delta gives %v, %v", got, err)
		}
		if p.metric("pushes_total,form=delta") != 1 {
			t.Error("the delta is not counted")
		}
		// Who lost its base asks again and gets the whole.
		x.subscribe(was.Name)
		if us := x.updates(); len(us) != 1 || !wire.Equal(us[0].GetDestination(), now.Update.GetDestination()) {
			t.Errorf("asked again: %v", us)
		}
	})
}

func TestRefusedNames(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		x := p.join("web", "uid-1", &pb.Hello{})
		x.updates()
		bad := []string{"", "node", "addr/", "addr/10.96.0.1 ", "addr/010.96.0.1", "addr/::ffff:10.0.0.1", "addr/fe80::1%eth0",
			"addr/2001:DB8::1", "secret/x", "addr/" + strings.Repeat("1", 500), "addr/10.9.9.9"}
		x.subscribe(bad...)
		us := x.updates()
		if len(us) != len(bad) {
			t.Errorf("%d answers to %d bad names: %s", len(us), len(bad), names(us))
		}
		for _, u := range us {
			if u.GetContent() != nil || len(u.Version) != 0 {
				t.Errorf("content for %q", u.Name)
			}
		}
		x.subscribe("addr/10.96.0.1")
		if got := names(x.updates()); got != "addr/10.96.0.1@1" {
			t.Errorf("the stream did not go on: %s", got)
		}
		// What does not exist yet is told once it does.
		p.worlds.Set(firstWorld().with(2, service(2, "10.9.9.9", 1)))
		if got := names(x.updates()); got != "addr/10.9.9.9@2" {
			t.Errorf("a name that came to be: %s", got)
		}
		p.worlds.Set(firstWorld().with(3))
		if us := x.updates(); names(us) != "addr/10.9.9.9@3" || us[0].GetContent() != nil {
			t.Errorf("a name that went: %v", us)
		}
		x.leave()
	})
}

func TestTooManyNames(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		x := newSession(p.server, nil, firstPeer)
		x.hello, x.who.Kind = true, pb.PeerKind_PEER_KIND_SIDECAR
		var ns []string
		for i := range maxNames + 10 {
			ns = append(ns, fmt.Sprintf("addr/10.%d.%d.%d", i>>16, i>>8&255, i&255))
		}
		if err := x.handle(&pb.PeerMessage{Message: &pb.PeerMessage_Subscribe{Subscribe: &pb.Subscribe{Names: ns}}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if len(x.refused) == 0 || len(x.subs) > maxNames+len(own[x.who.Kind]) {
			t.Errorf("%d names taken, %d refused", len(x.subs), len(x.refused))
		}
	})
}

func TestBadPeersAreRefused(t *testing.T) {
	hello := func(k pb.PeerKind) *pb.PeerMessage {
		return &pb.PeerMessage{Message: &pb.PeerMessage_Hello{Hello: &pb.Hello{Kind: k}}}
	}
	sidecar := hello(pb.PeerKind_PEER_KIND_SIDECAR)
	tests := map[string]struct {
		sa, uid string
		say     []*pb.PeerMessage
		want    string
	}{
		"says nothing":        {"web", "uid-1", nil, "no Hello within"},
		"no hello":            {"web", "uid-1", []*pb.PeerMessage{{Message: &pb.PeerMessage_Heartbeat{}}}, "the first message must be Hello"},
		"two hellos":          {"web", "uid-1", []*pb.PeerMessage{sidecar, sidecar}, "a second Hello"},
		"claims to be a node": {"web", "uid-1", []*pb.PeerMessage{hello(pb.PeerKind_PEER_KIND_NODE)}, "shop/web is not the node agent's"},
		"pod gone":            {"web", "uid-9", nil, "is gone"},
		"another's pod":       {"web", "uid-2", nil, "the credential says shop/web"},
		"no pod":              {"web", "", nil, "names no pod"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *plane) {
				x := p.join(tt.sa, tt.uid, nil)
				for _, m := range tt.say {
					x.tell(m)
				}
				go x.drain()
				if err := <-x.end; err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("ended with %v, want …%s…", err, tt.want)
				}
			})
		})
	}
}

// A node agent gets the node's own resources and may ask for nothing else.
func TestNodeAgent(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		x := newSession(p.server, nil, state.Peer{Namespace: state.NodeAgentNamespace, ServiceAccount: state.NodeAgentAccount, PodUID: "uid-1"})
		for _, m := range []*pb.PeerMessage{
			{Message: &pb.PeerMessage_Hello{Hello: &pb.Hello{Kind: pb.PeerKind_PEER_KIND_NODE}}},
			{Message: &pb.PeerMessage_Subscribe{Subscribe: &pb.Subscribe{Names: []string{"addr/10.96.0.1", "inbound", "node"}}}},
		} {
			if err := x.handle(m, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		due, refused := x.due(true)
		slices.Sort(refused)
		if got := fmt.Sprint(due, refused); got != "[bundle mesh node] [addr/10.96.0.1 inbound]" {
			t.Errorf("due and refused: %s", got)
		}
	})
}

// While a peer does not read, versions are skipped, not queued.
func TestSlowPeerSkipsVersions(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		x := p.join("web", "uid-1", &pb.Hello{})
		x.subscribe("addr/10.96.0.1")
		x.updates()
		for i := range uint64(50) {
			p.worlds.Set(firstWorld().with(2+i, service(2+i, "10.96.0.1", uint32(i+1))))
			synctest.Wait()
		}
		us := x.updates()
		if len(us) != 2 || us[0].Revision != 2 || us[1].Revision != 51 {
			t.Errorf("a slow peer got %s, want the first and the newest", names(us))
		}
		x.leave()
	})
}

func TestBlockedPeerIsCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		began := time.Now()
		x := p.join("web", "uid-1", &pb.Hello{}) // never reads
		err := <-x.end
		if err == nil || !strings.Contains(err.Error(), "read nothing") || time.Since(began) != sendBound || p.metric("slow_peers_total") != 1 {
			t.Errorf("ended with %v after %s", err, time.Since(began))
		}
		<-x.aborted
	})
}

func TestDeadPeerIsCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		began := time.Now()
		x := p.join("web", "uid-1", &pb.Hello{})
		beats := 0
		for m := x.next(); ; m = x.next() {
			if m.GetHeartbeat() != nil {
				beats++
			}
			select {
			case err := <-x.end:
				if d := time.Since(began); err == nil || d < 3*heartbeat || d > 4*heartbeat+time.Second || beats < 3 || p.metric("dead_peers_total") != 1 {
					t.Errorf("ended with %v after %s and %d heartbeats", err, d, beats)
				}
				return
			default:
			}
		}
	})
}

// A replica that lags behind what the peer holds waits; content that is right
// again is told under a revision that the peer takes.
func TestNeverOlder(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		old := service(1, "10.96.0.1", 8080, 8081)
		x := p.join("web", "uid-1", &pb.Hello{Held: []*pb.Held{{Name: old.Name, Version: []byte("newer"), Revision: 10}}})
		if got := names(x.updates()); strings.Contains(got, "addr/") {
			t.Errorf("a lagging replica sent %s", got)
		}
		p.worlds.Set(firstWorld().with(9))
		if got := names(x.updates()); got != "" || p.metric("lagging_total") == 0 {
			t.Errorf("still lagging, sent %s", got)
		}
		// Asking again does not make an older world acceptable.
		x.subscribe(old.Name)
		if got := names(x.updates()); got != "" {
			t.Errorf("asked again, sent %s", got)
		}
		p.worlds.Set(firstWorld().with(12))
		if us := x.updates(); names(us) != old.Name+"@12" || string(us[0].Version) != string(old.Version) {
			t.Errorf("caught up, sent %s", names(us))
		}
		x.leave()
	})
}

func TestPodDeletedEndsItsStream(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		x, y := p.join("web", "uid-1", &pb.Hello{}), p.join("orders", "uid-2", &pb.Hello{})
		x.updates()
		y.updates()
		p.worlds.Set(firstWorld().without(2, "uid-1"))
		if g := x.next().GetGoodbye(); g.GetReason() != "your pod is gone" {
			t.Errorf("told %v", g)
		}
		if err := <-x.end; err == nil || !strings.Contains(err.Error(), "gone") {
			t.Errorf("ended with %v", err)
		}
		if m := y.next(); m.GetGoodbye() != nil {
			t.Error("another pod's stream ended too")
		}
		y.leave()
	})
}

func TestStopSaysGoodbye(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		x := p.join("web", "uid-1", &pb.Hello{})
		x.updates()
		close(p.server.stop)
		if g := x.next().GetGoodbye(); g == nil || g.ReconnectAfterMillis > uint32(stopSpread.Milliseconds()) {
			t.Errorf("told %v", g)
		}
		if err := <-x.end; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestStreamAge(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		for _, tt := range []struct {
			certificate, least, most time.Duration
		}{{24 * time.Hour, 24 * time.Minute, 36 * time.Minute}, {5 * time.Minute, 5 * time.Minute, 5 * time.Minute}, {-time.Minute, 0, 0}} {
			x := newSession(p.server, nil, firstPeer)
			now := time.Now()
			x.until = now.Add(tt.certificate)
			for range 100 {
				if d := x.lifetime(now); d < tt.least || d > tt.most {
					t.Fatalf("a stream lives %s with a certificate for %s", d, tt.certificate)
				}
			}
		}
	})
}

func TestAcknowledgements(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		ack := func(u *pb.Update, refused string) *pb.PeerMessage {
			return &pb.PeerMessage{Message: &pb.PeerMessage_Ack{Ack: &pb.Ack{Name: u.Name, Version: u.Version, Refused: refused}}}
		}
		x := p.join("web", "uid-1", &pb.Hello{})
		x.subscribe("addr/10.96.0.1")
		for _, u := range x.updates() {
			x.tell(ack(u, ""))
		}
		synctest.Wait()
		if n := p.metric("push_latency_seconds"); n != 0 {
			t.Errorf("%v first answers counted as pushes", n)
		}
		p.worlds.Set(firstWorld().with(2, service(2, "10.96.0.1", 1, 2, 3)))
		us := x.updates()
		x.tell(ack(us[0], "I do not like it"))
		synctest.Wait()
		if p.metric("refused_updates_total") != 1 || p.metric("push_latency_seconds") != 0 {
			t.Error("the refusal is not counted as one")
		}
		// It is not sent again, and the next goes whole.
		if us := x.updates(); len(us) != 0 {
			t.Errorf("sent again: %s", names(us))
		}
		p.worlds.Set(firstWorld().with(3, service(3, "10.96.0.1", 1, 2, 4)))
		us = x.updates()
		if len(us) != 1 || us[0].GetDestination() == nil {
			t.Fatalf("after a refusal: %v", us)
		}
		x.tell(ack(us[0], ""))
		synctest.Wait()
		if p.metric("push_latency_seconds") != 1 {
			t.Error("the latency of the push is not counted")
		}
		x.leave()
	})
}

// However many peers there are, each update is encoded once.
func TestThousandPeersOneEncoding(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		const peers = 1000
		var all []*peer
		for range peers {
			x := p.join("web", "uid-1", &pb.Hello{Held: []*pb.Held{{Name: "addr/10.96.0.1"}}})
			for range 5 { // Welcome and four resources
				<-x.toPeer
			}
			all = append(all, x)
		}
		if n := p.metric("encodings_total"); n != 4 {
			t.Errorf("%v encodings of 4 resources", n)
		}
		p.worlds.Set(firstWorld().with(2, service(2, "10.96.0.1", 8080, 8083)))
		first := (<-all[0].toPeer).Bytes()
		for _, x := range all[1:] {
			if b := (<-x.toPeer).Bytes(); &b[0] != &first[0] {
				t.Fatal("two peers got two copies")
			}
		}
		synctest.Wait()
		if n, pushes := p.metric("encodings_total"), p.metric("pushes_total,form=whole")+p.metric("pushes_total,form=delta"); n != 5 || pushes != 5*peers {
			t.Errorf("%v encodings for %v pushes", n, pushes)
		}
		for _, x := range all {
			x.leave()
		}
	})
}

func TestEncodingsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, p *plane) {
		c := p.server.encodings
		for i := range uint64(3 * cacheEntries) {
			c.get(step{to: resource(i, "mesh", "m"), revision: i})
		}
		if n := len(c.young) + len(c.old); n > 2*cacheEntries+2 {
			t.Errorf("%d encodings kept", n)
		}
	})
}
