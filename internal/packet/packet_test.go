package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The frames were written by hand from the RFCs' header diagrams.
const (
	ether4   = "020000000001 020000000002 0800"
	ip4TCP   = "45 00 002a 0001 0000 40 06 0000 0af40001 0af40102"
	tcpHello = "9c40 1f90 00000007 00000000 50 18 ffff 0000 0000 6869" // 40000 -> 8080, PSH|ACK, "hi"
	ip6TCP   = "60000000 0016 06 40 fd000000000000000000000000000001 fd000000000000000000000000000002"
	ip6Hop   = "60000000 001e 00 40 fd000000000000000000000000000001 fd000000000000000000000000000002 06 00 0000 00000000"
	ip6Frag  = "60000000 000c 2c 40 fd000000000000000000000000000001 fd000000000000000000000000000002 06 00 0008 00000001 61626364"
	ip4Frag  = "45 00 0018 0001 0001 40 06 0000 0af40001 0af40102 61626364"
)

func TestEthernet(t *testing.T) {
	cases := []struct {
		name, frame string
		want        string // source destination protocol payload
		err         error
	}{
		{"tcp over ipv4", ether4 + ip4TCP + tcpHello, "10.244.0.1:40000 10.244.1.2:8080 6 hi", nil},
		{"ethernet padding is not payload", ether4 + ip4TCP + tcpHello + "00000000", "10.244.0.1:40000 10.244.1.2:8080 6 hi", nil},
		{"tagged", "020000000001 020000000002 8100 0005 0800" + ip4TCP + tcpHello, "10.244.0.1:40000 10.244.1.2:8080 6 hi", nil},
		{"tcp over ipv6", "020000000001 020000000002 86dd" + ip6TCP + tcpHello, "[fd00::1]:40000 [fd00::2]:8080 6 hi", nil},
		{"ipv6 hop-by-hop", "020000000001 020000000002 86dd" + ip6Hop + tcpHello, "[fd00::1]:40000 [fd00::2]:8080 6 hi", nil},
		{"ipv6 later fragment", "020000000001 020000000002 86dd" + ip6Frag, "[fd00::1]:0 [fd00::2]:0 6 abcd", nil},
		{"ipv4 later fragment", ether4 + ip4Frag, "10.244.0.1:0 10.244.1.2:0 6 abcd", nil},
		{"arp", "020000000001 020000000002 0806 0001", "", ErrNotIP},
		{"cut ethernet", "0200", "", ErrShort},
		{"cut ipv4", ether4 + "45 00 002a", "", ErrShort},
		{"ipv4 claims more than there is", ether4 + ip4TCP + "9c40", "", ErrShort},
		{"tcp header of 21 bytes", ether4 + "45 00 0029 0001 0000 40 06 0000 0af40001 0af40102" + "9c40 1f90 00000007 00000000 60 18 ffff 0000 0000 68", "", ErrShort},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, err := Ethernet(unhex(t, c.frame))
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err != nil {
				return
			}
			got := p.Source.String() + " " + p.Destination.String() + " " + string('0'+rune(p.Protocol)) + " " + string(p.Payload)
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	p, err := Ethernet(unhex(t, ether4+ip4TCP+tcpHello))
	if err != nil || p.Flags != PSH|ACK || p.Sequence != 7 {
		t.Errorf("flags %x, sequence %d, error %v", p.Flags, p.Sequence, err)
	}
}

// FuzzEthernet: no input reads past its end, and a payload is always part of
// the input.
func FuzzEthernet(f *testing.F) {
	for _, s := range []string{ether4 + ip4TCP + tcpHello, "020000000001 020000000002 86dd" + ip6Hop + tcpHello, "020000000001 020000000002 86dd" + ip6Frag} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Ethernet(b)
		if err == nil && len(p.Payload) > len(b) {
			t.Errorf("payload of %d bytes in a frame of %d", len(p.Payload), len(b))
		}
	})
}

// FuzzIP starts inside the IP header, where the fuzzer gets deeper.
func FuzzIP(f *testing.F) {
	f.Add(unhex(f, ip4TCP+tcpHello))
	f.Add(unhex(f, ip6Hop+tcpHello))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := IP(b); err == nil && p.Protocol == TCP && !p.Fragment && p.Source.Port() != 0 {
			if !bytes.Contains(b, binary.BigEndian.AppendUint16(nil, p.Source.Port())) {
				t.Error("source port is not in the packet")
			}
		}
	})
}
