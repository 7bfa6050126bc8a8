package redirect

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	ports := func(s string) (string, error) { v, err := ParsePorts(s); return fmt.Sprint(v), err }
	cidrs := func(s string) (string, error) { v, err := ParseCIDRs(s); return fmt.Sprint(v), err }
	uids := func(s string) (string, error) { v, err := ParseUIDs(s); return fmt.Sprint(v), err }
	for _, tc := range []struct {
		parse    func(string) (string, error)
		in, want string // want an error if it starts with "error: "
	}{
		{ports, "", "[]"},
		{ports, " 22 , 8000-8100", "[22 8000-8100]"},
		{ports, "65535", "[65535]"},
		{ports, "65536", `error: "65536" is not a port`},
		{ports, "0", `error: "0" is not a port`},
		{ports, "-1", `error: "" is not a port`},
		{ports, "08", `error: "08" is not a port`},
		{ports, "+8", `error: "+8" is not a port`},
		{ports, "1-2-3", `error: "2-3" is not a port`},
		{ports, "9-8", `error: range "9-8" runs backwards; write 8-9`},
		{ports, "1,,2", `error: entry 2 of "1,,2" is empty`},
		{ports, strings.Repeat("1,", maxSkips) + "1", "error: 257 entries"},
		{cidrs, "203.0.113.0/24,2001:db8::/32,192.0.2.1,2001:db8::1", "[203.0.113.0/24 2001:db8::/32 192.0.2.1/32 2001:db8::1/128]"},
		{cidrs, "203.0.113.1/24", "error: prefix 203.0.113.1/24 has bits set behind its length; write 203.0.113.0/24, or 203.0.113.1/32"},
		{cidrs, "fe80::1%eth0", `error: "fe80::1%eth0" is not a prefix`},
		{cidrs, "::ffff:192.0.2.1", "error: prefix ::ffff:192.0.2.1/128 is an IPv4 address in IPv6 form"},
		{cidrs, "example.com", `error: "example.com" is not a prefix`},
		{uids, "0,1337", "[0 1337]"},
		{uids, "4294967294", "[4294967294]"},
		{uids, "4294967295", `error: "4294967295" is not a user ID`},
		{uids, "root", `error: "root" is not a user ID`},
	} {
		got, err := tc.parse(tc.in)
		if want, isErr := strings.CutPrefix(tc.want, "error: "); isErr {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %s, error %v; want error %q", tc.in, got, err, want)
			}
		} else if err != nil || got != tc.want {
			t.Errorf("%q: %s, error %v; want %s", tc.in, got, err, tc.want)
		}
	}
}

// FuzzParse: what a parser takes, New takes as well, and it reads back as the
// same list.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "22", "8000-8100", "1,2", "65536", "203.0.113.0/24", "::/0", "2001:db8::1", "0", "4294967295", "-", ",", "1-", "%", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := Config{SidecarUID: SidecarUID}
		var err error
		if c.SkipOutboundPorts, err = ParsePorts(s); err == nil {
			c.SkipInboundPorts = c.SkipOutboundPorts
			again, err := ParsePorts(join(c.SkipOutboundPorts))
			if err != nil || fmt.Sprint(again) != fmt.Sprint(c.SkipOutboundPorts) {
				t.Errorf("ports %q: %v, again %v, %v", s, c.SkipOutboundPorts, again, err)
			}
		}
		if c.SkipOutboundCIDRs, err = ParseCIDRs(s); err == nil {
			again, err := ParseCIDRs(join(c.SkipOutboundCIDRs))
			if err != nil || fmt.Sprint(again) != fmt.Sprint(c.SkipOutboundCIDRs) {
				t.Errorf("prefixes %q: %v, again %v, %v", s, c.SkipOutboundCIDRs, again, err)
			}
		} else {
			c.SkipOutboundCIDRs = nil
		}
		if c.SkipUIDs, err = ParseUIDs(s); err == nil {
			again, err := ParseUIDs(join(c.SkipUIDs))
			if err != nil || fmt.Sprint(again) != fmt.Sprint(c.SkipUIDs) {
				t.Errorf("UIDs %q: %v, again %v, %v", s, c.SkipUIDs, again, err)
			}
		}
		p, err := New(c)
		if err != nil {
			t.Fatalf("%q was parsed but not planned: %v", s, err)
		}
		for _, v6 := range []bool{false, true} {
			_, _, rules := p.Iptables(v6)
			for _, r := range rules {
				if strings.ContainsAny(r, "\n\r\"'\\") {
					t.Errorf("%q gives the line %q", s, r)
				}
			}
		}
	})
}

func join[T any](vs []T) string {
	w := make([]string, len(vs))
	for i, v := range vs {
		w[i] = fmt.Sprint(v)
	}
	return strings.Join(w, ",")
}
