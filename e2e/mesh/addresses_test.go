package mesh

import (
	"strings"
	"testing"
)

const clientID = "X-Heddle-Client-Id: spiffe://cluster.local/ns/mesh/sa/client"

// Whatever address a meshed pod is reached by, over either family and on
// either node, the connection carries the caller's identity.
func TestReachedWithIdentity(t *testing.T) {
	for name, url := range map[string]string{
		"Service VIP":          "http://servers/who",
		"Service VIP, IPv6":    "http://[VIP6]/who",
		"port without a hint":  "http://servers:81/who",
		"pod IP, same node":    "http://" + ip(t, "mesh", "server-a", false) + ":8080/who",
		"pod IP, other node":   "http://" + ip(t, "mesh", "server-b", false) + ":8080/who",
		"pod IPv6, same node":  "http://[" + ip(t, "mesh", "server-a", true) + "]:8080/who",
		"pod IPv6, other node": "http://[" + ip(t, "mesh", "server-b", true) + "]:8080/who",
		"headless Service":     "http://headless:8080/who",
		"ExternalName":         "http://alias/who",
		"app on its pod IP":    "http://ip:8080/who",
		"app on ::":            "http://six:8080/who",
		"full name":            "http://servers.mesh.svc.cluster.local/who",
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(url, "VIP6") {
				for _, a := range must(t, "client", "lookup", "servers").Answers {
					if strings.Contains(a, ":") {
						url = strings.Replace(url, "VIP6", a, 1)
					}
				}
			}
			if s := must(t, "client", "get", url); !strings.Contains(s.Body, clientID) {
				t.Errorf("the server was not told who calls: %q", s.Body)
			}
		})
	}
}

// A Service's requests go to all of its endpoints, on both nodes.
func TestBalanced(t *testing.T) {
	s := must(t, "client", "get", "http://servers/who", "-n", "400", "-c", "8")
	if len(s.Answers) != 2 {
		t.Errorf("answers from %v, want both servers", s.Answers)
	}
}

// A pod that calls itself, by its own Service, its own IP or loopback, reaches
// its own program.
func TestSelf(t *testing.T) {
	for name, url := range map[string]string{
		"own Service": "http://self/who",
		"own pod IP":  "http://" + ip(t, "mesh", "client", false) + ":8080/who",
		"own IPv6":    "http://[" + ip(t, "mesh", "client", true) + "]:8080/who",
		"loopback":    "http://127.0.0.1:8080/who",
	} {
		t.Run(name, func(t *testing.T) {
			if s := must(t, "client", "get", url); !strings.HasPrefix(s.Body, "client ") {
				t.Errorf("answered by %q", s.Body)
			}
		})
	}
	must(t, "client", "echo", "self:7000")
}

// What is outside the mesh is spoken to in plaintext, as without us.
func TestOutside(t *testing.T) {
	for name, args := range map[string][]string{
		"unmeshed Service":   {"get", "http://plain.plain:8080/who"},
		"unmeshed pod IP":    {"get", "http://" + ip(t, "plain", "plain-server", false) + ":8080/who"},
		"unmeshed TCP":       {"echo", "plain.plain:7000"},
		"unmeshed banner":    {"banner", "plain.plain:7001"},
		"off-cluster":        {"get", "http://" + outside + ":8080/who"},
		"off-cluster, IPv6":  {"get", "http://[fd00:172:30::200]:8080/who"},
		"off-cluster TCP":    {"echo", outside + ":7000"},
		"off-cluster banner": {"banner", outside + ":7001"},
		"a pod on the node":  {"get", "http://" + ip(t, "mesh", "on-node", false) + ":18080/who"},
	} {
		t.Run(name, func(t *testing.T) {
			if s := must(t, "client", args...); strings.Contains(s.Body, "X-Heddle-Client-Id") {
				t.Errorf("identity told outside the mesh: %q", s.Body)
			}
		})
	}
}

