// Package observe reads captures of the nodes' packets and counts, byte by
// byte, how much of the traffic between pods lay inside mesh TLS. It neither
// captures nor judges: the demo and the tests on a cluster say what must be.
package observe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/heddle-mesh/heddle/internal/packet"
)

// Capture is what one node's bridge, or all its interfaces, showed.
type Capture struct {
	File     string         // pcap
	PodCIDRs []netip.Prefix // of the node; its own address there is the first
}

// Tally is what captures show of the traffic between pods.
type Tally struct {
	Files                   []string
	Frames                  int // of any kind
	TLSPackets, TLSBytes    int // with payload, inside mesh TLS
	PlainPackets            int // with payload, outside it
	PlainBytes              int
	Secrets                 int // packets that show the demo's secret word
	Streams, MeshStreams    int // directions of TCP connections; ours by ALPN or its answer
	PlainFrom               map[string]int
	Midway                  int // streams whose start is not in the capture
	FirstPlain, FirstSecret string
}

// Share is the part of the pods' payload packets that went over mesh TLS.
func (t *Tally) Share() float64 {
	if t.TLSPackets+t.PlainPackets == 0 {
		return 0
	}
	return float64(t.TLSPackets) / float64(t.TLSPackets+t.PlainPackets)
}

// Window is the part of the traffic that is counted. The rest is followed all
// the same: what a connection is shows at its start. Bytes that are sent again
// belong to when they were sent first.
type Window struct {
	From, To time.Time    // zero: from the start, to the end
	Pods     []netip.Addr // one end at least is among them; nil: any pods
}

// Count reads the captures of all nodes. Secret is a word that nobody may see
// on the wire. Pods are all addresses in the nodes' ranges but the nodes' own:
// those are probes. A capture that ends inside a record counts as far as it goes.
func Count(secret string, w Window, all []Capture) (*Tally, error) {
	o := newObserver(secret)
	o.window = w
	var pods []netip.Prefix
	gateways := map[netip.Addr]bool{}
	for _, c := range all {
		pods = append(pods, c.PodCIDRs...)
		for _, p := range c.PodCIDRs {
			gateways[p.Masked().Addr().Next()] = true
		}
	}
	isPod := func(a netip.Addr) bool { return within(pods, a) && !gateways[a] }
	for _, c := range all {
		if err := o.read(c.File, c.PodCIDRs, isPod); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
	}
	o.finish()
	return &o.Tally, nil
}

// has says whether a packet counts.
func (w Window) has(at time.Time, p packet.Packet) bool {
	return (w.From.IsZero() || !at.Before(w.From)) && (w.To.IsZero() || at.Before(w.To)) &&
		(w.Pods == nil || slices.Contains(w.Pods, p.Source.Addr()) || slices.Contains(w.Pods, p.Destination.Addr()))
}

// observer reads the captures of all nodes' bridges. A packet that crosses
// nodes is in two files: it is counted in the file of its source's node.
type observer struct {
	Tally
	window  Window
	secret  []byte
	streams map[direction]*stream
}

type direction struct{ from, to netip.AddrPort }

// stream follows one direction of a TCP connection and checks that every byte
// of it lies inside a TLS record (RFC 8446 §5.1).
type stream struct {
	next    uint32 // sequence number expected
	need    int    // bytes of the present record still to come
	head    []byte // part of a record's header
	early   map[uint32][]byte
	plain   bool
	midway  bool   // its start is not in the capture
	opening []byte // the first bytes, to find the ALPN
	counts  bool   // some of it lies in the window
}

const (
	openingLen = 2048        // a ClientHello with hybrid key share fits
	maxRecord  = 16384 + 256 // RFC 8446 §5.2
	maxEarly   = 256         // out-of-order segments kept for one stream
	alpnPrefix = "heddle/"
	recordHead = 5
	typeFirst  = 20 // change_cipher_spec
	typeLast   = 23 // application_data
)

func newObserver(secret string) *observer {
	o := &observer{secret: []byte(secret), streams: map[direction]*stream{}}
	o.PlainFrom = map[string]int{}
	return o
}

