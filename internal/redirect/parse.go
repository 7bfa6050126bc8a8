package redirect

import (
	"errors"
	"net/netip"
)

// ParsePorts reads a comma-separated list of ports and ranges: "22,8000-8100".
func ParsePorts(s string) ([]PortRange, error) { return nil, errors.New("not built yet") }

// ParseCIDRs reads a comma-separated list of prefixes or addresses.
func ParseCIDRs(s string) ([]netip.Prefix, error) { return nil, errors.New("not built yet") }

// ParseUIDs reads a comma-separated list of numeric user IDs.
func ParseUIDs(s string) ([]uint32, error) { return nil, errors.New("not built yet") }
