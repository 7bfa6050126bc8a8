package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/wire"
)

func TestColdStart(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		time.Sleep(time.Minute) // the control plane is down
		if st := s.c.State(); st.Connected || !strings.Contains(st.LastError, "connection refused") || st.Age != time.Minute {
			t.Errorf("while it is down: %+v", st)
		}
		if _, err := s.c.Lookup(t.Context(), outside); !errors.Is(err, ErrUnknown) {
			t.Errorf("without the mesh's settings nothing is outside: %v", err)
		}
		began := time.Now()
		s.up()
		x := s.next()
		if d := time.Since(began); d > firstLast+streamLast {
			t.Errorf("connected %s after it came up", d)
		}
		if x.hello.Version != "v1" || x.hello.Kind != pb.PeerKind_PEER_KIND_SIDECAR || len(x.hello.Held) != 0 {
			t.Errorf("hello %v", x.hello)
		}
		if s.isReady() {
			t.Error("ready before anything came")
		}
		s.give(x)
		if !s.isReady() || len(s.inbound) != 1 || s.inbound[0] != "web-1" {
			t.Errorf("not ready after all came; inbound %v", s.inbound)
		}
		if id, ok := s.id.ID(); !ok || id.String() != webID || s.id.Leaf().Subject.SerialNumber != "uid-1" {
			t.Errorf("identity %v", id)
		}
		if st := s.c.State(); !st.Connected || st.Replica != "r1" || st.Revision != 1 || st.LastError != "" {
			t.Errorf("state %+v", st)
		}
		if got := fmt.Sprint(s.how()); got != "[token t1]" {
			t.Errorf("issued by %s", got)
		}
	})
}

func TestLookup(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		x.heard()
		// Ten at once ask once.
		got := make(chan *Entry[*told], 10)
		for range 10 {
			go func() {
				e, err := s.c.Lookup(t.Context(), vip)
				if err != nil {
					t.Error(err)
				}
				got <- e
			}()
		}
		if said := fmt.Sprint(x.heard()); said != "[+[addr/10.96.0.1]]" {
			t.Errorf("said %s", said)
		}
		x.update(at(2, "v2", "a", "b"))
		e := <-got
		for range 9 {
			if <-got != e {
				t.Error("two entries for one address")
			}
		}
		if d := e.Load(); d.keys != "ab" || d.versions != 1 {
			t.Errorf("compiled %+v", d)
		}
		if said := fmt.Sprint(x.heard()); said != "[ack addr/10.96.0.1 v2 ]" {
			t.Errorf("said %s", said)
		}
		x.update(at(3, "v3", "c"))
		synctest.Wait()
		if d := e.Load(); d.keys != "c" || d.versions != 2 {
			t.Errorf("the second version: %+v", d)
		}
		if e4, err := s.c.Lookup(t.Context(), netip.MustParseAddr("::ffff:10.96.0.1")); err != nil || e4 != e {
			t.Errorf("a mapped address: %v, %v", e4, err)
		}
		if st := s.c.State(); st.Entries != 1 || st.Revision != 3 {
			t.Errorf("state %+v", st)
		}
	})
}

func TestLookupWithoutAnswer(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		began := time.Now()
		if _, err := s.c.Lookup(t.Context(), vip); !errors.Is(err, ErrUnknown) || time.Since(began) != lookupWait {
			t.Errorf("no answer: %v after %s", err, time.Since(began))
		}
		if got := fmt.Sprint(x.heard()[3:]); got != "[+[addr/10.96.0.1] -[addr/10.96.0.1]]" {
			t.Errorf("said %s", got)
		}
		e, err := s.c.Lookup(t.Context(), outside)
		if err != nil || !e.Load().external {
			t.Fatalf("an address outside: %v", err)
		}
		// The true answer replaces the guess.
		x.update(&pb.Update{Name: "addr/192.0.2.7", Version: []byte("v"), Revision: 2, Content: &pb.Update_Destination{Destination: &pb.Destination{Kind: &pb.Destination_Workload{Workload: &pb.Workload{}}}}})
		synctest.Wait()
		if e.Load().external {
			t.Error("the true answer did not replace the guess")
		}
		// None for us: at once, not after the wait.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		other := netip.MustParseAddr("10.96.0.2")
		time.AfterFunc(time.Millisecond, func() { x.update(&pb.Update{Name: "addr/10.96.0.2", Revision: 2}) })
		if _, err := s.c.Lookup(ctx, other); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "knows no such") {
			t.Errorf("refused: %v", err)
		}
		if _, err := s.c.Lookup(ctx, other); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's own deadline: %v", err)
		}
	})
}