// read takes in the capture of one node's bridge. isPod says whether an
// address is a pod's; here are the node's own pod ranges.
func (o *observer) read(file string, here []netip.Prefix, isPod func(netip.Addr) bool) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	o.Files = append(o.Files, file)
	err = packet.ReadCapture(f, func(at time.Time, frame []byte) {
		o.Frames++
		p, err := packet.Ethernet(frame)
		if err != nil || p.Protocol != packet.TCP || !isPod(p.Source.Addr()) || !isPod(p.Destination.Addr()) || !within(here, p.Source.Addr()) {
			return
		}
		o.segment(p, o.window.has(at, p))
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func within(ps []netip.Prefix, a netip.Addr) bool {
	for _, p := range ps {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func (o *observer) segment(p packet.Packet, counts bool) {
	key := direction{p.Source, p.Destination}
	if p.Flags&packet.SYN != 0 {
		if s := o.streams[key]; s == nil || s.next != p.Sequence+1 { // not a copy of the same SYN
			o.streams[key] = &stream{next: p.Sequence + 1}
		}
		return
	}
	if len(p.Payload) == 0 {
		return
	}
	s := o.streams[key]
	if s == nil {
		s = &stream{plain: true, midway: true, next: p.Sequence} // unproven counts as plain
		o.streams[key] = s
	}
	if !s.take(p.Sequence, p.Payload) {
		return // sent again, or the same packet on its way out of the bridge
	}
	if !counts {
		return
	}
	if bytes.Contains(p.Payload, o.secret) {
		if o.Secrets++; o.FirstSecret == "" {
			o.FirstSecret = fmt.Sprintf("%v > %v", p.Source, p.Destination)
		}
	}
	if !s.counts {
		s.counts = true
		if o.Streams++; s.midway {
			o.Midway++
		}
	}
	if s.plain {
		o.PlainPackets, o.PlainBytes = o.PlainPackets+1, o.PlainBytes+len(p.Payload)
		o.PlainFrom[fmt.Sprintf("%v > %v", p.Source.Addr(), p.Destination)]++
		if o.FirstPlain == "" {
			o.FirstPlain = fmt.Sprintf("%v > %v: %.60q", p.Source, p.Destination, p.Payload)
		}
		return
	}
	o.TLSPackets, o.TLSBytes = o.TLSPackets+1, o.TLSBytes+len(p.Payload)
}

// finish counts the connections that named one of our protocols by ALPN: that
// TLS is the mesh's, with certificates on both sides, and not an application's.
func (o *observer) finish() {
	for key, s := range o.streams {
		if !s.counts {
			continue
		}
		if n := len(s.early); n > 0 { // what a gap hides was never checked
			s.plain = true
			o.TLSPackets, o.PlainPackets = o.TLSPackets-n, o.PlainPackets+n
		}
		back := o.streams[direction{key.to, key.from}]
		if !s.plain && (bytes.Contains(s.opening, []byte(alpnPrefix)) || back != nil && bytes.Contains(back.opening, []byte(alpnPrefix))) {
			o.MeshStreams++
		}
	}
}

// take adds a segment and reads on as far as the bytes are in order. It says
// whether the segment brought anything new.
func (s *stream) take(seq uint32, b []byte) bool {
	if ahead := int32(seq - s.next); ahead > 0 {
		if s.early == nil {
			s.early = map[uint32][]byte{}
		}
		if len(s.early) == maxEarly {
			s.plain = true // cannot be followed: unproven
			return true
		}
		if s.early[seq] != nil {
			return false
		}
		s.early[seq] = bytes.Clone(b)
		return true
	} else if -int(ahead) >= len(b) {
		return false
	} else {
		b = b[-ahead:]
	}
	if !s.plain {
		s.records(b)
	}
	s.next += uint32(len(b))
	for at, held := range s.early {
		if int32(at-s.next) <= 0 {
			delete(s.early, at)
			s.take(at, held)
			break
		}
	}
	return true
}

func (s *stream) records(b []byte) {
	if room := openingLen - len(s.opening); room > 0 {
		s.opening = append(s.opening, b[:min(room, len(b))]...)
	}
	for len(b) > 0 {
		if s.need > 0 {
			n := min(s.need, len(b))
			s.need -= n
			b = b[n:]
			continue
		}
		n := min(recordHead-len(s.head), len(b))
		s.head = append(s.head, b[:n]...)
		b = b[n:]
		if len(s.head) < recordHead {
			return
		}
		size := int(binary.BigEndian.Uint16(s.head[3:]))
		if s.head[0] < typeFirst || s.head[0] > typeLast || s.head[1] != 3 || s.head[2] > 4 || size > maxRecord {
			s.plain = true
			return
		}
		s.need, s.head = size, s.head[:0]
	}
}
