package kube

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
	"github.com/heddle-mesh/heddle/internal/source"
)

func TestComeChangeGo(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, pod("a", "10.0.0.1")+pod("b", "10.0.0.2"))
		d := start(t, s)
		first := d.Snapshot()
		if !has("shop")(first) || !hasPod("a")(first) || !hasPod("b")(first) {
			t.Fatal(show(first))
		}
		s.Apply(t, pod("a", "10.0.0.9"))
		second := d.within(100*time.Millisecond, "a's new address", func(s *source.Snapshot) bool { return s != first })
		a, b := source.Key{Namespace: "shop", Name: "a"}, source.Key{Namespace: "shop", Name: "b"}
		if second.Pods[a] == first.Pods[a] || second.Pods[a].IPs[0].String() != "10.0.0.9" || first.Pods[a].IPs[0].String() != "10.0.0.1" {
			t.Errorf("a: %+v after %+v", second.Pods[a], first.Pods[a])
		}
		if second.Pods[b] != first.Pods[b] {
			t.Error("an unchanged object has another pointer")
		}
		if reflect.ValueOf(second.Namespaces).Pointer() != reflect.ValueOf(first.Namespaces).Pointer() {
			t.Error("an unchanged kind has another map")
		}
		if second.Revision <= first.Revision {
			t.Errorf("revision %d after %d", second.Revision, first.Revision)
		}
		s.Delete("pods", "shop", "b")
		third := d.until("b gone", not(hasPod("b")))
		if third.Revision <= second.Revision || !hasPod("b")(second) {
			t.Errorf("revision %d after %d, %s", third.Revision, second.Revision, show(second))
		}
		// What we do not read is no news.
		s.Apply(t, strings.Replace(pod("a", "10.0.0.9"), "status: {", "status: {message: hello, ", 1))
		d.rest()
		if d.Snapshot() != third {
			t.Errorf("a snapshot for nothing: %s", show(d.Snapshot()))
		}
		// Another replica that begins now is at least as far, and says the same.
		other := start(t, s).Snapshot()
		if other.Revision < third.Revision || !reflect.DeepEqual(other.Pods, third.Pods) {
			t.Errorf("another replica has %s", show(other))
		}
		// What both see next gives both the same number.
		e := start(t, s)
		s.Apply(t, pod("c", "10.0.0.3"))
		x, y := d.until("c", hasPod("c")), e.until("c", hasPod("c"))
		if x.Revision != y.Revision {
			t.Errorf("revisions %d and %d", x.Revision, y.Revision)
		}
	})
}

// Many changes at once make few snapshots, and the last one holds all.
func TestCoalesced(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		d := start(t, s)
		for i := range 100 {
			s.Apply(t, pod(fmt.Sprint("p", i), "10.0.0.1"))
		}
		snapshots := 0
		for last := d.Snapshot(); len(d.Snapshot().Pods) < 100; <-d.Changed() {
			if d.Snapshot() != last {
				snapshots, last = snapshots+1, d.Snapshot()
			}
		}
		if snapshots > 3 {
			t.Errorf("%d snapshots of one burst", snapshots)
		}
	})
}

// A connection that breaks, and a server that restarts: nothing goes
// meanwhile, and what happened in between is there soon, without a new list.
func TestBrokenConnections(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, pod("a", "10.0.0.1"))
		d := start(t, s)
		for i := range 5 {
			time.Sleep(2 * time.Second) // a watch that breaks at once is no broken connection
			lists := s.Count("list pods") + s.Count("stream pods")
			s.Cut()
			name := fmt.Sprint("b", i)
			s.Apply(t, pod(name, "10.0.1.1"))
			got := d.within(retryFirst*4, name, hasPod(name))
			if !hasPod("a")(got) {
				t.Fatalf("a is gone: %s", show(got))
			}
			if n := s.Count("list pods") + s.Count("stream pods") - lists; n != 0 {
				t.Errorf("%d lists after a broken connection", n)
			}
		}
		before := d.Snapshot()
		s.Down()
		s.Apply(t, pod("c", "10.0.0.3"))
		time.Sleep(awayAfter / 2)
		if d.Snapshot() != before {
			t.Errorf("a restart of the API server made a snapshot: %s", show(d.Snapshot()))
		}
		s.Up()
		got := d.within(2*retryMax, "c", hasPod("c"))
		if len(got.Problems) > 0 || got.Pods[source.Key{Namespace: "shop", Name: "a"}] != before.Pods[source.Key{Namespace: "shop", Name: "a"}] {
			t.Errorf("after the restart: %s", show(got))
		}
	})
}

