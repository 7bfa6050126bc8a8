// Package flows reads the kernel's table of tracked UDP flows and deletes
// single ones. A UDP flow has no end: as long as its client sends, it stays
// bound to the endpoint that its first packet was given, though that is gone.
// It deletes by exact tuple and only what its caller says (controlplane/node
// does); TCP flows it never touches.
package flows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Flow is one tracked UDP flow.
type Flow struct {
	To   netip.AddrPort // where its client sends to
	From netip.AddrPort // who answers: the endpoint, or To itself if it was not translated
}

// Numbers of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	tupleOrig  = 1
	tupleReply = 2
	ctID       = 12
	ctZone     = 18

	tupleIP    = 1 // in a tuple
	tupleProto = 2
	ipv4Src    = 1 // in a tuple's addresses
	ipv4Dst    = 2
	ipv6Src    = 3
	ipv6Dst    = 4
	protoNum   = 1 // in a tuple's protocol
	protoSrc   = 2
	protoDst   = 3
)

const (
	nlHeader = 16       // bytes of a netlink message's header
	nfHeader = 4        // bytes that follow it in an nfnetlink message
	readSize = 64 << 10 // the kernel fills at most this much per read of a dump
	maxBatch = 100_000  // deletions of one round, which bounds memory: some 100 bytes each
)

// Stats of one Sweep.
type Stats struct{ Looked, Deleted int }

// Sweep goes through all tracked UDP flows of both families and deletes those
// that stale says are. The dump is not one moment's: flows that come and go
// meanwhile may be missed.
func Sweep(stale func(Flow) bool) (Stats, error) { return sweep(stale, maxBatch) }

// sweep makes rounds of at most so many deletions, until one finds fewer.
func sweep(stale func(Flow) bool, most int) (Stats, error) {
	var st Stats
	for {
		doomed, looked, err := list(stale, most)
		st.Looked = max(st.Looked, looked)
		if err != nil || len(doomed) == 0 {
			return st, err
		}
		deleted, err := remove(doomed)
		st.Deleted += deleted
		// Nothing deleted: others were quicker; to go on could have no end.
		if err != nil || len(doomed) < most || deleted == 0 {
			return st, err
		}
	}
}

// list finds what is to be deleted, at most so many.
func list(stale func(Flow) bool, most int) (doomed []entry, looked int, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err := dump(family, func(msg []byte) {
			f, key, ok := parse(msg)
			if !ok {
				return
			}
			looked++
			if len(doomed) < most && stale(f) {
				doomed = append(doomed, entry{family, key})
			}
		})
		if err != nil {
			return nil, looked, fmt.Errorf("list tracked flows: %w", err)
		}
	}
	return doomed, looked, nil
}

func remove(doomed []entry) (deleted int, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("open netlink: %w", err)
	}
	defer conn.Close()
	for _, e := range doomed {
		_, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: ctDelete, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append([]byte{e.family, unix.NFNETLINK_V0, 0, 0}, e.key...),
		})
		if errors.Is(err, unix.ENOENT) {
			continue // it ended by itself
		}
		if err != nil {
			return deleted, fmt.Errorf("delete a tracked flow: %w", err)
		}
		deleted++
	}
	return deleted, nil
}

// entry is what names a flow to the kernel.
type entry struct {
	family byte
	key    []byte
}

// dump reads the table of a family, part by part, so that a table of millions
// does not have to fit into our memory.
func dump(family byte, each func(msg []byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer unix.Close(fd)
	// The kernel answers while we read; this only bounds a kernel that does not.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		return fmt.Errorf("bound reading: %w", err)
	}
	req := make([]byte, nlHeader+nfHeader)
	binary.NativeEndian.PutUint32(req, uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], ctGet)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	req[nlHeader] = family
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	buf := make([]byte, readSize)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if done, err := messages(buf[:n], each); done || err != nil {
			return err
		}
	}
}

// messages takes one read's messages apart.
func messages(b []byte, each func(msg []byte)) (done bool, err error) {
	for len(b) >= nlHeader {
		n := int(binary.NativeEndian.Uint32(b))
		if n < nlHeader || n > len(b) {
			return true, errors.New("malformed message")
		}
		body := b[nlHeader:n]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return true, errors.New("malformed error")
			}
			if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
				return true, unix.Errno(-code)
			}
			return true, nil
		default:
			if len(body) > nfHeader {
				each(body[nfHeader:])
			}
		}
		b = b[min(align(n), len(b)):]
	}
	return false, nil
}

func align(n int) int { return (n + 3) &^ 3 }

// attributes calls f for each attribute; what does not parse ends it.
func attributes(b []byte, f func(kind uint16, data, whole []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		end := min(align(n), len(b))
		f(binary.NativeEndian.Uint16(b[2:])&^uint16(netlink.Nested|netlink.NetByteOrder), b[4:n], b[:end])
		b = b[end:]
	}
}

// tuple is one direction of a flow.
type tuple struct {
	src, dst         netip.Addr
	srcPort, dstPort uint16
	udp              bool
}

// parse reads a UDP flow, and the attributes that name exactly it.
func parse(msg []byte) (f Flow, key []byte, ok bool) {
	var orig, reply tuple
	attributes(msg, func(kind uint16, data, whole []byte) {
		switch kind {
		case tupleOrig:
			orig = parseTuple(data)
			key = append(key, whole...)
		case tupleReply:
			reply = parseTuple(data)
		case ctID, ctZone:
			key = append(key, whole...)
		}
	})
	if !orig.udp || !reply.udp || !orig.dst.IsValid() || !reply.src.IsValid() {
		return Flow{}, nil, false
	}
	return Flow{To: netip.AddrPortFrom(orig.dst, orig.dstPort), From: netip.AddrPortFrom(reply.src, reply.srcPort)}, key, true
}

func parseTuple(b []byte) (t tuple) {
	attributes(b, func(kind uint16, data, _ []byte) {
		switch kind {
		case tupleIP:
			attributes(data, func(kind uint16, data, _ []byte) {
				a, _ := netip.AddrFromSlice(data)
				switch kind {
				case ipv4Src, ipv6Src:
					t.src = a
				case ipv4Dst, ipv6Dst:
					t.dst = a
				}
			})
		case tupleProto:
			attributes(data, func(kind uint16, data, _ []byte) {
				switch {
				case kind == protoNum && len(data) == 1:
					t.udp = data[0] == unix.IPPROTO_UDP
				case kind == protoSrc && len(data) == 2:
					t.srcPort = binary.BigEndian.Uint16(data)
				case kind == protoDst && len(data) == 2:
					t.dstPort = binary.BigEndian.Uint16(data)
				}
			})
		}
	})
	return t
}
