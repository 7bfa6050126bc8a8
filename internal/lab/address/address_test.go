package address

import (
	"errors"
	"net/netip"
	"testing"
)

func TestRangeEdges(t *testing.T) {
	for _, c := range []struct {
		prefix      string
		reserved    []string
		want        []string
		first, last string
		count       int
	}{
		{prefix: "10.0.0.0/30", want: []string{"10.0.0.1", "10.0.0.2"}, count: 2},
		{prefix: "10.0.0.0/29", reserved: []string{"10.0.0.1"}, count: 5},
		{prefix: "fd00::/126", want: []string{"fd00::1", "fd00::2", "fd00::3"}, count: 3},
		{prefix: "10.244.1.0/24", reserved: []string{"10.244.1.1"}, count: 253},
		{prefix: "10.0.0.0/32", count: 0},
	} {
		t.Run(c.prefix, func(t *testing.T) {
			var reserved []netip.Addr
			for _, r := range c.reserved {
				reserved = append(reserved, netip.MustParseAddr(r))
			}
			p := NewPool(netip.MustParsePrefix(c.prefix), reserved...)
			seen := map[netip.Addr]bool{}
			var got []string
			for {
				a, err := p.Next(string(rune(len(got))))
				if err != nil {
					break
				}
				if seen[a] || !p.Prefix().Contains(a) {
					t.Fatalf("%v twice or outside", a)
				}
				for _, r := range reserved {
					if a == r {
						t.Fatalf("%v is reserved", a)
					}
				}
				seen[a] = true
				got = append(got, a.String())
			}
			if len(got) != c.count {
				t.Fatalf("got %d addresses, want %d", len(got), c.count)
			}
			for i, w := range c.want {
				if got[i] != w {
					t.Errorf("address %d: %s, want %s", i, got[i], w)
				}
			}
		})
	}
}

func TestStableFollowsFromTheName(t *testing.T) {
	for _, prefix := range []string{"10.96.0.0/16", "fd00:10:96::/112"} {
		a, b := NewPool(netip.MustParsePrefix(prefix)), NewPool(netip.MustParsePrefix(prefix))
		if _, err := b.Stable("other"); err != nil {
			t.Fatal(err)
		}
		x, err := a.Stable("shop/web")
		if err != nil {
			t.Fatal(err)
		}
		y, err := b.Stable("shop/web")
		if err != nil || x != y {
			t.Fatalf("%v and %v (%v): the same name got different addresses", x, y, err)
		}
		again, _ := a.Stable("shop/web")
		if again != x {
			t.Fatalf("asked again: %v, want %v", again, x)
		}
	}
}

func TestClaim(t *testing.T) {
	p := NewPool(netip.MustParsePrefix("10.96.0.0/16"))
	a := netip.MustParseAddr("10.96.0.10")
	if err := p.Claim("dns", a); err != nil {
		t.Fatal(err)
	}
	if err := p.Claim("dns", a); err != nil {
		t.Fatalf("the owner claims again: %v", err)
	}
	if err := p.Claim("other", a); !errors.Is(err, ErrTaken) {
		t.Fatalf("got %v, want ErrTaken", err)
	}
	if err := p.Claim("other", netip.MustParseAddr("10.97.0.1")); err == nil || errors.Is(err, ErrTaken) {
		t.Fatalf("outside of the range: %v", err)
	}
	if err := p.Claim("dns", netip.MustParseAddr("10.96.0.11")); err != nil {
		t.Fatal(err)
	}
	if err := p.Claim("other", a); err != nil {
		t.Fatalf("what the owner left is not free: %v", err)
	}
}

func TestNextDoesNotReuseAtOnce(t *testing.T) {
	p := NewPool(netip.MustParsePrefix("10.0.0.0/29"))
	a, _ := p.Next("a")
	p.Free("a")
	if b, _ := p.Next("b"); a == b {
		t.Fatalf("%v was given to the next owner at once", a)
	}
}