// An API server that is away for long is a Problem and in the log, and all
// that was known stays.
func TestAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, pod("a", "10.0.0.1")+policy("p", "allow"))
		d := start(t, s)
		before := d.Snapshot()
		s.Down()
		got := d.within(awayAfter+2*time.Second, "the problems", func(s *source.Snapshot) bool { return len(s.Problems) == 10 })
		if p := got.Problems[0].String(); !strings.HasPrefix(p, "APIServer api: accesspolicies: cannot be listed or watched (") {
			t.Errorf("problem %v", p)
		}
		if got.Revision < before.Revision || !hasPod("a")(got) || len(got.AccessPolicies) != 1 {
			t.Errorf("while away: %s", show(got))
		}
		time.Sleep(10 * time.Minute)
		if n := strings.Count(d.log.String(), "kind=Pod"); n < 5 || n > 15 {
			t.Errorf("%d lines in ten minutes about pods:\n%s", n, d.log)
		}
		s.Up()
		d.within(2*retryMax, "no problem", func(s *source.Snapshot) bool { return len(s.Problems) == 0 })
		if !strings.Contains(d.log.String(), "watching again") {
			t.Error("the log does not say that all is well again")
		}
	})
}

// 410 Gone, in the midst of a watch and at its begin: what vanished unseen
// goes, what came is there, what stayed keeps its pointer.
func TestGone(t *testing.T) {
	for _, how := range []string{"in the midst", "at the begin", "at the begin, without streams"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubeapi.Server) {
				if strings.Contains(how, "without") {
					s.NoStream()
				}
				s.Apply(t, pod("a", "10.0.0.1")+pod("b", "10.0.0.2"))
				d := start(t, s)
				before := d.Snapshot()
				if strings.HasPrefix(how, "at the begin") {
					s.Down()
				}
				s.Delete("pods", "shop", "b")
				s.Apply(t, pod("c", "10.0.0.3"))
				s.Forget()
				s.Up()
				got := d.within(2*retryMax, "c, and b gone", func(s *source.Snapshot) bool { return hasPod("c")(s) && !hasPod("b")(s) })
				a := source.Key{Namespace: "shop", Name: "a"}
				if got.Pods[a] != before.Pods[a] || got.Revision <= before.Revision {
					t.Errorf("after: %s", show(got))
				}
				s.Apply(t, pod("d", "10.0.0.4"))
				d.until("d", hasPod("d"))
			})
		})
	}
}

func TestPages(t *testing.T) {
	for _, how := range []string{"streams", "pages"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubeapi.Server) {
				if how == "pages" {
					s.NoStream()
				}
				var all strings.Builder
				const n = 3*pageSize + 1
				for i := range n {
					all.WriteString(pod(fmt.Sprintf("p%04d", i), "10.0.0.1"))
				}
				s.Apply(t, all.String())
				d := start(t, s)
				if got := len(d.Snapshot().Pods); got != n {
					t.Errorf("%d pods, want %d", got, n)
				}
				want := map[string]int{"streams": 0, "pages": 4}[how]
				if got := s.Count("list pods"); got != want {
					t.Errorf("%d lists, want %d", got, want)
				}
			})
		})
	}
}

// A slow API server: the first snapshot waits for everything, and a server
// that does not answer at all is given up and asked again.
func TestSlow(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, pod("a", "10.0.0.1")+policy("p", "deny"))
		hang := make(chan struct{})
		s.Delay(func(r *http.Request) {
			if strings.Contains(r.URL.Path, "accesspolicies") {
				select {
				case <-hang:
				case <-r.Context().Done():
				}
			}
		})
		d := open(t, s, Config{})
		d.run()
		time.Sleep(2*headTimeout + 30*time.Second)
		if d.Snapshot() != nil {
			t.Fatalf("a snapshot before the policies were read: %s", show(d.Snapshot()))
		}
		if !strings.Contains(d.log.String(), "did not begin within") {
			t.Errorf("the log does not say what is waited for:\n%s", d.log)
		}
		close(hang)
		got := d.within(headTimeout+2*retryMax, "the first snapshot", func(*source.Snapshot) bool { return true })
		if len(got.AccessPolicies) != 1 {
			t.Error(show(got))
		}
	})
}

