package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/redirect"
)

// Numbers of ctnetlink (linux/netfilter/nfnetlink_conntrack.h and
// nf_conntrack_common.h) that x/sys does not have.
const (
	ctGet        = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | 1)
	ctDelete     = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | 2)
	ctTupleOrig  = 1
	ctTupleReply = 2
	ctStatus     = 3
	ctZone       = 18
	ctTupleProto = 2 // in a tuple
	ctProtoNum   = 1 // in a tuple's protocol
	ctProtoSrc   = 2
	ctDstNAT     = 1 << 5 // in the status: the destination is translated
)

// forgetRedirected deletes the kernel's memory of connections that were
// redirected to us. Without rules the kernel may stop tracking, yet keep these
// entries for minutes; when rules come again, an entry would be applied to
// whatever new connection has the same ports by then, and tear it.
func forgetRedirected() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer conn.Close()
	if err := conn.SetReadBuffer(socketBuffer); err != nil {
		return fmt.Errorf("size the netlink buffer: %w", err)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		entries, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: ctGet, Flags: netlink.Request | netlink.Dump},
			Data:   []byte{family, unix.NFNETLINK_V0, 0, 0},
		})
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("list tracked connections: %w", err)
		}
		if err != nil {
			continue // no tracking in this kernel: nothing to forget
		}
		for _, e := range entries {
			key, ok := redirectedEntry(e.Data)
			if !ok {
				continue
			}
			_, err := conn.Execute(netlink.Message{
				Header: netlink.Header{Type: ctDelete, Flags: netlink.Request | netlink.Acknowledge},
				Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, key...),
			})
			if err != nil && !errors.Is(err, unix.ENOENT) { // it ended by itself
				return fmt.Errorf("forget a redirected connection: %w", err)
			}
		}
	}
	return nil
}

// redirectedEntry tells whether an entry is of a TCP connection whose
// destination was changed to one of our listeners, and gives the attributes
// that name the entry to the kernel.
func redirectedEntry(msg []byte) (key []byte, ok bool) {
	const genHeader = 4 // of every nfnetlink message
	if len(msg) < genHeader {
		return nil, false
	}
	attrs, err := netlink.UnmarshalAttributes(msg[genHeader:])
	if err != nil {
		return nil, false
	}
	var ours, translated bool
	var name []netlink.Attribute
	for _, a := range attrs {
		switch a.Type &^ (netlink.Nested | netlink.NetByteOrder) {
		case ctTupleOrig, ctZone:
			name = append(name, a)
		case ctTupleReply:
			ours = fromOurListener(a.Data)
		case ctStatus:
			translated = len(a.Data) == 4 && binary.BigEndian.Uint32(a.Data)&ctDstNAT != 0
		}
	}
	if !ours || !translated {
		return nil, false
	}
	key, err = netlink.MarshalAttributes(name)
	return key, err == nil
}

// fromOurListener tells whether a reply comes from one of our ports.
func fromOurListener(tuple []byte) bool {
	attrs, err := netlink.UnmarshalAttributes(tuple)
	if err != nil {
		return false
	}
	for _, a := range attrs {
		if a.Type&^netlink.Nested != ctTupleProto {
			continue
		}
		proto, err := netlink.UnmarshalAttributes(a.Data)
		if err != nil {
			return false
		}
		var tcp, port bool
		for _, p := range proto {
			switch {
			case p.Type == ctProtoNum && len(p.Data) == 1:
				tcp = p.Data[0] == unix.IPPROTO_TCP
			case p.Type == ctProtoSrc && len(p.Data) == 2:
				n := binary.BigEndian.Uint16(p.Data)
				port = n == redirect.OutboundPort || n == redirect.InboundPort
			}
		}
		return tcp && port
	}
	return false
}
