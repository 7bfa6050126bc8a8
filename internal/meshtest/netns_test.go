package meshtest

import (
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func pfx(ss ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(ss))
	for i, s := range ss {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

func TestNamespacesAreApartAndEmpty(t *testing.T) {
	a, b := NetNS(t), NetNS(t)
	host := inode(t, "/proc/self/ns/net")
	if ia, ib := inode(t, a.Path()), inode(t, b.Path()); ia == host || ib == host || ia == ib {
		t.Errorf("inodes: host %d, a %d, b %d", host, ia, ib)
	}
	a.Do(func() {
		ifs, err := net.Interfaces()
		if err != nil || len(ifs) != 1 || ifs[0].Flags&net.FlagUp == 0 {
			t.Errorf("interfaces %v, error %v; want loopback alone, up", ifs, err)
		}
		// No way out, to an address of a documentation range.
		if c, err := net.Dial("tcp", "192.0.2.1:80"); err == nil {
			c.Close()
			t.Error("a fresh namespace has a way out")
		}
	})
	if now := inode(t, "/proc/self/ns/net"); now != host {
		t.Error("the test itself was left in a namespace")
	}
}

func TestLinkAndRoute(t *testing.T) {
	client, router, server := NetNS(t), NetNS(t), NetNS(t)
	Link(client, router, "left", pfx("198.51.100.1/28", "2001:db8:1::1/64"), pfx("198.51.100.2/28", "2001:db8:1::2/64"))
	Link(router, server, "right", pfx("198.51.100.18/28", "2001:db8:2::2/64"), pfx("198.51.100.17/28", "2001:db8:2::1/64"))
	router.Do(func() {
		for _, f := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
			if err := os.WriteFile(f, []byte("1"), 0); err != nil {
				t.Error(err)
			}
		}
	})
	for _, r := range []struct {
		ns  *NS
		dst string
		via string
	}{
		{client, "198.51.100.16/28", "198.51.100.2"}, {client, "2001:db8:2::/64", "2001:db8:1::2"},
		{server, "198.51.100.0/28", "198.51.100.18"}, {server, "2001:db8:1::/64", "2001:db8:2::2"},
	} {
		r.ns.Route(netip.MustParsePrefix(r.dst), netip.MustParseAddr(r.via))
	}
	for _, addr := range []string{"198.51.100.17:80", "[2001:db8:2::1]:80"} {
		var l net.Listener
		server.Do(func() {
			var err error
			if l, err = net.Listen("tcp", addr); err != nil {
				t.Error(err)
			}
		})
		if l == nil {
			continue
		}
		server.Go(func() {
			if c, err := l.Accept(); err == nil {
				io.WriteString(c, "hello")
				c.Close()
			}
		})
		client.Do(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Errorf("dial %s: %v", addr, err)
				return
			}
			defer c.Close()
			if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
				t.Errorf("%s: read %q, %v", addr, b, err)
			}
		})
		l.Close()
	}
}