// The control plane dies: what is held stays, nobody waits, and on return it
// is told what we hold.
func TestKillAndRestart(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		time.AfterFunc(time.Millisecond, func() { x.update(at(7, "v7", "a")) })
		e, err := s.c.Lookup(t.Context(), vip)
		if err != nil {
			t.Fatal(err)
		}
		s.kill()
		synctest.Wait()
		time.Sleep(10 * time.Second)
		began := time.Now()
		if again, err := s.c.Lookup(t.Context(), vip); err != nil || again != e || e.Load().keys != "a" {
			t.Errorf("what was held: %v", err)
		}
		out, err := s.c.Lookup(t.Context(), outside)
		if err != nil || !out.Load().external {
			t.Errorf("outside: %v", err)
		}
		if _, err := s.c.Lookup(t.Context(), netip.MustParseAddr("10.96.0.9")); !errors.Is(err, ErrUnknown) {
			t.Errorf("inside, never seen: %v", err)
		}
		if time.Since(began) != 0 {
			t.Errorf("look-ups waited %s although nobody can be asked", time.Since(began))
		}
		if st := s.c.State(); st.Connected || st.Age < 10*time.Second || st.LastError == "" || st.Revision != 7 {
			t.Errorf("state %+v", st)
		}
		s.up()
		x = s.next()
		var held []string
		for _, h := range x.hello.Held {
			held = append(held, fmt.Sprintf("%s=%s@%d", h.Name, h.Version, h.Revision))
		}
		slices.Sort(held)
		if got := fmt.Sprint(held); got != "[addr/10.96.0.1=v7@7 addr/192.0.2.7=@0 bundle=b@1 inbound=i@1 mesh=m@1]" {
			t.Errorf("on return we hold %s", got)
		}
		// A delta from what we hold, then one from what we do not.
		x.update(&pb.Update{Name: "addr/10.96.0.1", Version: []byte("v8"), Revision: 8, Content: &pb.Update_DestinationDelta{
			DestinationDelta: &pb.DestinationDelta{BaseVersion: []byte("v7"), Upserted: []*pb.Endpoint{{Key: []byte("b")}}}}})
		synctest.Wait()
		if d := e.Load(); d.keys != "ab" {
			t.Errorf("after the delta: %+v", d)
		}
		x.heard()
		x.update(&pb.Update{Name: "addr/10.96.0.1", Version: []byte("v10"), Revision: 10, Content: &pb.Update_DestinationDelta{
			DestinationDelta: &pb.DestinationDelta{BaseVersion: []byte("v9"), Removed: [][]byte{[]byte("a")}}}})
		if said := fmt.Sprint(x.heard()); said != "[+[addr/10.96.0.1]]" || e.Load().keys != "ab" {
			t.Errorf("a delta from another base: said %s", said)
		}
		x.update(at(10, "v10", "b"))
		synctest.Wait()
		if d := e.Load(); d.keys != "b" {
			t.Errorf("after the whole: %+v", d)
		}
	})
}

