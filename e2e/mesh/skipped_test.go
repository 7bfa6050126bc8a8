package mesh

import (
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/internal/lab"
)

const skipping = `
apiVersion: v1
kind: Namespace
metadata: {name: skips, labels: {heddle.dev/inject: enabled}, annotations: {heddle.dev/skip-inbound-ports: "7000-7001"}}
---
apiVersion: v1
kind: Pod
metadata: {name: half-open, namespace: skips, labels: {app: half-open}}
spec:
  nodeSelector: {kubernetes.io/hostname: node2}
  containers: [{name: app, image: probe, command: ["APPS/probe", "serve", "-http", ":8080", "-echo", ":7000", "-banner", ":7001"]}]
---
apiVersion: v1
kind: Service
metadata: {name: half-open, namespace: skips}
spec: {selector: {app: half-open}, ports: [{name: http, port: 80, targetPort: 8080}, {name: echo, port: 7000}, {name: hello, port: 7001}]}
`

// Ports that a namespace leaves out of its pods' redirects are spoken to in
// plaintext, by Service and by pod IP, and its other ports with identity.
func TestSkippedPorts(t *testing.T) {
	ctx, l := mesh(t)
	if err := l.Write("skips.yaml", skipping); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Remove("skips.yaml") }) // the lab goes next, if it is not there
	err := l.Wait(ctx, "the pod", readyLimit, func(s *lab.Status) bool {
		for _, p := range s.Pods {
			if p.Namespace == "skips" && p.Ready {
				return true
			}
		}
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"half-open.skips", ip(t, "skips", "half-open", false), "[" + ip(t, "skips", "half-open", true) + "]"} {
		web := "http://" + host + ":8080/who"
		if host == "half-open.skips" {
			web = "http://" + host + "/who"
		}
		eventually(ctx, t, web+" answers", func() bool { return probe(t, "client", "get", web).OK })
		if s := must(t, "client", "get", web); !strings.Contains(s.Body, clientID) {
			t.Errorf("%s, which is not skipped, was not told who calls: %q", web, s.Body)
		}
		must(t, "client", "echo", host+":7000")
		must(t, "client", "banner", host+":7001")
	}
}
