package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-mesh/heddle/internal/lab/cluster"
	"github.com/heddle-mesh/heddle/internal/lab/dns"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet"
	"github.com/heddle-mesh/heddle/internal/lab/manifest"
	"github.com/heddle-mesh/heddle/internal/lab/objects"
	"github.com/heddle-mesh/heddle/internal/lab/replicas"
	"github.com/heddle-mesh/heddle/internal/lab/token"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// stopGrace is what pods get when the lab ends, first the users', then the
	// mesh's; a cluster would give them their own grace, but nobody's traffic
	// depends on a lab that ends.
	stopGrace = 3 * time.Second
	// stopWait bounds the wait for them: the grace, and as long for the kubelets.
	stopWait = 2 * stopGrace
)

// Lab is one lab.
type Lab struct {
	cfg    Config
	paths  paths
	log    *slog.Logger
	ready  chan struct{}
	status atomic.Pointer[Status]
	inbox  inbox
}

// New prepares a lab; it does nothing yet.
func New(cfg Config) (*Lab, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Lab{cfg: cfg, paths: paths(StateDir(cfg.RunDir, cfg.Name)), log: telemetry.Discard(cfg.Log),
		ready: make(chan struct{}), inbox: inbox{signal: make(chan struct{}, 1)}}, nil
}

// Ready is closed once the manifests were read, the network stands and, with a
// mesh, its programs are ready.
func (l *Lab) Ready() <-chan struct{} { return l.ready }

// Status is the newest status; nil before the first.
func (l *Lab) Status() *Status { return l.status.Load() }

// Run runs the lab until ctx ends; then it ends the pods with a short grace and
// takes everything away. A lab of the same name that is dead is taken away
// first; ErrAlive if one lives.
func (l *Lab) Run(ctx context.Context) (err error) {
	lock, err := l.claim()
	if err != nil {
		return err
	}
	defer lock.Close()
	ctx, lost := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { keepLock(ctx, lock, l.paths, lost) })
	defer func() {
		lost(nil)
		watch.Wait()
		if cause := context.Cause(ctx); errors.Is(cause, errTakenAway) {
			err = errors.Join(cause, err)
		}
		err = errors.Join(err, l.leave(lock))
	}()
	if err := writeOwner(l.paths); err != nil {
		return err
	}
	fab, err := fabric.Up(l.cfg.network())
	if err != nil {
		return fmt.Errorf("make the lab's network: %w", err)
	}
	b, err := l.build(fab)
	if err != nil {
		return err
	}
	return b.run(ctx)
}

// claim takes the lab's name, after clearing away what a dead owner left.
func (l *Lab) claim() (*os.File, error) {
	lock, err := claimSoon(l.paths)
	if err != nil {
		if errors.Is(err, ErrAlive) {
			return nil, fmt.Errorf("%w: %s; take it down first or choose another name", err, l.cfg.Name)
		}
		return nil, err
	}
	if _, err := os.Stat(l.paths.owner()); errors.Is(err, fs.ErrNotExist) {
		return lock, nil // an owner writes this first: nobody was here
	}
	l.log.Info("clearing away what a dead lab left", "lab", l.cfg.Name)
	err = wipe(l.cfg.RunDir, l.cfg.Name)
	lock.Close()
	if err != nil {
		return nil, fmt.Errorf("clear away what a dead lab left: %w", err)
	}
	return claim(l.paths)
}

// inbox collects what happens until the brain takes it: whoever puts something
// in never waits.
type inbox struct {
	mu     sync.Mutex
	events []func(*cluster.Cluster)
	signal chan struct{} // of capacity 1
}

func (i *inbox) put(e func(*cluster.Cluster)) {
	i.mu.Lock()
	i.events = append(i.events, e)
	i.mu.Unlock()
	select {
	case i.signal <- struct{}{}:
	default:
	}
}

func (i *inbox) take() []func(*cluster.Cluster) {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := i.events
	i.events = nil
	return out
}

