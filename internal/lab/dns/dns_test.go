package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sort"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testZone() *Zone {
	svc := func(name string, spec corev1.ServiceSpec) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec}
	}
	slice := func(service string, eps ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Ports:      []discoveryv1.EndpointPort{{Name: new("line"), Port: new(int32(7000))}}, Endpoints: eps,
		}
	}
	ep := func(ip, hostname string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, Hostname: &hostname, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	}
	many := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: "many"}}}
	for i := range 60 {
		many.Endpoints = append(many.Endpoints, ep(fmt.Sprintf("10.244.9.%d", i+1), "", true))
	}
	return NewZone(Input{
		Domain: "cluster.local", Namespaces: []string{"shop", "empty"},
		Services: []*corev1.Service{
			svc("web", corev1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00:10:96::7"},
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}}}),
			svc("stock", corev1.ServiceSpec{ClusterIP: "None"}),
			svc("many", corev1.ServiceSpec{ClusterIP: "None"}),
			svc("nobody", corev1.ServiceSpec{ClusterIP: "None"}),
			svc("out", corev1.ServiceSpec{Type: "ExternalName", ExternalName: "db.example.org"}),
			svc("alias", corev1.ServiceSpec{Type: "ExternalName", ExternalName: "web.shop.svc.cluster.local."}),
			svc("away", corev1.ServiceSpec{Type: "ExternalName", ExternalName: "nowhere.example.org"}),
			svc("loop", corev1.ServiceSpec{Type: "ExternalName", ExternalName: "loop.shop.svc.cluster.local"}),
		},
		Slices: []*discoveryv1.EndpointSlice{
			slice("stock", ep("10.244.1.5", "stock-0", true), ep("10.244.2.5", "", true), ep("10.244.2.6", "stock-2", false)),
			slice("stock", ep("fd00:10:244:1::5", "stock-0", true)),
			many,
		},
		Pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.5"}, {IP: "fd00:10:244:1::5"}}}}},
		Hosts: map[string][]netip.Addr{"db.example.org": {netip.MustParseAddr("203.0.113.10")}},
	})
}

// brief writes an answer in one line: code, then the records' data, sorted.
func brief(r *dns.Msg) string {
	var rrs []string
	for _, rr := range r.Answer {
		f := strings.Fields(rr.String())
		if rr.Header().Ttl != ttl {
			f = append(f, "BAD TTL")
		}
		rrs = append(rrs, f[3]+" "+strings.Join(f[4:], " "))
	}
	sort.Strings(rrs)
	s := dns.RcodeToString[r.Rcode]
	if len(rrs) > 0 {
		s += " " + strings.Join(rrs, ", ")
	}
	if len(r.Ns) > 0 {
		s += " soa " + r.Ns[0].Header().Name
	}
	return s
}

