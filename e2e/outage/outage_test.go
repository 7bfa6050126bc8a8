//go:build e2e

// Package outage promises: with the control plane killed for two minutes,
// under load and while servers are restarted, nothing is lost except news:
// pods in the mesh and outside it go on, a node agent that restarts keeps its
// rules, new pods wait for an identity; and news comes soon after it is back.
package outage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
	"github.com/heddle-mesh/heddle/e2e/ledger"
	"github.com/heddle-mesh/heddle/e2e/shop"
)

const (
	// out is how long the control plane is away, at least.
	out = 2 * time.Minute
	// back is for its replica to start and take the lead.
	back = time.Minute
	// news is how long what was written meanwhile may take once it is ready:
	// sidecars try again with growing pauses of a few seconds.
	news = 20 * time.Second
	// restart is for a pod to start again, on a busy machine.
	restart = 90 * time.Second

	tills, rate = 3, 40
)

func TestControlPlaneKilledForTwoMinutes(t *testing.T) {
	c := client.Connect(t)
	c.EnsureHeddle(t)
	in := shop.Open(t, c, "outage", "till.yaml", "INJECT", "enabled", "URL", "http://till:8080", "TILLS", fmt.Sprint(tills), "LOADS", "1", "RATE", fmt.Sprint(rate))
	in.Add(t, "reader.yaml")
	in.Ready(t)
	if s := in.Probe(t, "deployment/reader", "get", "http://till:8080/pay"); !s.OK { // so that it knows the address
		t.Fatalf("the reader, before the outage: %+v", s)
	}
	outside := shop.Open(t, c, "outage-plain", "till.yaml", "INJECT", "disabled", "URL", "http://till:8080", "TILLS", "2", "LOADS", "1", "RATE", fmt.Sprint(rate))

	replicas := strings.TrimSpace(c.Kubectl(t, "-n", client.Namespace, "get", "deployment", "heddle-controlplane", "-o", "jsonpath={.spec.replicas}"))
	comeBack := func(ctx context.Context) error {
		_, err := c.TryKubectl(ctx, "-n", client.Namespace, "scale", "deployment/heddle-controlplane", "--replicas="+replicas)
		return err
	}
	t.Cleanup(func() { // whatever happens in between
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), back)
		defer cancel()
		if err := comeBack(ctx); err != nil {
			t.Error(err)
		}
	})
	c.Kubectl(t, "-n", client.Namespace, "scale", "deployment/heddle-controlplane", "--replicas=0")
	c.Kubectl(t, "-n", client.Namespace, "delete", "pods", "-l", "app.kubernetes.io/name=heddle-controlplane", "--grace-period=0", "--force")
	away := time.Now()

	meanwhile(t, c, in)

	shop.Pause(t, time.Until(away.Add(out)))
	if pods := controlPlane(t, c); pods != "" {
		t.Fatalf("the control plane was not away: %s", pods)
	}
	if err := comeBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "-n", client.Namespace, "rollout", "status", "deployment/heddle-controlplane", "--timeout="+back.String())
	ready := time.Now()
	t.Logf("the control plane was away for %v", ready.Sub(away).Round(time.Second))
	c.Eventually(t, news, "what was written meanwhile is in force", func(ctx context.Context) error {
		s, err := in.TryProbe(ctx, "deployment/reader", "get", "http://till:8080/pay")
		if err == nil && s.Status != 403 {
			err = fmt.Errorf("the reader gets %d", s.Status)
		}
		return err
	})
	t.Logf("news came %v after the control plane was ready", time.Since(ready).Round(100*time.Millisecond))
	in.Ready(t) // the restart that waited for identities goes on and ends
	shop.Pause(t, 2*time.Second)

	for _, p := range []*shop.Place{in, outside} {
		p.EndLoad(t)
		v := ledger.Compare(p.Ledgers(t))
		t.Logf("%s: %d requests in %v, %d good, %d servers", p.Namespace, v.Begun, v.Took.Round(time.Second), v.Good, len(v.Servers))
		if err := v.Err(); err != nil {
			t.Errorf("%s: %v", p.Namespace, err)
		}
		if v.Took < out || v.Begun < int(v.Took.Seconds()*rate*0.5) {
			t.Errorf("%s: %d requests in %v: the load was not steady", p.Namespace, v.Begun, v.Took)
		}
		if want := map[bool]int{true: 2 * tills, false: 2}[p == in]; len(v.Servers) < want {
			t.Errorf("%s: %d servers took part, want %d", p.Namespace, len(v.Servers), want)
		}
	}
}