func TestOlderAndMalformedUpdatesAreRefused(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		time.AfterFunc(time.Millisecond, func() { x.update(at(7, "v7", "a")) })
		e, err := s.c.Lookup(t.Context(), vip)
		if err != nil {
			t.Fatal(err)
		}
		x.heard()
		mesh := func(rev uint64, prefix ...byte) *pb.Update {
			return &pb.Update{Name: "mesh", Version: []byte{byte(rev)}, Revision: rev, Content: &pb.Update_Mesh{Mesh: &pb.MeshSettings{ClusterPrefixes: [][]byte{prefix}}}}
		}
		bundles := func(bs ...*pb.TrustBundle) *pb.Update {
			return &pb.Update{Name: "bundle", Version: []byte("b2"), Revision: 9, Content: &pb.Update_Bundles{Bundles: &pb.TrustBundles{Bundles: bs}}}
		}
		for name, u := range map[string]*pb.Update{
			"older":                 at(6, "v6", "z"),
			"older mesh":            mesh(0, 10, 0, 0, 0, 8),
			"bad prefix":            mesh(9, 10, 0, 8),
			"bad prefix length":     mesh(9, 10, 0, 0, 0, 80),
			"empty prefix":          mesh(9),
			"no bundle":             bundles(),
			"bundle without a name": bundles(&pb.TrustBundle{Roots: [][]byte{s.ca.Root.Raw}}),
			"bundle without roots":  bundles(&pb.TrustBundle{TrustDomain: "demo.test", Roots: [][]byte{{1}}}),
			"another's bundle":      bundles(&pb.TrustBundle{TrustDomain: "other.test", Roots: [][]byte{s.ca.Root.Raw}}),
			"another kind":          {Name: "addr/10.96.0.1", Version: []byte("x"), Revision: 9, Content: &pb.Update_Mesh{}},
			"no kind":               {Name: "addr/10.96.0.1", Version: []byte("x"), Revision: 9, Content: &pb.Update_Destination{Destination: &pb.Destination{}}},
		} {
			x.update(u)
			said := x.heard()
			if len(said) != 1 || !strings.HasPrefix(said[0], "ack "+u.Name+" ") || strings.HasSuffix(said[0], " ") {
				t.Errorf("%s: said %q, want a refusal", name, said)
			}
		}
		if e.Load().keys != "a" {
			t.Errorf("a refused update changed %+v", e.Load())
		}
		// Strange, and harmless.
		for _, u := range []*pb.Update{{}, {Name: "addr/x"}, {Name: "addr/10.9.9.9", Content: &pb.Update_Destination{}}, {Name: "mesh", Revision: 9}, {Name: "later", Revision: 9, Content: &pb.Update_Taps{}}} {
			x.update(u)
		}
		x.send(&pb.ControlMessage{})
		synctest.Wait()
		if st := s.c.State(); !st.Connected || st.Entries != 1 {
			t.Errorf("state %+v", st)
		}
	})
}

func TestIdleEntriesGo(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		x.heard()
		look := func(i int) *Entry[*told] {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			time.AfterFunc(time.Millisecond, func() {
				u := at(2, "v", "a")
				u.Name = "addr/" + addr.String()
				x.update(u)
			})
			e, err := s.c.Lookup(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		var es []*Entry[*told]
		for i := range 5 {
			es = append(es, look(i))
		}
		for _, e := range es {
			e.Release() // MaxIdle is 3: the two released first go
		}
		if n := s.c.State().Entries; n != 3 {
			t.Errorf("%d entries", n)
		}
		var said string
		for _, w := range x.heard() {
			if strings.HasPrefix(w, "-") {
				said += w
			}
		}
		if said != "-[addr/10.0.0.0 addr/10.0.0.1]" {
			t.Errorf("said %s", said)
		}
		keep := look(3)
		time.Sleep(2 * idleAfter)
		if n := s.c.State().Entries; n != 1 || keep.Load().keys != "a" {
			t.Errorf("%d entries after a long time, one is held", n)
		}
	})
}

func TestReconnects(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		time.Sleep(time.Minute)
		// Goodbye is obeyed, and those who look up meanwhile wait for it.
		began := time.Now()
		x.send(&pb.ControlMessage{Message: &pb.ControlMessage_Goodbye{Goodbye: &pb.Goodbye{Reason: "test", ReconnectAfterMillis: 700}}})
		synctest.Wait()
		got := make(chan error)
		go func() {
			_, err := s.c.Lookup(t.Context(), vip)
			got <- err
		}()
		x = s.next()
		if d := time.Since(began); d != 700*time.Millisecond {
			t.Errorf("came back after %s", d)
		}
		if !slices.ContainsFunc(x.hello.Held, func(h *pb.Held) bool { return h.Name == "addr/10.96.0.1" }) {
			t.Error("what is being looked up is not in Hello")
		}
		x.update(at(2, "v2", "a"))
		if err := <-got; err != nil {
			t.Errorf("a look-up during a reconnect: %v", err)
		}
	})
}

func TestSilenceEndsAStream(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		s.ready()
		time.Sleep(time.Minute)
		s.mute.Store(true)
		began := time.Now()
		s.next()
		if d := time.Since(began); d < 3*firstBeat || d > 5*firstBeat {
			t.Errorf("a silent control plane was left after %s", d)
		}
	})
}

