package cluster

import (
	"maps"
	"net/netip"
	stdslices "slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/lab/dns"
	"github.com/heddle-mesh/heddle/internal/lab/manifest"
	"github.com/heddle-mesh/heddle/internal/lab/objects"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Status is what a person wants to know of a lab.
type Status struct {
	Nodes     []NodeStatus     `json:"nodes"`
	Workloads []WorkloadStatus `json:"workloads"`
	Pods      []PodStatus      `json:"pods"`
	Services  []ServiceStatus  `json:"services"`
	Problems  []source.Problem `json:"problems"`
}

// NodeStatus is one node.
type NodeStatus struct {
	Name      string         `json:"name"`
	Zone      string         `json:"zone,omitempty"`
	Addresses []netip.Addr   `json:"addresses"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs"`
	Pods      int            `json:"pods"`
}

// WorkloadStatus is one document that makes pods.
type WorkloadStatus struct {
	Ref   source.Ref `json:"ref"`
	Pods  int        `json:"pods"` // that are not terminating
	Ready int        `json:"ready"`
}

// PodStatus is one pod. Containers and Ready count those that keep running:
// native sidecars too.
type PodStatus struct {
	Namespace   string     `json:"namespace"`
	Name        string     `json:"name"`
	UID         string     `json:"uid"`
	Owner       source.Ref `json:"owner"`
	Node        string     `json:"node,omitempty"`
	Phase       string     `json:"phase"`
	Ready       bool       `json:"ready"`
	Containers  []string   `json:"containers"`
	ReadyCount  int        `json:"readyCount"`
	Restarts    int        `json:"restarts"`
	IPs         []string   `json:"ips,omitempty"`
	Meshed      bool       `json:"meshed"`
	Terminating bool       `json:"terminating,omitempty"`
	Message     string     `json:"message,omitempty"` // why it does not run, or not in the mesh as its author wished
}

// ServiceStatus is one Service and how many endpoints it has, over all slices
// of its first family.
type ServiceStatus struct {
	Namespace  string   `json:"namespace"`
	Name       string   `json:"name"`
	Type       string   `json:"type"`
	ClusterIPs []string `json:"clusterIPs,omitempty"`
	Ready      int      `json:"ready"`
	Total      int      `json:"total"`
}

// output writes down the world. The order matters to readers, who may see it
// half written: what others refer to comes first.
func (c *Cluster) output(services map[source.Key]*corev1.Service) {
	add := func(kind, namespace, name string, v any) {
		c.out.Objects = append(c.out.Objects, objects.Object{Ref: source.Ref{Kind: kind, Namespace: namespace, Name: name}, Value: v})
	}
	names := c.docs.sortedNamespaces()
	for _, name := range names {
		add("Namespace", "", name, c.docs.namespaces[name])
	}
	for i := range c.cfg.Nodes {
		add("Node", "", c.cfg.Nodes[i].Name, nodeObject(&c.cfg.Nodes[i]))
	}
	add("ServiceCIDR", "", "kubernetes", c.serviceCIDR())
	for _, key := range stdslices.SortedFunc(maps.Keys(c.docs.accounts), compareKeys) {
		add("ServiceAccount", key.Namespace, key.Name, c.docs.accounts[key])
	}
	for _, doc := range c.docs.ordered {
		if doc.Object == nil {
			add(doc.Ref.Kind, doc.Ref.Namespace, doc.Ref.Name, rawJSON(doc.JSON))
		}
	}
	zone := dns.Input{Domain: c.cfg.Domain, Namespaces: names, Hosts: c.cfg.Hosts, Slices: c.allSlices()}
	for _, key := range stdslices.SortedFunc(maps.Keys(services), compareKeys) {
		add("Service", key.Namespace, key.Name, services[key])
		zone.Services = append(zone.Services, services[key])
	}
	for _, p := range c.sorted() {
		if p.stage >= admitted {
			add("Pod", p.obj.Namespace, p.obj.Name, p.obj)
		}
		if p.stage >= placed && !p.obj.Spec.HostNetwork {
			zone.Pods = append(zone.Pods, p.obj)
		}
	}
	for _, s := range zone.Slices {
		add("EndpointSlice", s.Namespace, s.Name, s)
	}
	c.out.Zone = zone
	c.out.Status = c.status(services)
}

// rawJSON is JSON that encodes as itself.
type rawJSON []byte

func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

func nodeLabels(n *Node) map[string]string {
	l := maps.Clone(n.Labels)
	if l == nil {
		l = map[string]string{}
	}
	l[corev1.LabelHostname] = n.Name
	if n.Zone != "" {
		l[corev1.LabelTopologyZone] = n.Zone
	}
	return l
}

func nodeObject(n *Node) *corev1.Node {
	o := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: nodeLabels(n), UID: StableUID("Node", "", n.Name)},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, a := range n.Addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	for _, p := range n.PodCIDRs {
		o.Spec.PodCIDRs = append(o.Spec.PodCIDRs, p.String())
	}
	if len(o.Spec.PodCIDRs) > 0 {
		o.Spec.PodCIDR = o.Spec.PodCIDRs[0]
	}
	return o
}

