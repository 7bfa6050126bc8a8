package redirect

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// invalidUID is (uid_t)-1, which the kernel takes for "no user".
const invalidUID = 1<<32 - 1

// ParsePorts reads a comma-separated list of TCP ports and ranges, such as
// "22,8000-8100". An empty string is an empty list.
func ParsePorts(s string) ([]PortRange, error) {
	return parseList(s, func(v string) (PortRange, error) {
		first, last, isRange := strings.Cut(v, "-")
		if !isRange {
			last = first
		}
		a, errA := parsePort(first)
		b, errB := parsePort(last)
		switch {
		case errA != nil:
			return PortRange{}, errA
		case errB != nil:
			return PortRange{}, errB
		case a > b:
			return PortRange{}, fmt.Errorf("range %q runs backwards; write %d-%d", v, b, a)
		}
		return PortRange{a, b}, nil
	})
}

func parsePort(s string) (uint16, error) {
	n, err := parseNumber(s, 65535)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port; want a number from 1 to 65535 or a range such as 8000-8100", s)
	}
	return uint16(n), nil
}

// ParseCIDRs reads a comma-separated list of prefixes or single addresses of
// both families, such as "203.0.113.0/24,2001:db8::1".
func ParseCIDRs(s string) ([]netip.Prefix, error) {
	return parseList(s, func(v string) (netip.Prefix, error) {
		if a, err := netip.ParseAddr(v); err == nil && a.Zone() == "" {
			p := host(a)
			return p, checkPrefix(p)
		}
		p, err := netip.ParsePrefix(v)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%q is not a prefix; want such as 203.0.113.0/24 or 2001:db8::/32", v)
		}
		return p, checkPrefix(p)
	})
}

// checkPrefix refuses what the two back ends would understand differently.
func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return fmt.Errorf("prefix is empty; want such as 203.0.113.0/24")
	case p.Addr().Is4In6():
		return fmt.Errorf("prefix %s is an IPv4 address in IPv6 form; write it as IPv4", p)
	case p != p.Masked():
		return fmt.Errorf("prefix %s has bits set behind its length; write %s, or %s for the one address", p, p.Masked(), host(p.Addr()))
	}
	return nil
}

// ParseUIDs reads a comma-separated list of numeric user IDs, such as "0,1337".
func ParseUIDs(s string) ([]uint32, error) {
	return parseList(s, func(v string) (uint32, error) {
		n, err := parseNumber(v, invalidUID-1)
		if err != nil {
			return 0, fmt.Errorf("%q is not a user ID; want a number from 0 to %d (names are not looked up: the pod's /etc/passwd is not ours)", v, uint32(invalidUID-1))
		}
		return uint32(n), nil
	})
}

// parseNumber reads decimal digits and nothing else: no sign, no leading zero
// (which some programs read as octal).
func parseNumber(s string, limit uint64) (uint64, error) {
	if len(s) > 1 && s[0] == '0' || strings.HasPrefix(s, "+") {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err == nil && n > limit {
		err = strconv.ErrRange
	}
	return n, err
}

// parseList splits at commas; white space around an entry is dropped.
func parseList[T any](s string, parse func(string) (T, error)) ([]T, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	parts := strings.Split(s, ",")
	if len(parts) > maxSkips {
		return nil, fmt.Errorf("%d entries; at most %d (join them into ranges)", len(parts), maxSkips)
	}
	out := make([]T, 0, len(parts))
	for i, part := range parts {
		part = strings.TrimSpace(part)
		if part == "" {
			return nil, fmt.Errorf("entry %d of %q is empty; drop the extra comma", i+1, s)
		}
		v, err := parse(part)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}
