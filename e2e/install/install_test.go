//go:build e2e

// Package install promises: `heddle install`, a label on a namespace and a
// restart of its Deployments put a shop into the mesh, with mTLS on every byte
// between its pods, while pods outside the mesh and the nodes reach everything
// as before, and `heddle uninstall` leaves nothing.
package install

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
	"github.com/heddle-mesh/heddle/e2e/observe"
	"github.com/heddle-mesh/heddle/e2e/shop"
)

const (
	// goneLimit is for what uninstall has deleted to be gone: pods have 30 s to
	// end, and what they own is collected after that.
	goneLimit = 90 * time.Second
	// shopping is how long the counted traffic lasts.
	shopping = 5 * time.Second
	// secret is bought and must not be seen.
	secret = "thread-of-gold"
)

func TestInstallLabelRestartUninstall(t *testing.T) {
	c := client.Connect(t)
	if _, err := c.TryKubectl(t.Context(), "get", "namespace", client.Namespace); err == nil {
		c.Heddle(t, "uninstall") // somebody else's; it has to go for a fair look at before
	}
	before := look(t, c)
	begun := time.Now()
	c.Heddle(t, c.InstallArgs()...)
	t.Logf("heddle install: %v", time.Since(begun).Round(time.Millisecond))
	c.EnsureHeddle(t)
	t.Run("shop", func(t *testing.T) { shopJoins(t, c) })
	t.Run("outside", func(t *testing.T) { outside(t, c) })
	if t.Failed() {
		return // with KEEP, what is left is for who looks into it
	}
	begun = time.Now()
	c.Heddle(t, "uninstall")
	t.Logf("heddle uninstall: %v", time.Since(begun).Round(time.Millisecond))
	leaves(t, c, before)
}

// shopJoins takes a shop from outside the mesh into it, counts its packets
// before and after, and once more with a replica that stays outside.
func shopJoins(t *testing.T, c *client.Cluster) {
	eyes := shop.Open(t, c, "eyes", "capture.yaml")
	s := shop.Open(t, c, "shop", "shop.yaml", "ITEM", secret)
	plain := observe.Window{From: time.Now(), Pods: s.Addresses(t)}
	buys(t, s, shopping)
	plain.To = time.Now()

	c.Kubectl(t, "label", "namespace", "shop", "heddle.dev/inject=enabled")
	c.Kubectl(t, "rollout", "restart", "deployment", "-n", "shop")
	s.Ready(t)
	onlyMeshed(t, s)
	meshed := observe.Window{From: time.Now(), Pods: s.Addresses(t)}
	bought := buys(t, s, shopping)
	meshed.To = time.Now()
	identities(t, s)

	// One replica stays outside: the count must say so.
	c.Kubectl(t, "patch", "deployment", "stock", "-n", "shop", "-p", `{"spec":{"template":{"metadata":{"annotations":{"heddle.dev/inject":"disabled"}}}}}`)
	s.Ready(t)
	mixed := observe.Window{From: time.Now(), Pods: s.Addresses(t)}
	buys(t, s, shopping)
	mixed.To = time.Now()

	captures := eyes.Captured(t)
	count := func(what string, w observe.Window) *observe.Tally {
		n, err := observe.Count(secret, w, captures)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d packets inside mesh TLS, %d outside, the secret seen %d times, %d streams, %d of the mesh", what, n.TLSPackets, n.PlainPackets, n.Secrets, n.Streams, n.MeshStreams)
		return n
	}
	if n := count("before", plain); n.PlainPackets == 0 || n.Secrets == 0 || n.MeshStreams != 0 {
		t.Errorf("without a mesh the count must see plaintext: %+v", n)
	}
	if n := count("meshed", meshed); n.PlainPackets != 0 || n.Secrets != 0 || n.MeshStreams == 0 || n.TLSPackets < 2*bought {
		t.Errorf("not all is inside mesh TLS, or less than %d purchases need; the first plain: %s, the first secret: %s; %+v", bought, n.FirstPlain, n.FirstSecret, n)
	}
	if n := count("with stock outside", mixed); n.PlainPackets == 0 || n.Secrets == 0 {
		t.Errorf("stock is outside the mesh and the count does not see it: %+v", n)
	}
}

// purchase is a line of the shopper's log.
type purchase struct {
	Start       time.Time
	Err, Reason string
}

// buys lets the shopper buy for a while and wants all of it to succeed.
func buys(t *testing.T, s *shop.Place, during time.Duration) int {
	t.Helper()
	from := time.Now()
	shop.Pause(t, during)
	n := 0
	for line := range strings.Lines(s.Kubectl(t, "-n", s.Namespace, "logs", "deployment/shopper", "-c", "shopper", "--since-time="+from.UTC().Format(time.RFC3339))) {
		var p purchase
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatalf("the shopper says %q: %v", line, err)
		}
		if p.Start.Before(from) {
			continue
		}
		n++
		if p.Err != "" {
			t.Errorf("a purchase at %v failed: %s %s", p.Start.Format("15:04:05.000"), p.Err, p.Reason)
		}
	}
	if want := int(during/time.Second) * 10; n < want { // half of the shopper's rate
		t.Errorf("%d purchases in %v, want %d at least", n, during, want)
	}
	return n
}

// onlyMeshed wants every pod of the shop to have its sidecar.
func onlyMeshed(t *testing.T, s *shop.Place) {
	t.Helper()
	s.Eventually(t, goneLimit, "every pod of the shop is meshed", func(ctx ctx) error {
		out, err := s.TryKubectl(ctx, "-n", s.Namespace, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.initContainers[*].name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
		if err != nil {
			return err
		}
		pods := lines(out)
		for _, pod := range pods {
			if f := strings.Fields(pod); len(f) != 4 || f[1] != "heddle-init" || f[2] != "heddle-sidecar" || f[3] != "True" {
				return fmt.Errorf("pod %s", pod)
			}
		}
		if len(pods) != 7 {
			return fmt.Errorf("%d pods, want 7: %v", len(pods), pods)
		}
		return nil
	})
}

// identities wants the sidecars of orders to name web as their caller.
func identities(t *testing.T, s *shop.Place) {
	t.Helper()
	for _, want := range []struct{ app, metric, peer string }{
		{"web", "heddle_requests_total", "ns/shop/sa/shopper"},
		{"orders", "heddle_requests_total", "ns/shop/sa/web"},
		{"stock", "heddle_tcp_connections_total", "ns/shop/sa/orders"},
	} {
		found := false
		for _, pod := range s.Pods(t, want.app) {
			for line := range strings.Lines(s.Metrics(t, pod)) {
				found = found || strings.HasPrefix(line, want.metric) && strings.Contains(line, `direction="inbound"`) && strings.Contains(line, want.peer)
			}
		}
		if !found {
			t.Errorf("no sidecar of %s counted a call by %s", want.app, want.peer)
		}
	}
}
