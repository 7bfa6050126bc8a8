// Package fabric is the network of a lab on one Linux machine. Each node is a
// network namespace with a bridge for its pods; one more namespace, the
// backbone, joins the nodes and hosts that stand for the world outside the
// cluster. No interface of a lab stands in the machine's own namespace, so no
// packet of a lab can leave the machine. It knows addresses and interfaces,
// nothing of pods' programs. internal/lab and internal/lab/kubelet call it.
package fabric

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
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
	cfg Config
	log *slog.Logger
}

var errNotYet = errors.New("not built yet")

// Up makes the network. On a machine without IPv6 it leaves IPv6 addresses
// out; Config() then says what is left. It fails if the lab exists already, in
// whatever state: Down first.
func Up(cfg Config) (*Fabric, error) { return nil, errNotYet }

// Open attaches to a lab made by Up, perhaps by another process.
func Open(runDir, lab string) (*Fabric, error) { return nil, errNotYet }

// Down ends every process that runs in one of the lab's namespaces, then
// takes the namespaces and the lab's folder away. It works whatever became of
// the process that made the lab, and a second time.
func Down(runDir, lab string) error { return errNotYet }

// Config is what the lab was made with, as far as the machine allows it.
func (f *Fabric) Config() Config { return f.cfg }

// AddPod makes the namespace of a pod and joins it to its node. key names the
// pod within the lab (its UID). It returns the namespace's path.
func (f *Fabric) AddPod(node, key string, ips []netip.Addr) (string, error) { return "", errNotYet }

// DelPod takes a pod's namespace away; a pod that is not there is no error.
func (f *Fabric) DelPod(key string) error { return errNotYet }

// AddHost makes a host outside the cluster, reachable from nodes and pods
// (and they from it) at any addresses, such as 203.0.113.10. It returns the
// namespace's path.
func (f *Fabric) AddHost(name string, ips []netip.Addr) (string, error) { return "", errNotYet }

// NodeNetNS is the path of a node's namespace; pods with hostNetwork run in it.
func (f *Fabric) NodeNetNS(node string) string { return "" }

// PodNetNS is the path of a pod's namespace.
func (f *Fabric) PodNetNS(key string) string { return "" }

// HostNetNS is the path of an outside host's namespace.
func (f *Fabric) HostNetNS(name string) string { return "" }

// BackboneNetNS is the path of the namespace that joins the nodes.
func (f *Fabric) BackboneNetNS() string { return "" }

// Do runs fn on a thread of its own inside the network namespace at path. What
// fn opens (sockets) and starts (processes) belongs to that namespace; goroutines
// that fn starts do not run in it.
func Do(path string, fn func() error) error { return errNotYet }

// Dial connects from inside a namespace. address must be an IP address and
// port: names are not resolved.
func Dial(ctx context.Context, path, network, address string) (net.Conn, error) {
	return nil, errNotYet
}

// Listen listens inside a namespace.
func Listen(path, network, address string) (net.Listener, error) { return nil, errNotYet }

// ListenPacket listens for datagrams inside a namespace.
func ListenPacket(path, network, address string) (net.PacketConn, error) { return nil, errNotYet }
