package services

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// Real flows: each endpoint gets its share, in both forms of a chain.
func TestEachHasTheSameChance(t *testing.T) {
	const flows = 100 // for each endpoint; by chance 50 to 160 are missed once in a million runs
	for name, n := range map[string]int{"one": 1, "rules": maxWalk, "a map": maxWalk + 1} {
		t.Run(name, func(t *testing.T) {
			ns := meshtest.NetNS(t)
			// An address that can be sent to; packets do not get there.
			meshtest.Link(ns, meshtest.NetNS(t), "eth0", []netip.Prefix{netip.MustParsePrefix("10.96.0.1/32")}, nil)
			ns.Do(func() {
				to := Target{Forward, "a/b/tcp/80/v4", nil}
				got := make([]atomic.Int64, n)
				for i := range n {
					l, err := net.Listen("tcp", "127.0.0.1:0")
					if err != nil {
						t.Error(err)
						return
					}
					defer l.Close()
					to.Endpoints = append(to.Endpoints, netip.MustParseAddrPort(l.Addr().String()))
					go func() {
						for {
							c, err := l.Accept()
							if err != nil {
								return
							}
							got[i].Add(1)
							_, _ = c.Write([]byte("x"))
							c.Close()
						}
					}()
				}
				if _, err := New(nil).Apply(&Rules{Keys: map[Key]Target{{addr("10.96.0.1"), 6, 80}: to}}); err != nil {
					t.Error(err)
					return
				}
				for range n * flows {
					c, err := net.Dial("tcp", "10.96.0.1:80")
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := c.Read(make([]byte, 1)); err != nil { // it is counted
						t.Error(err)
					}
					c.Close()
				}
				for i := range got {
					if k := got[i].Load(); n > 1 && (k < 50 || k > 160) || n == 1 && k != flows {
						t.Errorf("endpoint %d of %d got %d flows of %d", i, n, k, n*flows)
					}
				}
			})
		})
	}
}
