// Package packet reads the headers of one captured packet: Ethernet (with
// VLAN tags), IPv4, IPv6 with its extension headers, TCP and UDP. It is pure,
// copies nothing and never reads past what the packet holds. It does not
// reassemble. The demo's and the bench's capture readers call it; the node
// agent's first-packet decisions will.
package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Packet is what the headers said. Payload aliases the input.
type Packet struct {
	Source, Destination netip.AddrPort
	Protocol            uint8 // IANA protocol number
	Flags               uint8 // TCP flags (RFC 9293 §3.1)
	Sequence            uint32
	Fragment            bool // not the first: ports are zero
	Payload             []byte
}

// Protocol numbers (IANA).
const (
	ICMP   = 1
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
)

// TCP flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// ErrNotIP says that a frame carries something else than IP, such as ARP.
var ErrNotIP = errors.New("not an IP packet")

// ErrShort says that a header is cut off or claims more than there is.
var ErrShort = errors.New("header cut off")

const (
	ethernetLen  = 14
	vlanLen      = 4
	typeIPv4     = 0x0800
	typeIPv6     = 0x86dd
	typeVLAN     = 0x8100
	typeQinQ     = 0x88a8
	maxVLANs     = 2 // IEEE 802.1ad stacks two
	ipv6Len      = 40
	maxIPv6Exts  = 8 // more is an attack, not traffic (RFC 8504 §5.3)
	extHopByHop  = 0
	extRouting   = 43
	extFragment  = 44
	extAuth      = 51
	extDestOpts  = 60
	udpHeaderLen = 8
	tcpHeaderLen = 20
)

// Ethernet reads a frame.
func Ethernet(b []byte) (Packet, error) {
	if len(b) < ethernetLen {
		return Packet{}, fmt.Errorf("ethernet: %w", ErrShort)
	}
	kind, rest := binary.BigEndian.Uint16(b[12:]), b[ethernetLen:]
	for range maxVLANs {
		if kind != typeVLAN && kind != typeQinQ {
			break
		}
		if len(rest) < vlanLen {
			return Packet{}, fmt.Errorf("vlan tag: %w", ErrShort)
		}
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[vlanLen:]
	}
	if kind != typeIPv4 && kind != typeIPv6 {
		return Packet{}, ErrNotIP
	}
	return IP(rest)
}

// IP reads a packet that starts with its IPv4 or IPv6 header. Bytes after the
// length that the header gives (Ethernet padding) are left out.
func IP(b []byte) (Packet, error) {
	if len(b) == 0 {
		return Packet{}, fmt.Errorf("ip: %w", ErrShort)
	}
	switch b[0] >> 4 {
	case 4:
		return ipv4(b)
	case 6:
		return ipv6(b)
	}
	return Packet{}, ErrNotIP
}

func ipv4(b []byte) (Packet, error) {
	if len(b) < 20 {
		return Packet{}, fmt.Errorf("ipv4: %w", ErrShort)
	}
	head, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < 20 || total < head || len(b) < total {
		return Packet{}, fmt.Errorf("ipv4: %w", ErrShort)
	}
	p := Packet{Protocol: b[9]}
	from, to := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		p.Fragment = true
	}
	return transport(p, from, to, b[head:total])
}

func ipv6(b []byte) (Packet, error) {
	if len(b) < ipv6Len {
		return Packet{}, fmt.Errorf("ipv6: %w", ErrShort)
	}
	total := ipv6Len + int(binary.BigEndian.Uint16(b[4:]))
	if len(b) < total {
		return Packet{}, fmt.Errorf("ipv6: %w", ErrShort)
	}
	p := Packet{Protocol: b[6]}
	from, to := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	rest := b[ipv6Len:total]
	for range maxIPv6Exts {
		var size int
		switch p.Protocol {
		case extHopByHop, extRouting, extDestOpts:
			if len(rest) < 8 {
				return Packet{}, fmt.Errorf("ipv6 extension: %w", ErrShort)
			}
			size = (int(rest[1]) + 1) * 8
		case extAuth:
			if len(rest) < 8 {
				return Packet{}, fmt.Errorf("ipv6 extension: %w", ErrShort)
			}
			size = (int(rest[1]) + 2) * 4 // RFC 4302 §2.2 counts otherwise
		case extFragment:
			if len(rest) < 8 {
				return Packet{}, fmt.Errorf("ipv6 extension: %w", ErrShort)
			}
			size = 8
			p.Fragment = p.Fragment || binary.BigEndian.Uint16(rest[2:])&^7 != 0
		default:
			return transport(p, from, to, rest)
		}
		if len(rest) < size {
			return Packet{}, fmt.Errorf("ipv6 extension: %w", ErrShort)
		}
		p.Protocol, rest = rest[0], rest[size:]
		if p.Fragment {
			return transport(p, from, to, rest)
		}
	}
	return Packet{}, fmt.Errorf("ipv6: more than %d extension headers: %w", maxIPv6Exts, ErrShort)
}

func transport(p Packet, from, to netip.Addr, b []byte) (Packet, error) {
	var sport, dport uint16
	p.Payload = b
	switch {
	case p.Fragment:
	case p.Protocol == TCP:
		if len(b) < tcpHeaderLen {
			return Packet{}, fmt.Errorf("tcp: %w", ErrShort)
		}
		head := int(b[12]>>4) * 4
		if head < tcpHeaderLen || len(b) < head {
			return Packet{}, fmt.Errorf("tcp: %w", ErrShort)
		}
		sport, dport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		p.Sequence, p.Flags, p.Payload = binary.BigEndian.Uint32(b[4:]), b[13], b[head:]
	case p.Protocol == UDP:
		if len(b) < udpHeaderLen {
			return Packet{}, fmt.Errorf("udp: %w", ErrShort)
		}
		sport, dport, p.Payload = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), b[udpHeaderLen:]
	}
	p.Source, p.Destination = netip.AddrPortFrom(from, sport), netip.AddrPortFrom(to, dport)
	return p, nil
}