// meanwhile is what happens while nobody gives news.
func meanwhile(t *testing.T, c *client.Cluster, in *shop.Place) {
	old := in.Pods(t, "till")
	c.Kubectl(t, "-n", "outage", "rollout", "restart", "deployment/till")
	c.Apply(t, `apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: no-reader, namespace: outage}
spec:
  selector: {app: till}
  rules:
  - {action: deny, from: [{identities: ["spiffe://cluster.local/ns/outage/sa/reader"]}]}
  - {action: allow}
`)
	nodeAgentRestarts(t, c)
	injectorDown(t, c)
	if s := in.Probe(t, "deployment/reader", "get", "http://till:8080/pay"); s.Status != 200 {
		t.Errorf("the reader gets %d %s %s: news without a control plane, or an error", s.Status, s.Reason, s.Err)
	}
	// The new pod has no identity and waits; every old one serves.
	ready := c.Kubectl(t, "-n", "outage", "get", "pods", "-l", "app=till", "-o",
		`go-template={{range .items}}{{$name := .metadata.name}}{{range .status.conditions}}{{if and (eq .type "Ready") (eq .status "True")}}{{$name}} {{end}}{{end}}{{end}}`)
	for _, pod := range old {
		if !strings.Contains(ready, pod) {
			t.Errorf("%s is not ready, of %v: ready are %s", pod, old, ready)
		}
	}
	t.Logf("while the control plane is away, of %v ready are %s", in.Pods(t, "till"), ready)
	if all := in.Pods(t, "till"); len(all) == len(old) || len(strings.Fields(ready)) != len(old) {
		t.Errorf("pods %v, ready %s: want one more that is not ready", all, ready)
	}
}

// nodeAgentRestarts: from what it keeps on its node, without a moment in which
// the rules are gone, which the load outside the mesh would see.
func nodeAgentRestarts(t *testing.T, c *client.Cluster) {
	node := c.Nodes(t)[1]
	args := []string{"-n", client.Namespace, "get", "pods", "-l", "app.kubernetes.io/name=heddle-node", "--field-selector=spec.nodeName=" + node, "-o", "name"}
	was := strings.TrimSpace(c.Kubectl(t, args...))
	c.Kubectl(t, "-n", client.Namespace, "delete", was, "--timeout="+restart.String())
	c.Eventually(t, restart, "the node agent is ready again", func(ctx context.Context) error {
		is, err := c.TryKubectl(ctx, args...)
		if err != nil {
			return err
		}
		if is = strings.TrimSpace(is); is == "" || is == was {
			return fmt.Errorf("pods of the node agent: %q", is)
		}
		_, err = c.TryKubectl(ctx, "-n", client.Namespace, "wait", "--for=condition=Ready", is, "--timeout=5s")
		return err
	})
}

// injectorDown: a pod of a labelled namespace is refused, other pods are not
// concerned.
func injectorDown(t *testing.T, c *client.Cluster) {
	replicas := strings.TrimSpace(c.Kubectl(t, "-n", client.Namespace, "get", "deployment", "heddle-injector", "-o", "jsonpath={.spec.replicas}"))
	c.Kubectl(t, "-n", client.Namespace, "scale", "deployment/heddle-injector", "--replicas=0")
	defer func() {
		c.Kubectl(t, "-n", client.Namespace, "scale", "deployment/heddle-injector", "--replicas="+replicas)
		c.Kubectl(t, "-n", client.Namespace, "rollout", "status", "deployment/heddle-injector", "--timeout="+restart.String())
	}()
	c.Eventually(t, restart, "the injector is gone", func(ctx context.Context) error {
		is, err := c.TryKubectl(ctx, "-n", client.Namespace, "get", "pods", "-l", "app.kubernetes.io/name=heddle-injector", "-o", "name")
		if err == nil && strings.TrimSpace(is) != "" {
			err = fmt.Errorf("there is %s", is)
		}
		return err
	})
	pod := func(namespace string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: unseen, namespace: %s}\nspec: {terminationGracePeriodSeconds: 0, containers: [{name: unseen, image: %s, command: [/probe, serve, -http, ':8080']}]}\n", namespace, c.Image("e2e-apps"))
	}
	if err := c.TryApply(t.Context(), pod("outage")); err == nil || !strings.Contains(err.Error(), "heddle") {
		t.Errorf("a pod of a labelled namespace without an injector: %v, want a refusal that names the webhook", err)
	}
	for _, namespace := range []string{"kube-system", "outage-plain", client.Namespace} {
		if err := c.TryApply(t.Context(), pod(namespace)); err != nil {
			t.Errorf("a pod of %s does not need the injector: %v", namespace, err)
			continue
		}
		c.Kubectl(t, "-n", namespace, "delete", "pod", "unseen")
	}
}

func controlPlane(t *testing.T, c *client.Cluster) string {
	t.Helper()
	return strings.TrimSpace(c.Kubectl(t, "-n", client.Namespace, "get", "pods", "-l", "app.kubernetes.io/name=heddle-controlplane", "-o", "name"))
}