func TestAnswer(t *testing.T) {
	z := testZone()
	for _, c := range []struct{ name, qtype, want string }{
		{"web.shop.svc.cluster.local.", "A", "NOERROR A 10.96.0.7"},
		{"WEB.Shop.svc.Cluster.LOCAL.", "A", "NOERROR A 10.96.0.7"},
		{"web.shop.svc.cluster.local.", "AAAA", "NOERROR AAAA fd00:10:96::7"},
		{"web.shop.svc.cluster.local.", "TXT", "NOERROR soa cluster.local."},
		{"_http._tcp.web.shop.svc.cluster.local.", "SRV", "NOERROR SRV 0 100 80 web.shop.svc.cluster.local."},
		{"_http._udp.web.shop.svc.cluster.local.", "SRV", "NXDOMAIN soa cluster.local."},
		{"_tcp.web.shop.svc.cluster.local.", "A", "NOERROR soa cluster.local."},
		{"stock.shop.svc.cluster.local.", "A", "NOERROR A 10.244.1.5, A 10.244.2.5"},
		{"stock.shop.svc.cluster.local.", "AAAA", "NOERROR AAAA fd00:10:244:1::5"},
		{"stock-0.stock.shop.svc.cluster.local.", "A", "NOERROR A 10.244.1.5"},
		{"10-244-2-5.stock.shop.svc.cluster.local.", "A", "NOERROR A 10.244.2.5"},
		{"stock-2.stock.shop.svc.cluster.local.", "A", "NXDOMAIN soa cluster.local."},
		{"_line._tcp.stock.shop.svc.cluster.local.", "SRV",
			"NOERROR SRV 0 50 7000 10-244-2-5.stock.shop.svc.cluster.local., SRV 0 50 7000 stock-0.stock.shop.svc.cluster.local."},
		{"nobody.shop.svc.cluster.local.", "A", "NOERROR soa cluster.local."},
		{"out.shop.svc.cluster.local.", "A", "NOERROR A 203.0.113.10, CNAME db.example.org."},
		{"out.shop.svc.cluster.local.", "AAAA", "NOERROR CNAME db.example.org. soa ."},
		{"out.shop.svc.cluster.local.", "CNAME", "NOERROR CNAME db.example.org."},
		{"alias.shop.svc.cluster.local.", "A", "NOERROR A 10.96.0.7, CNAME web.shop.svc.cluster.local."},
		{"away.shop.svc.cluster.local.", "A", "NXDOMAIN CNAME nowhere.example.org. soa ."},
		{"10-244-1-5.shop.pod.cluster.local.", "A", "NOERROR A 10.244.1.5"},
		{"fd00-10-244-1--5.shop.pod.cluster.local.", "AAAA", "NOERROR AAAA fd00:10:244:1::5"},
		{"10-244-1-6.shop.pod.cluster.local.", "A", "NXDOMAIN soa cluster.local."},
		{"absent.shop.svc.cluster.local.", "A", "NXDOMAIN soa cluster.local."},
		{"empty.svc.cluster.local.", "A", "NOERROR soa cluster.local."},
		{"absent.svc.cluster.local.", "A", "NXDOMAIN soa cluster.local."},
		{"svc.cluster.local.", "A", "NOERROR soa cluster.local."},
		{"db.example.org.", "A", "NOERROR A 203.0.113.10"},
		{"example.org.", "A", "NOERROR soa ."},
		{"www.example.com.", "A", "NXDOMAIN soa ."},
		{"web.shop.svc.cluster.local.shop.svc.cluster.local.", "A", "NXDOMAIN soa cluster.local."},
	} {
		q := new(dns.Msg)
		q.SetQuestion(c.name, dns.StringToType[c.qtype])
		r := z.Answer(q, dns.MinMsgSize)
		if got := brief(r); got != c.want {
			t.Errorf("%s %s:\n got %s\nwant %s", c.name, c.qtype, got, c.want)
		}
		if r.Question[0].Name != c.name {
			t.Errorf("the question came back as %q", r.Question[0].Name)
		}
	}
}

func TestLoopEnds(t *testing.T) {
	q := new(dns.Msg)
	q.SetQuestion("loop.shop.svc.cluster.local.", dns.TypeA)
	if n := len(testZone().Answer(q, dns.MaxMsgSize).Answer); n != maxChain {
		t.Errorf("%d CNAMEs, want %d", n, maxChain)
	}
}

func TestOddQueries(t *testing.T) {
	z := testZone()
	two := new(dns.Msg)
	two.SetQuestion("a.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	chaos := new(dns.Msg)
	chaos.SetQuestion("version.bind.", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	update := new(dns.Msg)
	update.SetUpdate("cluster.local.")
	for _, c := range []struct {
		q    *dns.Msg
		want int
	}{{two, dns.RcodeFormatError}, {chaos, dns.RcodeRefused}, {update, dns.RcodeNotImplemented}, {new(dns.Msg), dns.RcodeFormatError}} {
		if got := z.Answer(c.q, 512).Rcode; got != c.want {
			t.Errorf("%v: %s, want %s", c.q, dns.RcodeToString[got], dns.RcodeToString[c.want])
		}
	}
}

// TestServe asks over UDP and, because the answer is cut, again over TCP.
func TestServe(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	z := testZone()
	go func() { ended <- Serve(ctx, pc, l, func() *Zone { return z }) }()
	q := new(dns.Msg)
	q.SetQuestion("many.shop.svc.cluster.local.", dns.TypeA)
	r, _, err := (&dns.Client{}).Exchange(q, pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	if !r.Truncated || len(r.Answer) == 0 {
		t.Errorf("60 addresses fit 512 bytes: %d, truncated %v", len(r.Answer), r.Truncated)
	}
	r, _, err = (&dns.Client{Net: "tcp"}).Exchange(q, l.Addr().String())
	if err != nil || len(r.Answer) != 60 {
		t.Errorf("over TCP: %v, %v", err, r)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
