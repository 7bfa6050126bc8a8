package nft

import (
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
)

func addrPort(f plan.Flow) netip.AddrPort { return netip.AddrPortFrom(f.Addr, f.Port) }

// families are the two worlds of the tests here: a Service, a client pod, the
// node, and endpoints.
var families = map[string]struct {
	vip, pod, node string
	endpoints      []string
}{
	"IPv4": {"10.96.0.10", "10.244.1.9", "192.0.2.11", []string{"10.244.1.5", "10.244.2.5", "10.244.2.6"}},
	"IPv6": {"fd96::10", "fd00:1::9", "2001:db8::11", []string{"fd00:1::5", "fd00:2::5", "fd00:2::6"}},
}

// service gives the rules of one Service with a TCP and a UDP port.
func service(t testing.TB, vip string, endpoints ...string) *plan.Rules {
	t.Helper()
	s := &wire.Service{Namespace: "shop", Name: "orders", Vips: [][]byte{netip.MustParseAddr(vip).AsSlice()}, Ports: []*wire.ServicePort{
		{Name: "tcp", Port: 80}, {Name: "udp", Port: 53, Transport: wire.Transport_TRANSPORT_UDP}}}
	for _, e := range endpoints {
		a := netip.MustParseAddr(e)
		s.Endpoints = append(s.Endpoints, &wire.Endpoint{Key: a.AsSlice(), Address: a.AsSlice(), Ports: []uint32{8080, 5353}, Ready: true, Serving: true, Node: "n1"})
	}
	r, errs := plan.All(&wire.NodeServices{Services: []*wire.NodeService{{Service: s}},
		PodPrefixes: [][]byte{{10, 244, 1, 0, 24}, append(netip.MustParseAddr("fd00:1::").AsSlice(), 64)}}, "n1")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return r
}

// A TCP flow keeps its endpoint whatever becomes of the rules, also over a
// restart of the agent; new flows follow the rules.
func TestEstablishedFlowsSurvive(t *testing.T) {
	w := newWorld(t)
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			first, second := netip.AddrPortFrom(netip.MustParseAddr(f.endpoints[0]), 8080), netip.AddrPortFrom(netip.MustParseAddr(f.endpoints[1]), 8080)
			w.serve(plan.TCP, first)
			w.serve(plan.TCP, second)
			b := New(nil)
			w.apply(b, service(t, f.vip, f.endpoints[0]))
			to := plan.Flow{Addr: netip.MustParseAddr(f.vip), Proto: plan.TCP, Port: 80}
			for _, from := range []string{f.pod, f.node} {
				c, err := w.dial(netip.MustParseAddr(from), to, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if a, err := read(c); err != nil || a.by != first {
					t.Fatalf("%v, %v", a, err)
				}
				echo := func(when string) {
					t.Helper()
					if _, err := io.WriteString(c, "again\n"); err != nil {
						t.Fatalf("%s: %v", when, err)
					}
					b := make([]byte, len("again\n"))
					if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
						t.Fatal(err)
					}
					if _, err := io.ReadFull(c, b); err != nil {
						t.Fatalf("%s: %v", when, err)
					}
				}
				w.apply(b, service(t, f.vip, f.endpoints[1]))
				echo("endpoint removed")
				if a, err := w.ask(netip.MustParseAddr(from), to); err != nil || a.by != second {
					t.Errorf("a new flow: %v, %v", a, err)
				}
				b = New(nil) // another process
				w.apply(b, service(t, f.vip, f.endpoints[1]))
				echo("agent restarted")
				w.apply(b, service(t, f.vip))
				echo("no endpoint left")
				w.apply(b, &plan.Rules{})
				echo("the Service is gone")
				w.apply(b, service(t, f.vip, f.endpoints[0]))
				echo("the Service is back")
			}
		})
	}
}