func TestBackOff(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		var waits []time.Duration
		for range 10 {
			x.done <- wire.Refuse(wire.Exhausted, "full")
			began := time.Now()
			x = <-s.streams
			waits = append(waits, time.Since(began).Round(time.Millisecond))
		}
		if waits[0] != 0 {
			t.Errorf("the first attempt came after %s", waits[0])
		}
		for i, d := range waits[1:] {
			most := min(streamLast, streamFirst<<i)
			if d < most/2 || d > most {
				t.Errorf("attempt %d after %s, want %s to %s", i+1, d, most/2, most)
			}
		}
	})
}

func TestRenewal(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.life = 10 * time.Minute
		s.up()
		s.ready()
		first := s.id.Leaf()
		time.Sleep(5*time.Minute + 10*time.Second)
		if s.id.Leaf() == first || fmt.Sprint(s.how()) != "[token t1 renew]" {
			t.Fatalf("after half a life: issued by %v", s.how())
		}
		// Renewal is refused: the token, as it is now, is tried too; the
		// present certificate serves on.
		second := s.id.Leaf()
		s.mu.Lock()
		s.refuse = wire.Refuse(wire.Unauthenticated, "your pod is gone")
		s.mu.Unlock()
		if err := os.WriteFile(s.token, []byte("t2"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Minute)
		if s.id.Leaf() != second || !slices.Contains(s.how(), "token t2") {
			t.Errorf("while refused: issued by %v", s.how())
		}
		// It ran out; once the control plane is willing, the token gets a new one.
		time.Sleep(10 * time.Minute)
		if last := s.how()[len(s.how())-1]; last != "token t2" {
			t.Errorf("with an expired certificate: by %s", last)
		}
		s.mu.Lock()
		s.refuse = nil
		s.mu.Unlock()
		time.Sleep(firstLast)
		if leaf := s.id.Leaf(); leaf == second || time.Now().After(leaf.NotAfter) {
			t.Error("no new certificate by token")
		}
	})
}

func TestForgedTokenIsToldOf(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.refuse = wire.Refuse(wire.Unauthenticated, "token refused: signed by no known key")
		s.up()
		time.Sleep(time.Minute)
		if st := s.c.State(); !strings.Contains(st.LastError, "signed by no known key") || s.isReady() {
			t.Errorf("state %+v", st)
		}
		if n := len(s.how()); n < 12 || n > 40 {
			t.Errorf("%d attempts in a minute", n)
		}
	})
}

// A new root arrives on the stream and is good for the next handshake; the old
// one is dropped by the next bundle. No restart.
func TestRootRotation(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		next := pki.New(t, "demo.test")
		bundle := func(rev uint64, as ...*pki.Authority) {
			x.update(&pb.Update{Name: "bundle", Version: []byte{byte(rev)}, Revision: rev, Content: &pb.Update_Bundles{Bundles: &pb.TrustBundles{Bundles: []*pb.TrustBundle{s.bundle(as...)}}}})
			synctest.Wait()
		}
		bundle(2, s.ca, next)
		s.kill()
		old := s.ca
		s.ca = next // the control plane's certificate is of the new root now
		both := next.Store(t, planeID)
		if err := both.SetBundles(pki.Bundles(old, next)); err != nil {
			t.Fatal(err)
		}
		s.up() // trusts the new root only: our old certificate is refused until renewed
		s.c.renewNow()
		x = s.next()
		if leaf := s.id.Leaf(); leaf.CheckSignatureFrom(next.Intermediate) != nil {
			t.Error("the certificate is not of the new root")
		}
		bundle(3, next)
	})
}

// The control plane was installed anew: it knows nothing of the authority that
// signed our certificate, which is good for a day yet. It is replaced by token
// at once, not at half of its life.
func TestNewAuthority(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		s.ready()
		s.kill()
		s.ca = pki.New(t, "demo.test")
		// As a node agent does, which reads the published roots anew.
		if err := s.id.SetBundles(pki.Bundles(s.ca)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s.up()
		s.next()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a stream came after %s", took)
		}
		if leaf := s.id.Leaf(); leaf.CheckSignatureFrom(s.ca.Intermediate) != nil {
			t.Error("the certificate is of the old authority")
		}
		if how := s.how(); how[len(how)-1] != "token t1" {
			t.Errorf("got by %q", how)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.up()
		x := s.ready()
		go func() { // answers every subscription
			var rev uint64 = 10
			for m := range x.in {
				for _, name := range m.GetSubscribe().GetNames() {
					rev++
					u := at(rev, fmt.Sprint(rev), "a")
					u.Name = name
					x.update(u)
				}
			}
		}()
		done := make(chan struct{}, 8)
		for g := range 8 {
			go func() {
				defer func() { done <- struct{}{} }()
				for i := range 200 {
					e, err := s.c.Lookup(t.Context(), netip.AddrFrom4([4]byte{10, 0, 0, byte(i*7+g) % 16}))
					if err != nil {
						t.Error(err)
						return
					}
					if e.Load().keys != "a" {
						t.Error("wrong content")
					}
					e.Release()
				}
			}()
		}
		for range 8 {
			<-done
		}
		if n := s.c.State().Entries; n > 3 {
			t.Errorf("%d entries left", n)
		}
	})
}

