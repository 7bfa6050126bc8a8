// Package lab runs ordinary Kubernetes manifests on one Linux machine: it
// stands for the API server, the controllers and the scheduler of a cluster,
// with a folder of manifests as input and a folder of objects as output, which
// the control plane watches through internal/source/files. It replicates,
// admits through real webhooks, schedules, addresses, and keeps EndpointSlices,
// tokens and DNS; fabric makes its network and kubelet runs its pods. It is no
// API server: nobody can write to it but through the manifests. cmd/heddle and
// tests of whole meshes call it.
package lab

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"regexp"
	"time"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

const (
	// maxNodes keeps node numbers inside one byte of an address.
	maxNodes = 100
	// ClusterDomain of every lab.
	clusterDomain = "cluster.local"
	// systemNamespace is where the mesh's own programs run.
	systemNamespace = "heddle-system"
)

// The address plan of every lab; two labs have the same, and never meet.
var (
	serviceV4  = netip.MustParsePrefix("10.96.0.0/16")
	serviceV6  = netip.MustParsePrefix("fd00:10:96::/112")
	backboneV4 = netip.MustParsePrefix("172.30.0.0/24")
	backboneV6 = netip.MustParsePrefix("fd00:172:30::/64")
)

// Config is one lab.
type Config struct {
	Name   string // a DNS label
	RunDir string // empty: /run. The lab lives in <run dir>/heddle-lab/<name>
	// Manifests are files and folders to watch.
	Manifests []string
	// Nodes of the cluster; none: two, without zones.
	Nodes []Node
	// Mesh runs Heddle in the lab; nil: a lab without.
	Mesh *Mesh
	// Hosts stand outside the cluster.
	Hosts []Host
	// BackOff is the first wait before a crashed container restarts; 0: 1 s.
	BackOff time.Duration
	Log     *slog.Logger `json:"-"`
}

// Node is a machine of the lab's cluster.
type Node struct {
	Name   string
	Zone   string            // topology.kubernetes.io/zone; empty: none
	Labels map[string]string // besides the usual ones
}

// Mesh says which programs make the mesh. Paths are absolute.
type Mesh struct {
	ControlPlane, Injector, Sidecar string
	TrustDomain                     string   // empty: cluster.local
	ControlPlaneArgs, InjectorArgs  []string // further flags
}

// Host is a machine outside the cluster.
type Host struct {
	Name    string // its DNS name
	IPs     []netip.Addr
	Command []string // runs there; empty: nothing does
}

var labelOK = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// complete fills in defaults and checks.
func (c Config) complete() (Config, error) {
	if !labelOK.MatchString(c.Name) {
		return c, fmt.Errorf("lab name %q: want a DNS label, such as dev", c.Name)
	}
	if c.RunDir == "" {
		c.RunDir = fabric.DefaultRunDir
	}
	if len(c.Nodes) == 0 {
		c.Nodes = []Node{{Name: "node1"}, {Name: "node2"}}
	}
	if len(c.Nodes) > maxNodes {
		return c, fmt.Errorf("%d nodes: at most %d", len(c.Nodes), maxNodes)
	}
	seen := map[string]bool{}
	for _, n := range c.Nodes {
		if !labelOK.MatchString(n.Name) || seen[n.Name] {
			return c, fmt.Errorf("node name %q: want a DNS label that stands once", n.Name)
		}
		seen[n.Name] = true
	}
	if m := c.Mesh; m != nil {
		copied := *m
		if copied.TrustDomain == "" {
			copied.TrustDomain = clusterDomain
		}
		c.Mesh = &copied
		for _, p := range []string{m.ControlPlane, m.Injector, m.Sidecar} {
			if !filepath.IsAbs(p) {
				return c, fmt.Errorf("program %q: want an absolute path", p)
			}
		}
	}
	for _, h := range c.Hosts {
		if len(h.IPs) == 0 {
			return c, fmt.Errorf("host %s: it needs an address", h.Name)
		}
	}
	return c, nil
}

// network is the fabric of the lab.
func (c Config) network() fabric.Config {
	out := fabric.Config{Lab: c.Name, RunDir: c.RunDir, Backbone: []netip.Prefix{backboneV4, backboneV6}, Log: c.Log}
	for i, n := range c.Nodes {
		number := byte(i + 1)
		v4, v6 := backboneV4.Addr().As4(), backboneV6.Addr().As16()
		v4[3], v6[15] = 10+number, 10+number
		pods6 := netip.MustParseAddr("fd00:10:244::").As16()
		pods6[7] = number
		out.Nodes = append(out.Nodes, fabric.Node{
			Name:      n.Name,
			Addresses: []netip.Addr{netip.AddrFrom4(v4), netip.AddrFrom16(v6)},
			PodCIDRs: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, number, 0}), 24),
				netip.PrefixFrom(netip.AddrFrom16(pods6), 64),
			},
		})
	}
	return out
}

// paths of a lab, all below its state dir.
type paths string

// StateDir is where a lab of that name lives.
func StateDir(runDir, name string) string {
	if runDir == "" {
		runDir = fabric.DefaultRunDir
	}
	return filepath.Join(runDir, "heddle-lab", name)
}

func (p paths) in(name string) string { return filepath.Join(string(p), name) }
func (p paths) lock() string          { return p.in("lock") }
func (p paths) owner() string         { return p.in("owner.json") }
func (p paths) status() string        { return p.in("status.json") }
func (p paths) objects() string       { return p.in("objects") }
func (p paths) system() string        { return p.in("system") }
func (p paths) kubelet() string       { return p.in("kubelet") }
func (p paths) ca() string            { return p.in("ca") }
func (p paths) hosts() string         { return p.in("hosts") }

// KubeletDir is the state dir of a lab's kubelets, for kubelet.Exec and
// kubelet.LogFile.
func KubeletDir(runDir, name string) string { return paths(StateDir(runDir, name)).kubelet() }

// ObjectsDir is the folder of objects that the control plane watches.
func ObjectsDir(runDir, name string) string { return paths(StateDir(runDir, name)).objects() }
