package intercept

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/meshtest"
	"github.com/heddle-mesh/heddle/internal/netfilter"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

// Every rule of the plan, seen from a program that dials: which process
// answers, and what it takes for the destination.
func TestWhoAnswers(t *testing.T) {
	type row struct {
		what    string
		fromPod bool
		uid     uint32
		dst     string
		want    string // with the skip options
		without string // without them, if that differs
	}
	rows := []row{
		{"app to the peer", true, appUID, peer4 + ":80", "out 198.51.100.1:80", ""},
		{"app to the peer, IPv6", true, appUID, "[" + peer6 + "]:80", "out [2001:db8::1]:80", ""},
		{"root is redirected as well", true, 0, peer4 + ":80", "out 198.51.100.1:80", ""},
		{"to a port where nobody listens", true, appUID, peer4 + ":81", "out 198.51.100.1:81", ""},
		{"sidecar to the peer", true, redirect.SidecarUID, peer4 + ":80", "direct", ""},
		{"sidecar to the peer, IPv6", true, redirect.SidecarUID, "[" + peer6 + "]:80", "direct", ""},
		{"sidecar to the app by the pod's address", true, redirect.SidecarUID, pod4 + ":8080", "app", ""},
		{"sidecar to the app by the pod's address, IPv6", true, redirect.SidecarUID, "[" + pod6 + "]:8080", "app", ""},
		{"app to itself by the pod's address", true, appUID, pod4 + ":8080", "out 198.51.100.2:8080", ""},
		{"app to itself by the pod's address, IPv6", true, appUID, "[" + pod6 + "]:8080", "out [2001:db8::2]:8080", ""},
		{"app to a neighbour on loopback", true, appUID, "127.0.0.1:8080", "app", ""},
		{"app to a neighbour on loopback, IPv6", true, appUID, "[::1]:8080", "app", ""},
		{"DNS over TCP", true, appUID, peer4 + ":53", "direct", ""},

		{"app to the admin port on loopback", true, appUID, "127.0.0.1:16020", "out refused: own port 127.0.0.1:16020", ""},
		{"app to the admin port on ::1", true, appUID, "[::1]:16020", "out refused: own port [::1]:16020", ""},
		{"app to the admin port on the pod's address", true, appUID, pod4 + ":16020", "out refused: own port 198.51.100.2:16020", ""},
		{"app to the admin port on the pod's address, IPv6", true, appUID, "[" + pod6 + "]:16020", "out refused: own port [2001:db8::2]:16020", ""},
		{"app to the inbound port on loopback", true, appUID, "127.0.0.1:16006", "out refused: own port 127.0.0.1:16006", ""},
		{"app to the inbound port on the pod's address", true, appUID, pod4 + ":16006", "out refused: own port 198.51.100.2:16006", ""},
		{"app to the outbound port on loopback", true, appUID, "127.0.0.1:16001", "out refused: not captured", ""},
		{"app to the outbound port on ::1", true, appUID, "[::1]:16001", "out refused: not captured", ""},
		{"app to the outbound port on the pod's address", true, appUID, pod4 + ":16001", "out refused: own port 198.51.100.2:16001", ""},
		{"app to another pod's admin port", true, appUID, peer4 + ":16020", "out 198.51.100.1:16020", ""},
		{"the probe address, whoever dials it", true, redirect.SidecarUID, "127.6.6.6:16009", "out refused: own port 127.6.6.6:16009", ""},
		{"the probe address, IPv6", true, redirect.SidecarUID, "[::1]:16009", "out refused: own port [::1]:16009", ""},

		{"skipped user", true, 1337, peer4 + ":80", "direct", "out 198.51.100.1:80"},
		{"skipped port", true, appUID, peer4 + ":22", "direct", "out 198.51.100.1:22"},
		{"skipped range", true, appUID, "[" + peer6 + "]:8050", "direct", "out [2001:db8::1]:8050"},
		{"behind the skipped range", true, appUID, peer4 + ":8071", "out 198.51.100.1:8071", ""},
		{"skipped addresses", true, appUID, peer4b + ":80", "direct", "out 203.0.113.5:80"},
		{"skipped addresses, IPv6", true, appUID, "[2001:db8:77::1]:80", "direct", "out [2001:db8:77::1]:80"},
		{"own port on an own address in skipped addresses", true, appUID, pod4b + ":16020", "out refused: own port 203.0.113.2:16020", ""},

		{"outside to the app", false, 0, pod4 + ":8080", "in 198.51.100.2:8080", ""},
		{"outside to the app, IPv6", false, 0, "[" + pod6 + "]:8080", "in [2001:db8::2]:8080", ""},
		{"outside to the app's other address", false, 0, pod4b + ":8080", "in 203.0.113.2:8080", ""},
		{"outside to a port where nobody listens", false, 0, pod4 + ":81", "in 198.51.100.2:81", ""},
		{"outside to the admin port", false, 0, pod4 + ":16020", "admin", ""},
		{"outside to the admin port, IPv6", false, 0, "[" + pod6 + "]:16020", "admin", ""},
		{"outside to the inbound port", false, 0, pod4 + ":16006", "in refused: not captured", ""},
		{"outside to the inbound port, other address", false, 0, pod4b + ":16006", "in refused: own port 203.0.113.2:16006", ""},
		{"outside to the outbound port", false, 0, pod4 + ":16001", "in refused: own port 198.51.100.2:16001", ""},
		{"outside to a skipped port", false, 0, pod4 + ":9100", "app", "in 198.51.100.2:9100"},
		{"outside to a skipped port, IPv6", false, 0, "[" + pod6 + "]:9100", "app", "in [2001:db8::2]:9100"},
	}
	forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
		for _, skips := range []bool{true, false} { // the second replaces the first
			n.init(b, config(skips))
			type dialler struct {
				ns  *meshtest.NS
				uid uint32
			}
			by := map[dialler][]row{}
			for _, r := range rows {
				d := dialler{n.peer, r.uid}
				if r.fromPod {
					d.ns = n.pod
				}
				by[d] = append(by[d], r)
			}
			for d, rows := range by {
				dsts := make([]string, len(rows))
				for i, r := range rows {
					dsts[i] = r.dst
				}
				for i, got := range n.dialAllAs(d.ns, d.uid, dsts) {
					want := rows[i].want
					if !skips && rows[i].without != "" {
						want = rows[i].without
					}
					if got != want {
						t.Errorf("skips %v: %s: %s: %q; want %q", skips, rows[i].what, rows[i].dst, got, want)
					}
				}
			}
		}
		n.pod.Do(func() {
			if err := Clean(context.Background(), nil); err != nil {
				t.Error(err)
			}
		})
		if got := n.dialAs(n.pod, appUID, peer4+":80"); got != "direct" {
			t.Errorf("after clean: %q", got)
		}
		if got := n.dialAs(n.peer, 0, "["+pod6+"]:8080"); got != "app" {
			t.Errorf("after clean: %q", got)
		}
	})
}