func (c *Cluster) serviceCIDR() *networkingv1.ServiceCIDR {
	o := &networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
	}
	for _, p := range c.cfg.ServiceCIDRs {
		o.Spec.CIDRs = append(o.Spec.CIDRs, p.String())
	}
	return o
}

func (c *Cluster) status(services map[source.Key]*corev1.Service) Status {
	s := Status{Problems: c.problems}
	perNode := map[string]int{}
	byOwner := map[source.Ref]*WorkloadStatus{}
	c.docs.each(func(doc *manifest.Document) {
		byOwner[doc.Ref] = &WorkloadStatus{Ref: doc.Ref}
	})
	for _, p := range c.sorted() {
		perNode[p.obj.Spec.NodeName]++
		s.Pods = append(s.Pods, podStatus(p))
		if w := byOwner[p.owner]; w != nil && p.stage != leaving {
			w.Pods++
			if ready(p.obj) {
				w.Ready++
			}
		}
	}
	c.docs.each(func(doc *manifest.Document) { s.Workloads = append(s.Workloads, *byOwner[doc.Ref]) })
	for _, n := range c.cfg.Nodes {
		s.Nodes = append(s.Nodes, NodeStatus{Name: n.Name, Zone: n.Zone, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs, Pods: perNode[n.Name]})
	}
	all := c.allSlices()
	for _, key := range stdslices.SortedFunc(maps.Keys(services), compareKeys) {
		s.Services = append(s.Services, serviceStatus(services[key], all))
	}
	return s
}

func podStatus(p *pod) PodStatus {
	s := PodStatus{
		Namespace: p.obj.Namespace, Name: p.obj.Name, UID: string(p.obj.UID), Owner: p.owner, Node: p.obj.Spec.NodeName,
		Phase: string(p.obj.Status.Phase), Ready: ready(p.obj), Terminating: p.stage == leaving, Message: p.waiting,
	}
	_, s.Meshed = p.obj.Annotations[v1alpha1.StatusKey]
	for _, ip := range p.obj.Status.PodIPs {
		s.IPs = append(s.IPs, ip.IP)
	}
	keep := map[string]bool{}
	for _, c := range p.obj.Spec.Containers {
		keep[c.Name] = true
		s.Containers = append(s.Containers, c.Name)
	}
	for _, c := range p.obj.Spec.InitContainers {
		if c.RestartPolicy != nil {
			keep[c.Name] = true
			s.Containers = append(s.Containers, c.Name)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{p.obj.Status.InitContainerStatuses, p.obj.Status.ContainerStatuses} {
		for _, cs := range list {
			s.Restarts += int(cs.RestartCount)
			if keep[cs.Name] && cs.Ready {
				s.ReadyCount++
			}
			if w := cs.State.Waiting; w != nil && s.Message == "" {
				s.Message = cs.Name + ": " + w.Reason
				if w.Message != "" {
					s.Message += ": " + w.Message
				}
			}
		}
	}
	if s.Message == "" {
		s.Message = p.obj.Status.Message
	}
	if len(p.warnings) > 0 {
		s.Message = strings.TrimPrefix(s.Message+"; webhook: "+strings.Join(p.warnings, "; "), "; ")
	}
	return s
}

func serviceStatus(svc *corev1.Service, all []*discoveryv1.EndpointSlice) ServiceStatus {
	s := ServiceStatus{Namespace: svc.Namespace, Name: svc.Name, Type: string(svc.Spec.Type), ClusterIPs: svc.Spec.ClusterIPs}
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		s.Type, s.ClusterIPs = "Headless", nil
	}
	for _, slice := range all {
		if slice.Namespace != svc.Namespace || slice.Labels[discoveryv1.LabelServiceName] != svc.Name {
			continue
		}
		if len(svc.Spec.IPFamilies) > 0 && string(slice.AddressType) != string(svc.Spec.IPFamilies[0]) {
			continue
		}
		for _, e := range slice.Endpoints {
			s.Total++
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				s.Ready++
			}
		}
	}
	return s
}