func FuzzUpdate(f *testing.F) {
	for _, u := range []*pb.Update{at(1, "v1", "a", "b"), {Name: "mesh", Content: &pb.Update_Mesh{Mesh: &pb.MeshSettings{ClusterPrefixes: [][]byte{{10, 0, 0, 0, 8}}}}},
		{Name: "addr/10.96.0.1", Content: &pb.Update_DestinationDelta{DestinationDelta: &pb.DestinationDelta{Removed: [][]byte{[]byte("a")}}}}, {Name: "bundle", Content: &pb.Update_Bundles{}}} {
		b, err := wire.Marshal(u)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var u pb.Update
		if wire.Unmarshal(b, &u) != nil {
			return
		}
		c := New(Config[*told]{Compile: compile})
		e, _ := c.table.hold(vip)
		out := newOutbox()
		c.update(at(1, "", "a", "b"), out)
		c.update(&u, out)
		if e.Load() == nil {
			t.Error("the entry lost its value")
		}
		out.take()
	})
}

// A node agent shows what it kept, takes deltas on it, and asks for the whole
// where a delta does not fit.
func TestNodeAgent(t *testing.T) {
	svc := func(ns, name string) *pb.NodeService {
		return &pb.NodeService{Service: &pb.Service{Namespace: ns, Name: name}}
	}
	kept := &pb.Update{Name: "node", Version: []byte("n1"), Revision: 70, Content: &pb.Update_Node{Node: &pb.NodeServices{Services: []*pb.NodeService{svc("a", "a"), svc("a", "b")}}}}
	var got []string
	cfg := func(c *Config[*told]) {
		c.Kind, c.Node = pb.PeerKind_PEER_KIND_NODE, kept
		c.OnNode = func(u *pb.Update) error {
			line := string(u.Version)
			for _, s := range u.GetNode().Services {
				line += " " + s.Service.Namespace + "/" + s.Service.Name
			}
			got = append(got, line)
			if string(u.Version) == "bad" {
				return errors.New("no room")
			}
			return nil
		}
	}
	playAs(t, cfg, func(t *testing.T, s *scene) {
		s.up()
		x := s.next()
		if h := x.hello; h.Kind != pb.PeerKind_PEER_KIND_NODE || len(h.Held) != 1 || h.Held[0].Name != "node" || string(h.Held[0].Version) != "n1" || h.Held[0].Revision != 0 {
			t.Fatalf("hello %v", h)
		}
		s.give(x)
		if !s.isReady() {
			t.Error("not ready although all came")
		}
		delta := func(version, base string, d *pb.NodeServicesDelta) {
			d.BaseVersion = []byte(base)
			x.update(&pb.Update{Name: "node", Version: []byte(version), Revision: 5, Content: &pb.Update_NodeDelta{NodeDelta: d}})
			synctest.Wait()
		}
		x.heard()
		delta("n2", "n1", &pb.NodeServicesDelta{Upserted: []*pb.NodeService{svc("a", "0")}, Removed: []string{"a/b"}})
		delta("n4", "n3", &pb.NodeServicesDelta{Removed: []string{"a/a"}})
		delta("bad", "n2", &pb.NodeServicesDelta{Removed: []string{"a/a"}})
		if want := "[n2 a/0 a/a bad a/0]"; fmt.Sprint(got) != want {
			t.Errorf("told %s, want %s", got, want)
		}
		if said := fmt.Sprint(x.heard()); !strings.Contains(said, "+[node]") || !strings.Contains(said, "ack node bad no room") {
			t.Errorf("said %s", said)
		}
	})
}