// A kind that we may not list: there is no world without it.
func TestForbidden(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Refuse("accesspolicies", 403)
		d := open(t, s, Config{})
		d.run()
		time.Sleep(time.Minute)
		if d.Snapshot() != nil || !strings.Contains(d.log.String(), "kind=AccessPolicy") {
			t.Errorf("%s\n%s", show(d.Snapshot()), d.log)
		}
		s.Refuse("accesspolicies", 0)
		d.within(2*retryMax, "the first snapshot", func(*source.Snapshot) bool { return true })
		// Later it is a Problem, and what was known stays.
		s.Apply(t, policy("p", "deny"))
		d.until("the policy", func(s *source.Snapshot) bool { return len(s.AccessPolicies) == 1 })
		for _, code := range []int{403, 429, 500} {
			s.Refuse("accesspolicies", code)
			s.Cut()
			got := d.until("the problem", func(s *source.Snapshot) bool { return len(s.Problems) == 1 })
			if len(got.AccessPolicies) != 1 || got.Problems[0].Field != "accesspolicies" {
				t.Errorf("%d: %s", code, show(got))
			}
			s.Refuse("accesspolicies", 0)
			d.until("no problem", func(s *source.Snapshot) bool { return len(s.Problems) == 0 })
		}
	})
}

// CRDs that are installed later, and that go.
func TestKindsComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		for _, p := range []string{"meshconfigs", "accesspolicies", "trafficpolicies"} {
			s.Serve(p, false)
		}
		d := start(t, s)
		if n := s.Count("watch accesspolicies") + s.Count("list accesspolicies"); n != 0 {
			t.Errorf("%d requests for a kind that is not there", n)
		}
		s.Serve("accesspolicies", true)
		s.Apply(t, policy("p", "allow"))
		d.within(2*discoverEvery, "the policy", func(s *source.Snapshot) bool { return len(s.AccessPolicies) == 1 })
		// For a moment it is not served, as after a start of the API server.
		s.Serve("accesspolicies", false)
		s.Cut()
		time.Sleep(2 * discoverEvery)
		if len(d.Snapshot().AccessPolicies) != 1 {
			t.Errorf("a hiccup took the policies: %s", show(d.Snapshot()))
		}
		s.Serve("accesspolicies", true)
		s.Apply(t, policy("q", "allow"))
		d.within(2*retryMax, "both", func(s *source.Snapshot) bool { return len(s.AccessPolicies) == 2 })
		s.Serve("accesspolicies", false)
		s.Cut()
		d.within((goneAfter+1)*discoverEvery, "none", func(s *source.Snapshot) bool { return len(s.AccessPolicies) == 0 && len(s.Problems) == 3 })
		if p := d.Snapshot().Problems[0]; p.Ref.Name != "accesspolicies.heddle.dev" || p.Err != "is not installed" {
			t.Errorf("what is missing is not said: %s", show(d.Snapshot()))
		}
		asked := s.Count("watch accesspolicies")
		time.Sleep(time.Minute)
		if s.Count("watch accesspolicies") != asked {
			t.Error("a kind that is gone is still watched")
		}
		if strings.Contains(d.log.String(), "cannot watch") {
			t.Errorf("a CRD that goes is no trouble:\n%s", d.log)
		}
		s.Serve("accesspolicies", true)
		d.within(2*discoverEvery, "both again", func(s *source.Snapshot) bool { return len(s.AccessPolicies) == 2 })
	})
}

// An API server that starts serves its CRDs a little later than the rest: no
// snapshot is without the policies that are there.
func TestOwnKindsComeLate(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, policy("p", "deny"))
		s.Serve("accesspolicies", false)
		d := open(t, s, Config{})
		d.run()
		time.Sleep(3 * askAgain / 2)
		if d.Snapshot() != nil {
			t.Fatalf("a snapshot without policies: %s", show(d.Snapshot()))
		}
		s.Serve("accesspolicies", true)
		got := d.until("the first snapshot", func(*source.Snapshot) bool { return true })
		if len(got.AccessPolicies) != 1 || len(got.Problems) != 0 {
			t.Errorf("first: %s", show(got))
		}
	})
}

