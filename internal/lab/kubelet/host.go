package kubelet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet/container"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet/life"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet/probe"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet/volume"
)

// host drives one pod on this machine.
type host struct {
	cfg Config
	log *slog.Logger

	mu    sync.Mutex
	pod   *corev1.Pod // as set up, with its addresses in status
	dir   string
	netns string // empty: not made yet
	vols  *volume.Set
	told  map[string]bool // containers whose image was said to be ignored
}

func newHost(cfg Config, log *slog.Logger) *host {
	return &host{cfg: cfg, log: log, told: map[string]bool{}}
}

func podsDir(stateDir string) string { return filepath.Join(stateDir, "pods") }

// podDir names a pod's folder. Names at Kubernetes' limits are longer than a
// file name may be; such a name is cut, and the UID still makes it unique.
func podDir(stateDir string, pod *corev1.Pod) string {
	name := pod.Namespace + "_" + pod.Name + "_" + string(pod.UID)
	const maxName = 255 // NAME_MAX
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(name))
		name = name[:maxName-33] + "_" + hex.EncodeToString(sum[:16])
	}
	return filepath.Join(podsDir(stateDir), name)
}

// LogFile is where a container's output stands; the part before the last
// rotation has the suffix ".1".
func LogFile(stateDir string, pod *corev1.Pod, container string) string {
	return filepath.Join(podDir(stateDir, pod), container+".log")
}

func recordFile(dir, container string) string { return filepath.Join(dir, container+".json") }

// Setup makes the network, the volumes and the files of /etc.
func (h *host) Setup(ctx context.Context, pod *corev1.Pod) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pod == nil {
		h.pod = pod.DeepCopy()
		h.pod.Status.PodIPs, h.pod.Status.HostIPs = h.Addresses(pod)
		h.dir = podDir(h.cfg.StateDir, pod)
	}
	if err := os.MkdirAll(filepath.Join(h.dir, "root"), 0o755); err != nil {
		return fmt.Errorf("make pod folder: %w", err)
	}
	if err := h.network(); err != nil {
		return err
	}
	if err := h.writeEtc(); err != nil {
		return fmt.Errorf("write files of /etc: %w", err)
	}
	if h.vols == nil {
		h.vols = h.volumes()
	}
	return h.vols.Prepare(ctx)
}

func (h *host) network() error {
	if h.netns != "" {
		return nil
	}
	if h.pod.Spec.HostNetwork {
		h.netns = h.cfg.Fabric.NodeNetNS(h.cfg.Node)
		return nil
	}
	ips := make([]netip.Addr, 0, len(h.pod.Status.PodIPs))
	for _, p := range h.pod.Status.PodIPs {
		ip, err := netip.ParseAddr(p.IP)
		if err != nil {
			return fmt.Errorf("status.podIPs: %w", err)
		}
		ips = append(ips, ip)
	}
	if len(ips) == 0 {
		return errors.New("status.podIPs is empty: the pod was given no address")
	}
	netns, err := h.cfg.Fabric.AddPod(h.cfg.Node, string(h.pod.UID), ips)
	if err != nil {
		return err
	}
	h.netns = netns
	return nil
}

func (h *host) volumes() *volume.Set {
	cfg := volume.Config{
		Pod: h.pod, Dir: filepath.Join(h.dir, "volumes"), Log: h.log,
		Data: func(kind, name string) (map[string][]byte, error) {
			return h.data(kind, name)
		},
		Field: func(path string) (string, error) { return fieldValue(h.pod, path) },
	}
	if h.cfg.Token != nil {
		cfg.Token = func(ctx context.Context, audience string, expiry time.Duration) (string, time.Time, error) {
			sa := h.pod.Spec.ServiceAccountName
			if sa == "" {
				sa = "default"
			}
			return h.cfg.Token(ctx, TokenRequest{Namespace: h.pod.Namespace, ServiceAccount: sa,
				PodName: h.pod.Name, PodUID: h.pod.UID, Node: h.cfg.Node, Audience: audience, Expiry: expiry})
		}
	}
	return volume.New(cfg)
}

func (h *host) data(kind, name string) (map[string][]byte, error) {
	if h.cfg.Data == nil {
		return nil, nil
	}
	return h.cfg.Data(kind, h.pod.Namespace, name)
}

// Keep renews tokens.
func (h *host) Keep(ctx context.Context) { h.vols.Run(ctx) }

// Addresses are the pod's, as given or as its node's, and its node's.
func (h *host) Addresses(pod *corev1.Pod) (ips []corev1.PodIP, hosts []corev1.HostIP) {
	for _, n := range h.cfg.Fabric.Config().Nodes {
		if n.Name != h.cfg.Node {
			continue
		}
		for _, a := range n.Addresses {
			hosts = append(hosts, corev1.HostIP{IP: a.String()})
			if pod.Spec.HostNetwork {
				ips = append(ips, corev1.PodIP{IP: a.String()})
			}
		}
	}
	if pod.Spec.HostNetwork {
		return ips, hosts
	}
	if len(pod.Status.PodIPs) == 0 && pod.Status.PodIP != "" {
		return []corev1.PodIP{{IP: pod.Status.PodIP}}, hosts
	}
	return pod.Status.PodIPs, hosts
}

