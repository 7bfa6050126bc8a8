package mesh

import (
	"strings"
	"testing"
)

// internalTrafficPolicy Local binds the ClusterIP only: by the Service's
// external address, pods of the mesh reach the endpoints of all nodes.
func TestInternalTrafficPolicyLocal(t *testing.T) {
	ctx, l := mesh(t)
	err := l.Write("local.yaml", `
apiVersion: v1
kind: Service
metadata: {name: local, namespace: mesh}
spec:
  selector: {app: server, one: b}
  internalTrafficPolicy: Local
  externalIPs: [203.0.113.9]
  ports: [{name: http, port: 80, targetPort: 8080}]
`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Remove("local.yaml") }) // the lab goes next, if it is not there
	eventually(ctx, t, "the pod on the endpoint's node reaches the ClusterIP", func() bool { return probe(t, "server-b", "get", "http://local/who").OK })
	if s := probe(t, "client", "get", "http://local/who"); s.Status != 503 || s.Reason != "no_local_endpoints" {
		t.Errorf("from the other node by ClusterIP: %+v", s)
	}
	if s := must(t, "client", "get", "http://203.0.113.9/who"); !strings.Contains(s.Body, clientID) {
		t.Errorf("from the other node by external address, without identity: %q", s.Body)
	}
}