// build connects the parts; only files are made.
func (l *Lab) build(fab *fabric.Fabric) (*brain, error) {
	key, err := token.NewKey()
	if err != nil {
		return nil, err
	}
	out, err := objects.Open(l.paths.objects())
	if err != nil {
		return nil, err
	}
	if err := out.WriteFile("jwks.json", key.JWKS()); err != nil {
		return nil, err
	}
	b := &brain{lab: l, fab: fab, key: key, out: out, kubelets: map[string]*kubelet.Kubelet{}}
	manifests := l.cfg.Manifests
	if l.cfg.Mesh != nil {
		if err := writeSystem(l.cfg, fab.Config()); err != nil {
			return nil, err
		}
		manifests = append([]string{l.paths.system()}, manifests...)
	}
	b.folder = manifest.NewFolder(manifests, l.log)
	b.cluster = cluster.New(l.clusterConfig(fab.Config()))
	for _, n := range fab.Config().Nodes {
		b.kubelets[n.Name] = kubelet.New(kubelet.Config{
			Fabric: fab, Node: n.Name, StateDir: l.paths.kubelet(), Nameservers: n.Addresses, ClusterDomain: clusterDomain,
			Token:     b.token,
			OnStatus:  func(p *corev1.Pod) { l.inbox.put(func(c *cluster.Cluster) { c.PodStatus(p) }) },
			OnDeleted: func(p *corev1.Pod) { l.inbox.put(func(c *cluster.Cluster) { c.PodDeleted(p.UID) }) },
			BackOff:   l.cfg.BackOff, Log: l.log,
		})
	}
	return b, nil
}

func (l *Lab) clusterConfig(net fabric.Config) cluster.Config {
	cfg := cluster.Config{Domain: clusterDomain, ServiceCIDRs: []netip.Prefix{serviceV4}, Hosts: map[string][]netip.Addr{},
		NewUID: newUID, NewName: replicas.Name, Now: time.Now}
	if len(net.Backbone) > 1 {
		cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, serviceV6)
	}
	for i, n := range net.Nodes {
		cfg.Nodes = append(cfg.Nodes, cluster.Node{Name: n.Name, Zone: l.cfg.Nodes[i].Zone, Labels: l.cfg.Nodes[i].Labels,
			Addresses: n.Addresses, PodCIDRs: n.PodCIDRs})
	}
	for _, h := range l.cfg.Hosts {
		cfg.Hosts[h.Name] = h.IPs
	}
	return cfg
}

func newUID() types.UID {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// serveDNS answers on each node's addresses until ctx ends.
func (b *brain) serveDNS(ctx context.Context) error {
	g := run.NewGroup(ctx)
	for _, n := range b.fab.Config().Nodes {
		for _, a := range n.Addresses {
			g.Go("dns of "+n.Name, func(ctx context.Context) error {
				at := netip.AddrPortFrom(a, 53).String()
				pc, err := fabric.ListenPacket(b.fab.NodeNetNS(n.Name), "udp", at)
				if err != nil {
					return err
				}
				defer pc.Close()
				ln, err := fabric.Listen(b.fab.NodeNetNS(n.Name), "tcp", at)
				if err != nil {
					return err
				}
				defer ln.Close()
				return dns.Serve(ctx, pc, ln, b.zone.Load)
			})
		}
	}
	return g.Wait()
}

// token is for the kubelets.
func (b *brain) token(_ context.Context, r kubelet.TokenRequest) (string, time.Time, error) {
	req := token.Request{
		Namespace:      r.Namespace,
		ServiceAccount: token.Named{Name: r.ServiceAccount, UID: string(cluster.StableUID("ServiceAccount", r.Namespace, r.ServiceAccount))},
		Pod:            token.Named{Name: r.PodName, UID: string(r.PodUID)},
		Node:           token.Named{Name: r.Node, UID: string(cluster.StableUID("Node", "", r.Node))},
		Lifetime:       r.Expiry,
	}
	if r.Audience != "" {
		req.Audience = []string{r.Audience}
	}
	return b.key.Issue(req)
}

// dial connects as the API server would, from the first node.
func (b *brain) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return fabric.Dial(ctx, b.fab.NodeNetNS(b.fab.Config().Nodes[0].Name), network, address)
}
