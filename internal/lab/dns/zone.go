// Package dns answers the names of a lab's Services and pods, as the Kubernetes
// DNS specification (version 1.1.0) lays them out, and those of the lab's hosts
// outside the cluster. It never asks anybody else: for a lab no other name
// exists. It listens only where it is told to. internal/lab calls it.
package dns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// ttl of every answer, in seconds, as CoreDNS' kubernetes plugin has it.
const ttl = 5

// maxChain bounds how many CNAMEs one answer follows.
const maxChain = 8

// Input is what a zone follows from.
type Input struct {
	Domain     string // the cluster's, such as cluster.local
	Namespaces []string
	Services   []*corev1.Service
	Slices     []*discoveryv1.EndpointSlice
	Pods       []*corev1.Pod
	Hosts      map[string][]netip.Addr // outside the cluster, by full name
}

// Zone is all that is known at one time. It is never changed.
type Zone struct {
	domain string // "cluster.local."
	nodes  map[string]*node
}

// node is what stands at one name; a node without records says that the name
// exists all the same (an empty non-terminal, RFC 8020).
type node struct {
	addrs []netip.Addr
	cname string
	srv   []srv
}

type srv struct {
	port   uint16
	target string
}

// NewZone builds a zone.
func NewZone(in Input) *Zone {
	z := &Zone{domain: dns.CanonicalName(in.Domain), nodes: map[string]*node{}}
	z.at(z.domain)
	z.at("svc." + z.domain)
	z.at("pod." + z.domain)
	for _, ns := range in.Namespaces {
		z.at(ns + ".svc." + z.domain)
		z.at(ns + ".pod." + z.domain)
	}
	slices := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range in.Slices {
		key := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		slices[key] = append(slices[key], s)
	}
	for _, s := range in.Services {
		z.service(s, slices[s.Namespace+"/"+s.Name])
	}
	for _, p := range in.Pods {
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				z.addAddr(dashed(a)+"."+p.Namespace+".pod."+z.domain, a)
			}
		}
	}
	for name, addrs := range in.Hosts {
		for _, a := range addrs {
			z.addAddr(dns.CanonicalName(name), a)
		}
	}
	return z
}

// at gives the node of a name and makes sure that its ancestors exist.
func (z *Zone) at(name string) *node {
	n := z.nodes[name]
	if n == nil {
		n = &node{}
		z.nodes[name] = n
		if i, end := dns.NextLabel(name, 0); !end {
			z.at(name[i:])
		}
	}
	return n
}

func (z *Zone) addAddr(name string, a netip.Addr) {
	n := z.at(name)
	for _, have := range n.addrs {
		if have == a {
			return
		}
	}
	n.addrs = append(n.addrs, a)
}

func (z *Zone) addSRV(name string, s srv) {
	n := z.at(name)
	for _, have := range n.srv {
		if have == s {
			return
		}
	}
	n.srv = append(n.srv, s)
}

func (z *Zone) service(s *corev1.Service, slices []*discoveryv1.EndpointSlice) {
	name := strings.ToLower(s.Name + "." + s.Namespace + ".svc." + z.domain)
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		z.at(name).cname = dns.CanonicalName(s.Spec.ExternalName)
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		z.at(name)
		for _, slice := range slices {
			z.headless(name, slice)
		}
	default:
		z.at(name)
		for _, ip := range s.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				z.addAddr(name, a)
			}
		}
		for _, p := range s.Spec.Ports {
			if p.Name != "" {
				z.addSRV(srvName(p.Name, string(p.Protocol), name), srv{uint16(p.Port), name})
			}
		}
	}
}

// headless publishes the ready endpoints; a Service that publishes those not
// ready has them marked ready in its slices already.
func (z *Zone) headless(name string, slice *discoveryv1.EndpointSlice) {
	for _, e := range slice.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, ip := range e.Addresses {
			a, err := netip.ParseAddr(ip)
			if err != nil {
				continue
			}
			z.addAddr(name, a)
			host := dashed(a)
			if e.Hostname != nil && *e.Hostname != "" {
				host = *e.Hostname
			}
			host = strings.ToLower(host) + "." + name
			z.addAddr(host, a)
			for _, p := range slice.Ports {
				if p.Name != nil && *p.Name != "" && p.Port != nil {
					protocol := corev1.ProtocolTCP
					if p.Protocol != nil {
						protocol = *p.Protocol
					}
					z.addSRV(srvName(*p.Name, string(protocol), name), srv{uint16(*p.Port), host})
				}
			}
		}
	}
}