func TestUDPAndICMPUntouched(t *testing.T) {
	forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
		for _, port := range []int{53, 8080} {
			n.peer.Do(func() {
				pc, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { pc.Close() })
				n.peer.Go(func() {
					buf := make([]byte, 100)
					for {
						k, from, err := pc.ReadFrom(buf)
						if err != nil {
							return
						}
						pc.WriteTo(append([]byte("echo "), buf[:k]...), from)
					}
				})
			})
		}
		n.init(b, config(false))
		n.pod.Do(func() {
			for _, host := range []string{peer4, peer6} {
				for _, port := range []string{"53", "8080"} {
					if got := udpTalk(net.JoinHostPort(host, port)); got != "echo hi" {
						t.Errorf("UDP to %s port %s: %q", host, port, got)
					}
				}
			}
			if err := ping("ip4:icmp", peer4, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply); err != nil {
				t.Errorf("ping: %v", err)
			}
			if err := ping("ip6:ipv6-icmp", peer6, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply); err != nil {
				t.Errorf("ping, IPv6: %v", err)
			}
		})
	})
}

func udpTalk(dst string) string {
	c, err := net.Dial("udp", dst)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, "hi")
	buf := make([]byte, 100)
	k, err := c.Read(buf)
	if err != nil {
		return err.Error()
	}
	return string(buf[:k])
}

func ping(network, host string, ask, want icmp.Type) error {
	c, err := icmp.ListenPacket(network, "")
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	proto := 1
	if ask == ipv6.ICMPTypeEchoRequest {
		proto = 58
	}
	b, err := (&icmp.Message{Type: ask, Body: &icmp.Echo{ID: 7, Seq: 1, Data: []byte("x")}}).Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(b, &net.IPAddr{IP: net.ParseIP(host)}); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		k, from, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(proto, buf[:k])
		if err == nil && m.Type == want && from.String() == host {
			return nil
		}
	}
}

// Connections that were open before the rules came, and between two sets of
// rules, go on.
func TestOpenConnectionsGoOn(t *testing.T) {
	forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
		n.echo(n.peer, 7)
		n.echo(n.pod, 7)
		var conns []net.Conn
		open := func(ns *meshtest.NS, dst string) {
			ns.Do(func() {
				c, err := net.DialTimeout("tcp", dst, patience)
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { c.Close() })
				conns = append(conns, c)
			})
		}
		alive := func(when string) {
			for _, c := range conns {
				c.SetDeadline(time.Now().Add(patience))
				buf := make([]byte, 2)
				io.WriteString(c, "hi")
				if _, err := io.ReadFull(c, buf); err != nil {
					t.Errorf("%s: %v -> %v: %v", when, c.LocalAddr(), c.RemoteAddr(), err)
				}
			}
		}
		open(n.pod, peer4+":7")
		open(n.pod, "["+peer6+"]:7")
		open(n.peer, pod4+":7")
		open(n.peer, "["+pod6+"]:7")
		alive("before")
		n.init(b, config(false))
		alive("after init")
		n.init(b, config(true))
		alive("after another init")
	})
}

