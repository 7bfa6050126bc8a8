// Package fabric is the network of a lab on one Linux machine. Each node is a
// network namespace with a bridge for its pods; one more namespace, the
// backbone, joins the nodes and hosts that stand for the world outside the
// cluster. No interface of a lab stands in the machine's own namespace, so no
// packet of a lab can leave the machine. It knows addresses and interfaces,
// nothing of pods' programs. internal/lab and internal/lab/kubelet call it.
package fabric

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Bridge is the name of the bridge in each node's and in the backbone's
// namespace.
const Bridge = "br0"

// DefaultRunDir is where labs keep their namespaces unless Config says
// otherwise: <run dir>/heddle-lab/<lab>/netns/.
const DefaultRunDir = "/run"

// Config is one lab's network.
type Config struct {
	Lab    string // a DNS label; two labs of different names never meet
	RunDir string // empty: DefaultRunDir
	// Backbone holds the nodes' own addresses, at most one prefix per family.
	Backbone []netip.Prefix
	Nodes    []Node
	Log      *slog.Logger `json:"-"`
}

// Node is one namespace that stands for a machine of the cluster.
type Node struct {
	Name      string
	Addresses []netip.Addr   // of the node itself, inside Config.Backbone; one per family
	PodCIDRs  []netip.Prefix // one per family; the first address of each is the node's own, the pods' gateway
}

// Fabric is a lab's network that is up. Its methods may be called from any
// goroutine.
type Fabric struct {
	cfg  Config
	dir  string
	log  *slog.Logger
	ipv6 bool
	mu   sync.Mutex // one change at a time: half-made pods are never seen
}

// A name of a lab, node or host becomes a file name.
var nameOK = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// Up makes the network. On a machine without IPv6 it leaves IPv6 addresses
// out; Config() then says what is left. It fails if the lab exists already, in
// whatever state: Down first.
func Up(cfg Config) (*Fabric, error) {
	if err := check(cfg); err != nil {
		return nil, err
	}
	f := newFabric(cfg)
	if err := f.makeDir(); err != nil {
		return nil, err
	}
	if err := f.build(); err != nil {
		return nil, errors.Join(err, Down(cfg.RunDir, cfg.Lab))
	}
	return f, nil
}

// Open attaches to a lab made by Up, perhaps by another process.
func Open(runDir, lab string) (*Fabric, error) {
	if !nameOK.MatchString(lab) {
		return nil, fmt.Errorf("lab %q: the name must be a DNS label", lab)
	}
	file := filepath.Join(labDir(runDir, lab), configFile)
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %s is not up: %w", lab, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read lab %s: %w", lab, err)
	}
	var cfg Config
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	cfg.RunDir = runDir
	return newFabric(cfg), nil
}

func newFabric(cfg Config) *Fabric {
	_, err := os.Stat("/proc/sys/net/ipv6/conf/all")
	f := &Fabric{dir: labDir(cfg.RunDir, cfg.Lab), log: telemetry.Discard(cfg.Log), ipv6: err == nil}
	if !f.ipv6 {
		f.log.Warn("this machine has no IPv6: the lab is single-stack", "lab", cfg.Lab)
		cfg.Backbone = only4(cfg.Backbone, netip.Prefix.Addr)
		nodes := make([]Node, len(cfg.Nodes))
		for i, n := range cfg.Nodes {
			nodes[i] = Node{
				Name:      n.Name,
				Addresses: only4(n.Addresses, func(a netip.Addr) netip.Addr { return a }),
				PodCIDRs:  only4(n.PodCIDRs, netip.Prefix.Addr),
			}
		}
		cfg.Nodes = nodes
	}
	f.cfg = cfg
	return f
}

func only4[T any](in []T, addr func(T) netip.Addr) []T {
	var out []T
	for _, v := range in {
		if addr(v).Is4() {
			out = append(out, v)
		}
	}
	return out
}

