package services

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// A Service's address that the node itself has: a port of the Service is as the
// rules say, others and other addresses of the range are whoever's is there. On
// a node that has not got the address they are refused, and dropped.
func TestAddressOfTheNode(t *testing.T) {
	prefix := func(s ...string) (out []netip.Prefix) {
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	node, out := meshtest.NetNS(t), meshtest.NetNS(t)
	meshtest.Link(node, out, "eth0", prefix("192.0.2.1/24", "2001:db8::1/64", "10.96.0.1/32", "10.96.0.9/32", "fd96::1/128", "fd96::9/128"), prefix("192.0.2.2/24", "2001:db8::2/64"))
	out.Route(netip.MustParsePrefix("10.96.0.0/16"), addr("192.0.2.1"))
	out.Route(netip.MustParsePrefix("fd96::/112"), addr("2001:db8::1"))
	rules := &Rules{Keys: map[Key]Target{}, Addrs: map[netip.Addr]bool{}, Ranges: prefix("10.96.0.0/16", "fd96::/112")}
	for _, vip := range []string{"10.96.0.1", "fd96::1"} {
		rules.Addrs[addr(vip)] = true
		rules.Keys[Key{addr(vip), 6, 80}] = Target{Verdict: Reject}
	}
	node.Do(func() {
		if _, err := New(nil).Apply(rules); err != nil {
			t.Error(err)
		}
		for _, a := range []string{"10.96.0.1:80", "10.96.0.1:81", "10.96.0.9:81", "[fd96::1]:80", "[fd96::1]:81", "[fd96::9]:81"} {
			l, err := net.Listen("tcp", a)
			if err != nil {
				t.Error(err)
				continue
			}
			t.Cleanup(func() { l.Close() })
		}
	})
	out.Do(func() {
		for a, want := range map[string]error{
			"10.96.0.1:80": syscall.ECONNREFUSED, "10.96.0.1:81": nil, "10.96.0.9:81": nil,
			"[fd96::1]:80": syscall.ECONNREFUSED, "[fd96::1]:81": nil, "[fd96::9]:81": nil,
		} {
			c, err := net.DialTimeout("tcp", a, 5*time.Second)
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", a, err, want)
			}
		}
	})
}