// After clean the kernel tracks nothing more, but would remember for minutes
// what it tracked. When init comes again, an open connection on the ports of an
// old one must not be taken for the old one.
func TestCleanForgets(t *testing.T) {
	forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
		n.echo(n.peer, 7)
		const from = 33333
		for _, dst := range []string{peer4 + ":7", "[" + peer6 + "]:7"} {
			n.init(b, config(false))
			n.pod.Do(func() {
				if c, err := dialFrom(from, dst); err != nil {
					t.Error(err)
				} else if got, err := io.ReadAll(c); err != nil || string(got) != "out "+dst {
					t.Errorf("%s: %q, %v", dst, got, err)
				} else {
					c.Close()
				}
				if err := Clean(context.Background(), nil); err != nil {
					t.Error(err)
				}
			})
			n.pod.Do(func() {
				c, err := dialFrom(from, dst)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if err := Init(context.Background(), config(false), Options{Backend: b}); err != nil {
					t.Error(err)
				}
				c.SetDeadline(time.Now().Add(patience))
				buf := make([]byte, 2)
				io.WriteString(c, "hi")
				if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hi" {
					t.Errorf("%s: %q, %v", dst, buf, err)
				}
			})
		}
	})
}

func dialFrom(port int, dst string) (net.Conn, error) {
	d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: port},
		Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			})
		}}
	c, err := d.Dial("tcp", dst)
	if err == nil {
		c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

func (n *podNet) echo(ns *meshtest.NS, port int) {
	ns.Do(func() {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			n.t.Error(err)
			return
		}
		n.t.Cleanup(func() { l.Close() })
		ns.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				ns.Go(func() { defer c.Close(); io.Copy(c, c) })
			}
		})
	})
}

// The self-test sees that the rules are there, that they are gone, and that
// they are back.
func TestProbeSeesTheRules(t *testing.T) {
	forEach(t, func(t *testing.T, n *podNet, b netfilter.Backend) {
		for _, l := range n.outbound {
			l.Close() // the probe's acceptor takes their place
		}
		p := NewProbe(ProbeConfig{})
		dial := p.dial
		p.dial = func(ctx context.Context, dst netip.AddrPort) (c net.Conn, err error) {
			n.pod.Do(func() { c, err = dial(ctx, dst) })
			return c, err
		}
		n.pod.Do(func() {
			ls, err := ListenOutbound(context.Background())
			if err != nil {
				t.Error(err)
			}
			for _, l := range ls {
				t.Cleanup(func() { l.Close() })
				n.pod.Go(func() {
					for {
						c, err := l.AcceptTCP()
						if err != nil {
							return
						}
						if dst, err := OriginalDst(c); err != nil || !p.Handle(c, dst) {
							c.Close()
						}
					}
				})
			}
		})
		// A program that listens at the probe port must not count as proof.
		n.listen(n.pod, "0123456789abcdef", redirect.ProbePort)
		check := func(when string, want verdict) {
			t.Helper()
			if s := p.Check(t.Context()); s.OutboundIpv4 != want || s.OutboundIpv6 != want {
				t.Errorf("%s: %v; want %v", when, s, want)
			}
		}
		check("before init", lost)
		n.init(b, config(true))
		check("after init", proven)
		n.pod.Do(func() {
			if err := Clean(context.Background(), nil); err != nil {
				t.Error(err)
			}
		})
		check("after clean", lost)
		n.init(b, config(false))
		check("after init again", proven)
	})
}

// Where loopback has no IPv6, there is no listener for it and no verdict but
// absent.
func TestWithoutIPv6(t *testing.T) {
	meshtest.RequireRoot(t)
	ns := meshtest.NetNS(t)
	p := NewProbe(ProbeConfig{})
	ns.Do(func() {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0); err != nil {
			t.Error(err)
		}
		ls, err := ListenOutbound(context.Background())
		if err != nil || len(ls) != 1 {
			t.Errorf("listeners %v, error %v", ls, err)
		}
		for _, l := range ls {
			l.Close()
		}
		if err := Init(context.Background(), config(true), Options{}); err != nil {
			t.Error(err)
		}
		for _, f := range p.families() {
			c, err := p.dial(context.Background(), f.dst)
			if err == nil {
				c.Close()
			}
			p.judge(f, err)
		}
	})
	if s := p.State(); s.OutboundIpv6 != absent || s.OutboundIpv4 != lost {
		t.Errorf("%v", s)
	}
}

// OriginalDst copies no descriptor and leaves the socket non-blocking.
func TestOriginalDstLeavesTheSocketAlone(t *testing.T) {
	for _, network := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", network)
		if err != nil {
			meshtest.Skip(t, "listen at "+network, err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		tcp := c.(*net.TCPConn)
		before := descriptors(t)
		for range 100 {
			OriginalDst(tcp)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
		raw, err := tcp.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
			if err != nil || flags&unix.O_NONBLOCK == 0 {
				t.Errorf("flags %x, %v: the socket blocks", flags, err)
			}
		})
		c.Close()
		if _, err := OriginalDst(tcp); err == nil {
			t.Error("no error for a closed connection")
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
