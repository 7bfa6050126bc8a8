//go:build e2e

package install

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
	"github.com/heddle-mesh/heddle/e2e/shop"
)

type ctx = context.Context

// refusedAtOnce is how long a refusal may take: without REJECT it would be a
// time-out of many seconds.
const refusedAtOnce = 2 * time.Second

// outside checks what the node agent forwards for pods without a sidecar and
// for the nodes themselves.
func outside(t *testing.T, c *client.Cluster) {
	o := shop.Open(t, c, "outside", "outside.yaml")
	vips := strings.Fields(c.Kubectl(t, "-n", "outside", "get", "service", "server", "-o", "jsonpath={.spec.clusterIPs[*]}"))
	if len(vips) != 2 {
		t.Fatalf("the server's Service has addresses %v, want one of each family", vips)
	}
	api := strings.TrimSpace(c.Kubectl(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"))
	nobody := strings.TrimSpace(c.Kubectl(t, "-n", "outside", "get", "service", "nobody", "-o", "jsonpath={.spec.clusterIP}"))
	from := []string{"deployment/client"}
	for _, pod := range o.Pods(t, "onnode") {
		from = append(from, "pod/"+pod)
	}
	from = append(from, "pod/"+o.Pods(t, "server")[0]) // may be forwarded to itself: hairpin
	for _, who := range from {
		for _, vip := range vips {
			want(t, o, who, "get", "http://"+net.JoinHostPort(vip, "80")+"/who", "-n", "8", "-fresh")
			want(t, o, who, "echo", net.JoinHostPort(vip, "7000"))
			want(t, o, who, "udp", net.JoinHostPort(vip, "7002"))
		}
		want(t, o, who, "lookup", "server.outside.svc.cluster.local")
		// It wants TLS, and says so to whoever reaches it.
		if s := o.Probe(t, who, "get", "http://"+net.JoinHostPort(api, "443")+"/"); s.Status != http.StatusBadRequest {
			t.Errorf("the API server's Service, from %s: %+v", who, s)
		}
		begun := time.Now()
		if s := o.Probe(t, who, "connect", net.JoinHostPort(nobody, "80")); s.OK || time.Duration(s.Millis)*time.Millisecond > refusedAtOnce {
			t.Errorf("a Service without endpoints, from %s: %+v after %v, want a refusal at once", who, s, time.Since(begun))
		}
	}
	// Both servers answer: what is forwarded is balanced.
	if s := o.Probe(t, "deployment/client", "get", "http://"+net.JoinHostPort(vips[0], "80")+"/who", "-n", "40", "-fresh"); len(s.Answers) != 2 {
		t.Errorf("of two endpoints %d answered: %+v", len(s.Answers), s)
	}
}

func want(t *testing.T, p *shop.Place, who string, args ...string) {
	t.Helper()
	if s := p.Probe(t, who, args...); !s.OK {
		t.Errorf("%v from %s: %+v", args, who, s)
	}
}