// UDP, DNS and ICMP pass as without us.
func TestUntouched(t *testing.T) {
	server := ip(t, "mesh", "server-b", false)
	must(t, "client", "udp", server+":7004")
	must(t, "client", "ping", server)
	must(t, "client", "ping", ip(t, "mesh", "server-b", true))
	// Neither in the way of a scraper that is in the mesh itself.
	must(t, "client", "get", "http://"+server+":16020/metrics")
	if s := must(t, "client", "lookup", "headless"); len(s.Answers) < 2 {
		t.Errorf("headless Service resolves to %v", s.Answers)
	}
}

// Names of the greatest length work like any others.
func TestLongNames(t *testing.T) {
	s := must(t, "client", "get", "http://"+long63+"."+long63+"/who")
	if !strings.Contains(s.Body, clientID) {
		t.Errorf("answer %q", s.Body)
	}
}

// An endpoint that stands in two slices is one endpoint.
func TestTwoSlices(t *testing.T) {
	ctx, l := mesh(t)
	slice := func(name string) string {
		return `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ` + name + `, namespace: mesh, labels: {kubernetes.io/service-name: twice}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: ["` + ip(t, "mesh", "server-a", false) + `"], conditions: {ready: true}}]`
	}
	err := l.Write("twice.yaml", `
apiVersion: v1
kind: Service
metadata: {name: twice, namespace: mesh}
spec: {ports: [{name: http, port: 80, targetPort: 8080}]}`+slice("twice-one")+slice("twice-two"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Remove("twice.yaml") })
	eventually(ctx, t, "the Service answers", func() bool { return probe(t, "client", "get", "http://twice/who").OK })
	if s := must(t, "client", "get", "http://twice/who", "-n", "10"); !strings.Contains(s.Body, clientID) {
		t.Errorf("answer %q", s.Body)
	}
}

// Dials to a sidecar's own ports are refused, from its own pod and others; a
// program bound to loopback stays out of others' reach.
func TestRefused(t *testing.T) {
	client, server, lo := ip(t, "mesh", "client", false), ip(t, "mesh", "server-b", false), ip(t, "mesh", "lo-bound", false)
	for name, args := range map[string][]string{
		"own outbound port":          {"connect", "127.0.0.1:16001"},
		"own inbound port":           {"connect", client + ":16006"},
		"own inbound port, loopback": {"connect", "127.0.0.1:16006"},
		"own admin port":             {"get", "http://" + client + ":16020/metrics"},
		"own admin port, loopback":   {"get", "http://127.0.0.1:16020/metrics"},
		"others' inbound port":       {"connect", server + ":16006"},
		"others' outbound port":      {"connect", server + ":16001"},
		"others' loopback, HTTP":     {"get", "http://" + lo + ":8080/who"},
		"others' loopback, TCP":      {"connect", lo + ":7000"},
		"Service of a loopback app":  {"connect", "lo:7000"},
		"Service without endpoints":  {"connect", "nobody:7000"},
		"Service's missing port":     {"connect", "servers:4444"},
	} {
		t.Run(name, func(t *testing.T) {
			if s := probe(t, "client", args...); s.OK {
				t.Errorf("%v succeeded: %+v", args, s)
			} else if s.Millis > 9000 {
				t.Errorf("refused only after %d ms: %+v", s.Millis, s)
			}
		})
	}
	must(t, "lo-bound", "get", "http://127.0.0.1:8080/who")
	if s := probe(t, "client", "get", "http://nobody/"); s.Status != 503 || s.Reason != "no_endpoints" {
		t.Errorf("a Service without endpoints answers %+v", s)
	}
}

// A pod whose program runs as the sidecar's user is refused at admission, with
// the reason; a pod on the node's network runs without a sidecar.
func TestAdmission(t *testing.T) {
	_, l := mesh(t)
	ps, err := l.Pods("mesh", "as-sidecar")
	if err != nil || len(ps) == 0 {
		t.Fatalf("%v %v", ps, err)
	}
	if p := ps[0]; p.Ready || !strings.Contains(p.Message, "16000") {
		t.Errorf("pod as the sidecar's user: ready=%v, %q", p.Ready, p.Message)
	}
	if p := pod(t, "mesh", "on-node"); p.Meshed || !p.Ready {
		t.Errorf("pod on the node's network: meshed=%v ready=%v", p.Meshed, p.Ready)
	}
}