// A watch that does not end when it was asked to is ended by us, and nothing
// is lost by that.
func TestOverdueWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Delay(func(r *http.Request) {
			if q := r.URL.Query(); q.Get("timeoutSeconds") != "" {
				q.Set("timeoutSeconds", "1000000")
				r.URL.RawQuery = q.Encode()
			}
		})
		d := start(t, s)
		first := d.Snapshot()
		before := s.Count("watch pods") + s.Count("stream pods")
		time.Sleep(10*time.Minute + overdue + time.Second) // client-go asks for five to ten minutes
		if n := s.Count("watch pods") + s.Count("stream pods") - before; n == 0 {
			t.Error("the watch is believed for ever")
		}
		s.Apply(t, pod("a", "10.0.0.1"))
		if got := d.within(retryMax, "a", hasPod("a")); len(got.Problems) != 0 || len(got.Namespaces) != len(first.Namespaces) {
			t.Errorf("afterwards: %s", show(got))
		}
	})
}

// The first snapshot waits until the API server has said which kinds there
// are: policies that nobody asked for yet may deny.
func TestDiscoveryAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, policy("p", "deny"))
		s.Delay(func(r *http.Request) {
			if r.URL.Path == "/apis/heddle.dev/v1alpha1" {
				panic(http.ErrAbortHandler)
			}
		})
		d := open(t, s, Config{})
		d.run()
		time.Sleep(time.Minute)
		if d.Snapshot() != nil {
			t.Fatal(show(d.Snapshot()))
		}
		s.Delay(nil)
		got := d.within(2*askAgain, "the first snapshot", func(*source.Snapshot) bool { return true })
		if len(got.AccessPolicies) != 1 {
			t.Error(show(got))
		}
	})
}

func TestRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapi.New(t, kubeapi.Resource{Group: gateway, Version: "v1", Plural: "httproutes", Kind: "HTTPRoute"},
			kubeapi.Resource{Group: gateway, Version: "v1alpha2", Plural: "tcproutes", Kind: "TCPRoute"})
		d := start(t, s)
		s.Apply(t, "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {b: 1, a: {c: [2]}}\n---\napiVersion: gateway.networking.k8s.io/v1alpha2\nkind: TCPRoute\nmetadata: {name: r, namespace: shop}\nspec: {}\n")
		got := d.until("routes", func(s *source.Snapshot) bool { return len(s.Routes) == 2 })
		h := got.Routes[source.Ref{Kind: "HTTPRoute", Namespace: "shop", Name: "r"}]
		if h == nil || string(h.Spec) != `{"a":{"c":[2]},"b":1}` || h.Generation != 1 || got.Routes[source.Ref{Kind: "TCPRoute", Namespace: "shop", Name: "r"}] == nil {
			t.Errorf("routes %+v", got.Routes)
		}
	})
}

// gateway is the group of the Gateway API.
const gateway = "gateway.networking.k8s.io"

func TestOnly(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		s.Apply(t, pod("a", "10.0.0.1")+mesh("strict"))
		d := open(t, s, Config{Only: []string{"Namespace", "MeshConfig"}})
		d.run()
		got := d.until("the first snapshot", func(*source.Snapshot) bool { return true })
		if len(got.Pods) != 0 || got.Mesh == nil || !has("shop")(got) || s.Count("watch pods")+s.Count("watch accesspolicies") != 0 {
			t.Errorf("%s", show(got))
		}
	})
	if _, err := newSource(Config{Only: []string{"Pdo"}}, at(nil)); err == nil || !strings.Contains(err.Error(), `"Pdo"`) {
		t.Errorf("error %v", err)
	}
}

// Bookmarks move the revision on where nothing of ours changes: another
// replica may have told peers of a newer one.
func TestBookmarks(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server) {
		d := start(t, s)
		before := d.Snapshot()
		var now int64
		for range 50 {
			now = s.Tick()
		}
		got := d.within(2*time.Minute, "a newer revision", func(s *source.Snapshot) bool { return s.Revision >= uint64(now) })
		if reflect.ValueOf(got.Pods).Pointer() != reflect.ValueOf(before.Pods).Pointer() || got.Mesh != before.Mesh {
			t.Error("a bookmark changed a map")
		}
	})
}