func srvName(port, protocol, service string) string {
	return "_" + strings.ToLower(port) + "._" + strings.ToLower(protocol) + "." + service
}

// dashed writes an address as a label: 10.244.1.2 as 10-244-1-2.
func dashed(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

// Answer answers one query; size is the largest answer that the transport
// takes, in bytes.
func (z *Zone) Answer(q *dns.Msg, size int) *dns.Msg {
	r := new(dns.Msg)
	r.SetReply(q)
	r.Authoritative = true
	switch {
	case q.Opcode != dns.OpcodeQuery:
		r.Rcode = dns.RcodeNotImplemented
	case len(q.Question) != 1:
		r.Rcode = dns.RcodeFormatError
	case q.Question[0].Qclass != dns.ClassINET:
		r.Rcode = dns.RcodeRefused
	default:
		z.resolve(r, q.Question[0])
	}
	if opt := q.IsEdns0(); opt != nil {
		r.SetEdns0(dns.DefaultMsgSize, false)
		if opt.Version() != 0 {
			r.Answer, r.Ns, r.Rcode = nil, nil, dns.RcodeBadVers
		}
	}
	r.Compress = true
	r.Truncate(size)
	return r
}

// resolve fills the answer, following CNAMEs as far as they stay with us.
func (z *Zone) resolve(r *dns.Msg, q dns.Question) {
	name := q.Name // as asked: some resolvers check that its case comes back
	for range maxChain {
		n := z.nodes[dns.CanonicalName(name)]
		if n == nil {
			r.Rcode = dns.RcodeNameError
			break
		}
		if n.cname != "" {
			r.Answer = append(r.Answer, &dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: n.cname})
			if q.Qtype == dns.TypeCNAME {
				return
			}
			name = n.cname
			continue
		}
		answers := z.records(n, name, q.Qtype)
		r.Answer = append(r.Answer, answers...)
		if q.Qtype == dns.TypeSRV {
			z.additional(r, answers)
		}
		if len(answers) > 0 {
			return
		}
		break
	}
	r.Ns = []dns.RR{z.soa(dns.CanonicalName(name))}
}

func (z *Zone) records(n *node, name string, qtype uint16) []dns.RR {
	var out []dns.RR
	switch qtype {
	case dns.TypeA, dns.TypeAAAA:
		for _, a := range n.addrs {
			if rr := addrRR(name, a); rr.Header().Rrtype == qtype {
				out = append(out, rr)
			}
		}
		// A client that takes the first address still spreads its connections.
		rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	case dns.TypeSRV:
		for _, s := range n.srv {
			out = append(out, &dns.SRV{Hdr: header(name, dns.TypeSRV), Weight: uint16(100 / len(n.srv)), Port: s.port, Target: s.target})
		}
	case dns.TypeSOA:
		if dns.CanonicalName(name) == z.domain {
			out = append(out, z.soa(name))
		}
	}
	return out
}

// additional adds the addresses of SRV targets, which the client asks for next.
func (z *Zone) additional(r *dns.Msg, answers []dns.RR) {
	for _, rr := range answers {
		target := rr.(*dns.SRV).Target
		if n := z.nodes[target]; n != nil {
			for _, a := range n.addrs {
				r.Extra = append(r.Extra, addrRR(target, a))
			}
		}
	}
}

// soa says how long "no" may be remembered: of the cluster's domain, or of the
// root for names outside of it, none of which exist in a lab.
func (z *Zone) soa(name string) *dns.SOA {
	apex := "."
	if dns.IsSubDomain(z.domain, name) {
		apex = z.domain
	}
	return &dns.SOA{Hdr: header(apex, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl}
}

func addrRR(name string, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()}
}

func header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// String counts what the zone holds.
func (z *Zone) String() string { return fmt.Sprintf("%s with %d names", z.domain, len(z.nodes)) }
