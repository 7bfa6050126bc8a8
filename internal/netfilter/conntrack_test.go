package netfilter

import (
	"testing"

	"github.com/mdlayher/netlink"
)

// entry is a tracked connection as the kernel dumps it.
func entry(proto byte, replyPort uint16, status byte) []byte {
	nested := func(attrs ...netlink.Attribute) []byte {
		b, err := netlink.MarshalAttributes(attrs)
		if err != nil {
			panic(err)
		}
		return b
	}
	tuple := func(port uint16) []byte {
		return nested(
			netlink.Attribute{Type: 1 | netlink.Nested, Data: nested(netlink.Attribute{Type: 1, Data: []byte{192, 0, 2, 1}})},
			netlink.Attribute{Type: ctTupleProto | netlink.Nested, Data: nested(
				netlink.Attribute{Type: ctProtoNum, Data: []byte{proto}},
				netlink.Attribute{Type: ctProtoSrc, Data: []byte{byte(port >> 8), byte(port)}},
			)})
	}
	return append([]byte{2, 0, 0, 0}, nested(
		netlink.Attribute{Type: ctTupleOrig | netlink.Nested, Data: tuple(40000)},
		netlink.Attribute{Type: ctTupleReply | netlink.Nested, Data: tuple(replyPort)},
		netlink.Attribute{Type: ctStatus, Data: []byte{0, 0, 0, status}},
	)...)
}

func TestRedirectedEntry(t *testing.T) {
	for name, tc := range map[string]struct {
		msg  []byte
		want bool
	}{
		"to the outbound listener":             {entry(6, 16001, ctDstNAT), true},
		"to the inbound listener":              {entry(6, 16006, ctDstNAT|8), true},
		"dialled there, not redirected":        {entry(6, 16001, 8), false},
		"somebody else's translation":          {entry(6, 8080, ctDstNAT), false},
		"UDP":                                  {entry(17, 16001, ctDstNAT), false},
		"nothing":                              {nil, false},
		"an attribute that ends in the middle": {entry(6, 16001, ctDstNAT)[:30], false},
	} {
		if key, ok := redirectedEntry(tc.msg); ok != tc.want || ok && len(key) == 0 {
			t.Errorf("%s: %v, key %x", name, ok, key)
		}
	}
}

// FuzzRedirectedEntry: whatever the kernel sends, no panic.
func FuzzRedirectedEntry(f *testing.F) {
	f.Add(entry(6, 16001, ctDstNAT))
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, b []byte) { redirectedEntry(b) })
}
