package observe

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/packet"
)

func record(kind byte, body string) []byte {
	b := []byte{kind, 3, 3, 0, 0}
	binary.BigEndian.PutUint16(b[3:], uint16(len(body)))
	return append(b, body...)
}

var (
	client = netip.MustParseAddrPort("10.244.0.5:40000")
	server = netip.MustParseAddrPort("10.244.1.6:8080")
)

// play sends the segments, each with its offset in the stream, from client to
// server after a SYN.
func play(o *observer, segments ...segmentAt) {
	o.segment(packet.Packet{Source: client, Destination: server, Flags: packet.SYN, Sequence: 99}, true)
	for _, s := range segments {
		o.segment(packet.Packet{Source: client, Destination: server, Flags: packet.ACK, Sequence: 100 + uint32(s.at), Payload: s.b}, true)
	}
	o.finish()
}

type segmentAt struct {
	at int
	b  []byte
}

func TestObserver(t *testing.T) {
	hello := append(record(22, "hello heddle/h1"), record(23, "secret bytes, sealed")...)
	inPieces := []segmentAt{{0, hello[:3]}, {3, hello[3:21]}, {21, hello[21:]}}
	cases := []struct {
		name                       string
		segments                   []segmentAt
		tls, plain, mesh, secretAt int
	}{
		{"records in pieces", inPieces, 3, 0, 1, 0},
		{"out of order", []segmentAt{inPieces[0], inPieces[2], inPieces[1]}, 3, 0, 1, 0},
		{"sent twice", []segmentAt{inPieces[0], inPieces[0], inPieces[1], inPieces[2]}, 3, 0, 1, 0},
		{"another application's TLS is not ours", []segmentAt{{0, record(22, "hello h2")}}, 1, 0, 0, 0},
		{"plaintext", []segmentAt{{0, []byte("GET / HTTP/1.1\r\n")}}, 0, 1, 0, 0},
		{"plaintext after TLS", []segmentAt{{0, hello}, {len(hello), []byte("GET / the-word HTTP/1.1")}}, 1, 1, 0, 1},
		{"a record too large is not TLS", []segmentAt{{0, []byte{23, 3, 3, 0xff, 0xff, 1}}}, 0, 1, 0, 0},
		{"a gap that never fills stays unproven", []segmentAt{{7, hello[7:]}}, 0, 1, 0, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := newObserver("the-word")
			play(o, c.segments...)
			if o.TLSPackets != c.tls || o.PlainPackets != c.plain || o.MeshStreams != c.mesh || o.Secrets != c.secretAt {
				t.Errorf("tls %d plain %d mesh %d secrets %d, want %d %d %d %d", o.TLSPackets, o.PlainPackets, o.MeshStreams, o.Secrets, c.tls, c.plain, c.mesh, c.secretAt)
			}
		})
	}
}

func TestObserverStreamWithoutItsStartIsUnproven(t *testing.T) {
	o := newObserver("the-word")
	o.segment(packet.Packet{Source: client, Destination: server, Flags: packet.ACK, Sequence: 5, Payload: record(23, "x")}, true)
	if o.PlainPackets != 1 || o.Midway != 1 {
		t.Errorf("plain %d, midway %d", o.PlainPackets, o.Midway)
	}
}

// What is outside the window is followed, not counted.
func TestWindow(t *testing.T) {
	o := newObserver("the-word")
	hello, more := record(22, "hello heddle/h1"), record(23, "sealed the-word")
	send := func(at int, b []byte, counts bool) {
		o.segment(packet.Packet{Source: client, Destination: server, Flags: packet.ACK, Sequence: 100 + uint32(at), Payload: b}, counts)
	}
	o.segment(packet.Packet{Source: client, Destination: server, Flags: packet.SYN, Sequence: 99}, false)
	send(0, hello, false)
	send(len(hello), more, true)
	o.segment(packet.Packet{Source: server, Destination: client, Flags: packet.ACK, Sequence: 5, Payload: []byte("HTTP/1.1 the-word")}, false)
	// To a server that is gone, sent again within the window.
	o.segment(packet.Packet{Source: server, Destination: client, Flags: packet.ACK, Sequence: 5, Payload: []byte("HTTP/1.1 the-word")}, true)
	o.finish()
	if o.TLSPackets != 1 || o.PlainPackets != 0 || o.Midway != 0 || o.MeshStreams != 1 || o.Streams != 1 || o.Secrets != 1 {
		t.Errorf("%+v", o.Tally)
	}
	from := time.Unix(100, 0)
	w := Window{From: from, To: from.Add(time.Second), Pods: []netip.Addr{client.Addr()}}
	p := packet.Packet{Source: server, Destination: client}
	if !w.has(from, p) || w.has(from.Add(-1), p) || w.has(w.To, p) || w.has(from, packet.Packet{Source: server, Destination: server}) || !(Window{}).has(from, p) {
		t.Error("the window's edges")
	}
}

// Any cutting of the same bytes gives the same verdict.
func FuzzObserverSegmentation(f *testing.F) {
	f.Add([]byte{1, 5, 9}, []byte("plain text"))
	f.Add([]byte{0, 0, 200}, record(23, "sealed"))
	f.Fuzz(func(t *testing.T, cuts, tail []byte) {
		whole := append(record(22, "heddle/tcp"), tail...)
		one, many := newObserver("s"), newObserver("s")
		play(one, segmentAt{0, whole})
		var pieces []segmentAt
		at := 0
		for _, c := range cuts {
			if n := min(int(c), len(whole)-at); n > 0 {
				pieces = append(pieces, segmentAt{at, whole[at : at+n]})
				at += n
			}
		}
		if at < len(whole) {
			pieces = append(pieces, segmentAt{at, whole[at:]})
		}
		play(many, pieces...)
		d := direction{client, server}
		if one.streams[d].plain != many.streams[d].plain {
			t.Errorf("whole: plain=%v, in %d pieces: plain=%v", one.streams[d].plain, len(pieces), many.streams[d].plain)
		}
		if !bytes.Equal(one.streams[d].head, many.streams[d].head) && !one.streams[d].plain {
			t.Error("the record header left over differs")
		}
	})
}
