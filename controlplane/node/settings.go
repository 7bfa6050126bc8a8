package node

import (
	"errors"
	"io/fs"
	"os"
	"strings"
)

// setting is a kernel setting that forwarding needs.
type setting struct {
	name, want string
	why        string
	leave      bool // only looked at: to change it has consequences of its own
}

var settings = []setting{
	{name: "net/ipv4/ip_forward", want: "1", why: "without it no pod reaches a pod of another node"},
	// Turning it on makes the kernel ignore router advertisements, by which a
	// node may have its own route.
	{name: "net/ipv6/conf/all/forwarding", want: "1", why: "without it no pod reaches a pod of another node over IPv6", leave: true},
	// Packets outside of a connection's window would pass without translation,
	// and the client would answer them with a reset (kubernetes#74839).
	{name: "net/netfilter/nf_conntrack_tcp_be_liberal", want: "1", why: "without it a late packet may reset a connection to a Service"},
	// Between pods of one bridge; there only with the module br_netfilter.
	{name: "net/bridge/bridge-nf-call-iptables", want: "1", why: "without it a pod does not see the answers of a Service's pod on its own node"},
	{name: "net/bridge/bridge-nf-call-ip6tables", want: "1", why: "without it a pod does not see the answers of a Service's pod on its own node"},
}

// checkSettings looks at the settings, sets what is not right where it may,
// and says what stays. A container without privileges sees them read-only.
func (a *agent) checkSettings() {
	for _, s := range settings {
		file := "/proc/sys/" + s.name
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no such family or module: nothing to be right
		}
		is := strings.TrimSpace(string(b))
		if err == nil && is == s.want {
			continue
		}
		if err == nil && !s.leave {
			if err = os.WriteFile(file, []byte(s.want), 0); err == nil {
				a.log.Info("set a kernel setting", "setting", s.name, "from", is, "to", s.want)
				continue
			}
		}
		a.metrics.settingsMissing.WithLabelValues(strings.ReplaceAll(s.name, "/", ".")).Set(1)
		a.log.Warn("a kernel setting is not as forwarding needs it; set it on the node", "setting", s.name, "is", is, "want", s.want, "why", s.why, "error", err)
	}
}