func check(cfg Config) error {
	if !nameOK.MatchString(cfg.Lab) {
		return fmt.Errorf("lab %q: the name must be a DNS label", cfg.Lab)
	}
	seen := map[string]bool{}
	for _, n := range cfg.Nodes {
		if !nameOK.MatchString(n.Name) || seen[n.Name] {
			return fmt.Errorf("node %q: the name must be a DNS name and unique", n.Name)
		}
		seen[n.Name] = true
		for _, a := range n.Addresses {
			if _, ok := prefixOf(cfg.Backbone, a); !ok {
				return fmt.Errorf("node %s: address %s is outside the backbone %v", n.Name, a, cfg.Backbone)
			}
		}
		for _, p := range n.PodCIDRs {
			if p != p.Masked() || p.IsSingleIP() {
				return fmt.Errorf("node %s: %s is no range for pods", n.Name, p)
			}
			if nextHop(n, p.Addr()) == (netip.Addr{}) {
				return fmt.Errorf("node %s: has pods in %s but no address of that family", n.Name, p)
			}
		}
	}
	return nil
}

func (f *Fabric) makeDir() error {
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return fmt.Errorf("make lab %s: %w", f.cfg.Lab, err)
	}
	// Mkdir decides between two ups at once.
	if err := os.Mkdir(f.netnsDir(), 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("lab %s exists already in %s: take it down first", f.cfg.Lab, f.dir)
		}
		return fmt.Errorf("make lab %s: %w", f.cfg.Lab, err)
	}
	return nil
}

func (f *Fabric) build() error {
	if err := mountOwn(f.netnsDir()); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(f.cfg, "", "  ")
	if err != nil {
		return fmt.Errorf("write lab: %w", err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, configFile), raw, 0o644); err != nil {
		return fmt.Errorf("write lab: %w", err)
	}
	if err := f.makeBackbone(); err != nil {
		return fmt.Errorf("make backbone: %w", err)
	}
	for _, n := range f.cfg.Nodes {
		if err := f.makeNode(n); err != nil {
			return fmt.Errorf("make node %s: %w", n.Name, err)
		}
	}
	return nil
}

const configFile = "fabric.json"

func labDir(runDir, lab string) string {
	if runDir == "" {
		runDir = DefaultRunDir
	}
	return filepath.Join(runDir, "heddle-lab", lab)
}

func (f *Fabric) netnsDir() string { return filepath.Join(f.dir, "netns") }

// Config is what the lab was made with, as far as the machine allows it.
func (f *Fabric) Config() Config { return f.cfg }

// NodeNetNS is the path of a node's namespace; pods with hostNetwork run in it.
func (f *Fabric) NodeNetNS(node string) string { return filepath.Join(f.netnsDir(), "node-"+node) }

// PodNetNS is the path of a pod's namespace.
func (f *Fabric) PodNetNS(key string) string { return filepath.Join(f.netnsDir(), "pod-"+key) }

// HostNetNS is the path of an outside host's namespace.
func (f *Fabric) HostNetNS(name string) string { return filepath.Join(f.netnsDir(), "host-"+name) }

// BackboneNetNS is the path of the namespace that joins the nodes.
func (f *Fabric) BackboneNetNS() string { return filepath.Join(f.netnsDir(), "backbone") }

func (f *Fabric) node(name string) (Node, error) {
	for _, n := range f.cfg.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("lab %s has no node %q", f.cfg.Lab, name)
}

// prefixOf finds the prefix that holds a.
func prefixOf(ps []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	for _, p := range ps {
		if p.Contains(a) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// nextHop is the node's own address of the family of a; zero: none.
func nextHop(n Node, a netip.Addr) netip.Addr {
	for _, h := range n.Addresses {
		if h.Is4() == a.Is4() {
			return h
		}
	}
	return netip.Addr{}
}

// gateway is the node's address on its pods' bridge.
func gateway(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }
