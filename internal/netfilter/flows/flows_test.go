package flows

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// nested gives the bytes of attributes.
func nested(attrs ...netlink.Attribute) []byte {
	b, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		panic(err)
	}
	return b
}

func tupleBytes(proto byte, src, dst netip.AddrPort) []byte {
	s, d := uint16(ipv4Src), uint16(ipv4Dst)
	if src.Addr().Is6() {
		s, d = ipv6Src, ipv6Dst
	}
	return nested(
		netlink.Attribute{Type: tupleIP | netlink.Nested, Data: nested(netlink.Attribute{Type: s, Data: src.Addr().AsSlice()}, netlink.Attribute{Type: d, Data: dst.Addr().AsSlice()})},
		netlink.Attribute{Type: tupleProto | netlink.Nested, Data: nested(
			netlink.Attribute{Type: protoNum, Data: []byte{proto}},
			netlink.Attribute{Type: protoSrc, Data: binary.BigEndian.AppendUint16(nil, src.Port())},
			netlink.Attribute{Type: protoDst, Data: binary.BigEndian.AppendUint16(nil, dst.Port())})})
}

// message is a tracked flow as the kernel dumps it.
func message(proto byte, client, to, from netip.AddrPort) []byte {
	return nested(
		netlink.Attribute{Type: tupleOrig | netlink.Nested, Data: tupleBytes(proto, client, to)},
		netlink.Attribute{Type: tupleReply | netlink.Nested, Data: tupleBytes(proto, from, client)},
		netlink.Attribute{Type: 3, Data: []byte{0, 0, 0, 0x28}},
		netlink.Attribute{Type: ctID, Data: []byte{1, 2, 3, 4}},
	)
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestParse(t *testing.T) {
	client, vip, ep := ap("10.244.1.9:40000"), ap("10.96.0.10:53"), ap("10.244.2.3:5353")
	whole := message(unix.IPPROTO_UDP, client, vip, ep)
	f, key, ok := parse(whole)
	if !ok || f != (Flow{To: vip, From: ep}) {
		t.Errorf("%+v, %v", f, ok)
	}
	// The key names the flow by its original tuple and its number, no more.
	want := append(nested(netlink.Attribute{Type: tupleOrig | netlink.Nested, Data: tupleBytes(unix.IPPROTO_UDP, client, vip)}),
		nested(netlink.Attribute{Type: ctID, Data: []byte{1, 2, 3, 4}})...)
	if string(key) != string(want) {
		t.Errorf("key %x, want %x", key, want)
	}
	f, _, ok = parse(message(unix.IPPROTO_UDP, ap("[fd00::9]:1"), ap("[fd96::1]:53"), ap("[fd00::3]:5353")))
	if !ok || f.From != ap("[fd00::3]:5353") {
		t.Errorf("IPv6: %+v, %v", f, ok)
	}
	for name, b := range map[string][]byte{"TCP": message(unix.IPPROTO_TCP, client, vip, ep), "nothing": nil, "cut": whole[:40]} {
		if _, _, ok := parse(b); ok {
			t.Errorf("%s: taken", name)
		}
	}
}

// FuzzMessages: whatever the kernel sends, no panic and an end.
func FuzzMessages(f *testing.F) {
	head := binary.NativeEndian.AppendUint32(nil, 20)
	f.Add(append(head, make([]byte, 16)...))
	f.Add(message(unix.IPPROTO_UDP, ap("10.0.0.1:1"), ap("10.0.0.2:2"), ap("10.0.0.3:3")))
	f.Fuzz(func(_ *testing.T, b []byte) {
		parse(b)
		_, _ = messages(b, func(m []byte) { parse(m) })
	})
}

// Only what is said to be stale goes: flows of loopback in a namespace, tracked
// because a rule of NAT is there.
func TestSweep(t *testing.T) {
	for name, most := range map[string]int{"in one round": maxBatch, "in rounds of one": 1, "in rounds of two": 2} {
		t.Run(name, func(t *testing.T) { sweepFlows(t, most) })
	}
}

func sweepFlows(t *testing.T, most int) {
	meshtest.NetNS(t).Do(func() {
		if err := track(); err != nil {
			t.Error(err)
			return
		}
		var to []netip.AddrPort
		for _, network := range []string{"udp4", "udp4", "udp6"} {
			at := map[string]string{"udp4": "127.0.0.1:0", "udp6": "[::1]:0"}[network]
			l, err := net.ListenPacket(network, at)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			c, err := net.Dial(network, l.LocalAddr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if _, err := c.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			to = append(to, ap(l.LocalAddr().String()))
		}
		for i, want := range []Stats{{Looked: 3, Deleted: 2}, {Looked: 1}} {
			st, err := sweep(func(f Flow) bool { return f.To == to[0] || f.To == to[2] }, most)
			if err != nil || st != want {
				t.Errorf("sweep %d: %+v, %v; want %+v", i, st, err, want)
			}
		}
	})
}