// A UDP client that keeps its port follows the Service: when its endpoint goes,
// when the first one comes, when the number changes, and when it had sent
// before there was a rule.
func TestUDPFollows(t *testing.T) {
	w := newWorld(t)
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			var at []netip.AddrPort
			for _, e := range f.endpoints {
				at = append(at, netip.AddrPortFrom(netip.MustParseAddr(e), 5353))
				w.serve(plan.UDP, at[len(at)-1])
			}
			to := plan.Flow{Addr: netip.MustParseAddr(f.vip), Proto: plan.UDP, Port: 53}
			for _, from := range []string{f.pod, f.node} {
				b := New(nil)
				w.apply(b, &plan.Rules{})
				c, err := w.dial(netip.MustParseAddr(from), to, 40053)
				if err != nil {
					t.Fatal(err)
				}
				ask := func() (answer, error) {
					if _, err := c.Write([]byte("?")); err != nil {
						return answer{}, err
					}
					return read(c)
				}
				// A refusal may wait in the socket for the next call.
				askTwice := func() (answer, error) {
					a, err := ask()
					if refused(err) {
						a, err = ask()
					}
					return a, err
				}
				if a, err := ask(); err == nil {
					t.Fatalf("without rules %v answers", a)
				}
				for _, step := range []struct {
					what      string
					endpoints []string
					want      netip.AddrPort
				}{
					{"the Service comes", f.endpoints[:1], at[0]},
					{"its endpoint is replaced", f.endpoints[1:2], at[1]},
					{"none is left", nil, netip.AddrPort{}},
					{"the first one comes", f.endpoints[2:], at[2]},
				} {
					w.apply(b, service(t, f.vip, step.endpoints...))
					a, err := askTwice()
					if !step.want.IsValid() {
						if !refused(err) {
							t.Errorf("from %s: %s: %v, %v; should be refused", from, step.what, a, err)
						}
						continue
					}
					if err != nil || a.by != step.want {
						t.Errorf("from %s: %s: %v, %v; want %s", from, step.what, a, err, step.want)
					}
				}
				// Others' flows are left alone, and so is this one while it may stay.
				if rep := w.apply(b, service(t, f.vip, f.endpoints[2], f.endpoints[0])); rep.Flows.Looked == 0 || rep.Flows.Deleted != 0 {
					t.Errorf("from %s: %+v", from, rep.Flows)
				}
				if a, err := ask(); err != nil || a.by != at[2] {
					t.Errorf("from %s: with one more endpoint: %v, %v", from, a, err)
				}
				c.Close()
			}
		})
	}
}

// While rules change all the time, no flow to a Service fails.
func TestNoGap(t *testing.T) {
	w := newWorld(t)
	for name, f := range families {
		t.Run(name, func(t *testing.T) {
			for _, e := range f.endpoints {
				w.serve(plan.TCP, netip.AddrPortFrom(netip.MustParseAddr(e), 8080))
			}
			b := New(nil)
			w.apply(b, service(t, f.vip, f.endpoints...))
			to := plan.Flow{Addr: netip.MustParseAddr(f.vip), Proto: plan.TCP, Port: 80}
			var stop atomic.Bool
			var asked atomic.Int64
			var askers sync.WaitGroup
			for _, from := range []string{f.pod, f.node, f.pod, f.node} {
				askers.Go(func() {
					for !stop.Load() {
						if a, err := w.ask(netip.MustParseAddr(from), to); err != nil {
							t.Errorf("from %s after %d flows: %v, %v", from, asked.Load(), a, err)
							return
						}
						asked.Add(1)
					}
				})
			}
			for i := range 40 {
				if i%5 == 4 {
					b = New(nil) // restarts write everything anew
				}
				w.apply(b, service(t, f.vip, f.endpoints[i%3:]...))
			}
			stop.Store(true)
			askers.Wait()
			t.Log(fmt.Sprint(asked.Load(), " flows during 40 changes"))
			if asked.Load() < 40 {
				t.Errorf("only %d flows were tried", asked.Load())
			}
		})
	}
}