// Start starts a container with its output in its log.
func (h *host) Start(c *corev1.Container, isInit bool) (life.Process, error) {
	if c.Image != "" && !h.told[c.Name] {
		h.told[c.Name] = true
		h.log.Info("image is ignored: the lab runs command as a program of this machine", "container", c.Name, "image", c.Image)
	}
	spec, err := h.spec(c)
	if err != nil {
		return nil, err
	}
	log, err := openLog(filepath.Join(h.dir, c.Name+".log"))
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		log.Close()
		return nil, fmt.Errorf("make log pipe: %w", err)
	}
	spec.Cgroups = h.limit(c)
	p, err := container.Start(spec, w, w)
	w.Close()
	if err != nil {
		r.Close()
		log.Close()
		container.Unlimit(spec.Cgroups)
		return nil, err
	}
	rec := container.Record{Namespace: h.pod.Namespace, Pod: h.pod.Name, UID: string(h.pod.UID),
		Container: c.Name, Init: isInit, PID: p.PID(), Program: spec.Program, Cgroups: spec.Cgroups}
	file := recordFile(h.dir, c.Name)
	if err := rec.Write(file); err != nil {
		// It may have ended already. Otherwise it runs, and the lab's end finds it by its network.
		h.log.Warn("container not recorded", "container", c.Name, "error", err)
	}
	out := &running{Process: p, done: make(chan struct{})}
	go func() {
		defer close(out.done)
		if _, err := io.Copy(log, r); err != nil {
			h.log.Warn("log lost", "container", c.Name, "error", err)
			_, _ = io.Copy(io.Discard, r) // the container must not stall for it
		}
		<-p.Done()
		out.oom = container.OutOfMemory(spec.Cgroups)
		container.Unlimit(spec.Cgroups)
		r.Close()
		log.Close()
		_ = os.Remove(file)
	}()
	return out, nil
}

// running is a container whose end includes the end of its log.
type running struct {
	*container.Process
	done chan struct{}
	oom  bool
}

func (r *running) Done() <-chan struct{} { return r.done }

func (r *running) OutOfMemory() bool { return r.oom }

// limit makes control groups for a container's limits, where it has some and
// the machine lets us; the container runs without them otherwise.
func (h *host) limit(c *corev1.Container) []string {
	l := container.Limits{Memory: c.Resources.Limits.Memory().Value(), MilliCPU: c.Resources.Limits.Cpu().MilliValue()}
	if l == (container.Limits{}) {
		return nil
	}
	sum := sha256.Sum256([]byte(h.dir)) // two labs may use the same UIDs
	dirs, err := container.Limit("heddle-lab-"+hex.EncodeToString(sum[:8])+"-"+c.Name, l)
	if err != nil {
		h.log.Warn("resource limits are not held", "container", c.Name, "error", err)
	}
	return dirs
}

// Ask asks from the node, so that a pod sees probes come from there.
func (h *host) Ask(ctx context.Context, c *corev1.Container, a probe.Action) error {
	t := probe.Target{Ports: c.Ports,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return fabric.Dial(ctx, h.cfg.Fabric.NodeNetNS(h.cfg.Node), network, address)
		},
		Exec: func(ctx context.Context, argv []string, out io.Writer) (int, error) {
			rec, err := container.ReadRecord(recordFile(h.dir, c.Name))
			if err != nil {
				return 0, err
			}
			return rec.Exec(ctx, argv, container.Streams{Out: out, Err: out})
		}}
	if len(h.pod.Status.PodIPs) > 0 {
		t.IP = h.pod.Status.PodIPs[0].IP
	}
	return a.Do(ctx, t)
}

// Teardown removes the network and the folder, logs too, as a kubelet does.
func (h *host) Teardown(pod *corev1.Pod) error {
	var err error
	if !pod.Spec.HostNetwork {
		err = h.cfg.Fabric.DelPod(string(pod.UID))
	}
	return errors.Join(err, os.RemoveAll(podDir(h.cfg.StateDir, pod)))
}

// writeEtc writes what containers see instead of the machine's own files.
func (h *host) writeEtc() error {
	etc := filepath.Join(h.dir, "etc")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"hostname": h.hostname() + "\n", "hosts": h.hosts(), "resolv.conf": h.resolvConf(),
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (h *host) hostname() string {
	name := h.pod.Name
	if h.pod.Spec.HostNetwork {
		name = h.cfg.Node
	} else if h.pod.Spec.Hostname != "" {
		name = h.pod.Spec.Hostname
	}
	const maxHostname = 63 // of a DNS label, and nearly of the kernel
	return strings.TrimRight(name[:min(len(name), maxHostname)], "-.")
}

func (h *host) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	names := h.hostname()
	if s := h.pod.Spec.Subdomain; s != "" && !h.pod.Spec.HostNetwork {
		names = fmt.Sprintf("%s.%s.%s.svc.%s\t%s", names, s, h.pod.Namespace, h.cfg.ClusterDomain, names)
	}
	for _, ip := range h.pod.Status.PodIPs {
		fmt.Fprintf(&b, "%s\t%s\n", ip.IP, names)
	}
	for _, a := range h.pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}

// resolvConf follows dnsPolicy None and dnsConfig; all other policies use the
// cluster's servers, because no other can be reached.
func (h *host) resolvConf() string {
	var servers, search, options []string
	if h.pod.Spec.DNSPolicy != corev1.DNSNone {
		for _, a := range h.cfg.Nameservers {
			servers = append(servers, a.String())
		}
		d := h.cfg.ClusterDomain
		search = []string{h.pod.Namespace + ".svc." + d, "svc." + d, d}
		options = []string{"ndots:5"}
	}
	if c := h.pod.Spec.DNSConfig; c != nil {
		servers = append(servers, c.Nameservers...)
		search = append(search, c.Searches...)
		for _, o := range c.Options {
			if o.Value != nil {
				options = append(options, o.Name+":"+*o.Value)
			} else {
				options = append(options, o.Name)
			}
		}
	}
	var b strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(search, " "))
	}
	if len(options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(options, " "))
	}
	return b.String()
}
