//go:build e2e

// Package source promises: what the control plane knows of a real API server is
// what kubectl shows of it, at once and through the API server's restart;
// tokens, secrets, leases and webhooks work as the door's own tests say.
package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/files"
	"github.com/heddle-mesh/heddle/internal/source/kube"
)

// open runs the door until the test ends.
func open(t *testing.T, c *client.Cluster, only ...string) *kube.Source {
	t.Helper()
	s, err := kube.New(kube.Config{Kubeconfig: filepath.Join(c.Dir(), "kubeconfig"), Only: only, Namespace: space(t),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	until(t, s, time.Minute, "the first snapshot", func(*source.Snapshot) bool { return true })
	return s
}

// space is a test's own namespace.
func space(t *testing.T) string {
	return "e2e-source-" + strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))
}

// prepare makes the test's namespace, which goes with it.
func prepare(t *testing.T) (c *client.Cluster, namespace string) {
	t.Helper()
	c, namespace = client.Connect(t), space(t)
	c.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	t.Cleanup(func() {
		_, _ = c.TryKubectl(context.Background(), "delete", "namespace", namespace, "--wait=false")
	})
	return c, namespace
}

// until waits for a snapshot and gives how long it took.
func until(t *testing.T, s *kube.Source, limit time.Duration, what string, ok func(*source.Snapshot) bool) time.Duration {
	t.Helper()
	began := time.Now()
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		if w := s.Snapshot(); w != nil && ok(w) {
			return time.Since(began)
		}
		select {
		case <-s.Changed():
		case <-end.C:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// TestBothDoors: what kubectl writes of the whole cluster, read as a folder,
// is what the door to the API server has.
func TestBothDoors(t *testing.T) {
	c, namespace := prepare(t)
	c.Apply(t, gated(namespace, "bystander"))
	s := open(t, c)
	c.Eventually(t, time.Minute, "both doors say the same", func(ctx context.Context) error {
		dir := t.TempDir()
		for _, kind := range []string{"namespaces", "nodes", "pods", "services", "serviceaccounts", "endpointslices.discovery.k8s.io", "servicecidrs"} {
			text, err := c.TryKubectl(ctx, "get", kind, "-A", "-o", "yaml")
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, kind+".yaml"), []byte(text), 0o600); err != nil {
				return err
			}
		}
		folder, err := files.Read(dir)
		if err != nil {
			return err
		}
		server := s.Snapshot()
		for name, pair := range map[string][2]any{
			"namespaces": {server.Namespaces, folder.Namespaces}, "nodes": {server.Nodes, folder.Nodes},
			"pods": {server.Pods, folder.Pods}, "services": {server.Services, folder.Services},
			"accounts": {server.ServiceAccounts, folder.ServiceAccounts},
			"slices":   {server.EndpointSlices, folder.EndpointSlices}, "ranges": {server.ServiceCIDRs, folder.ServiceCIDRs},
		} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				return fmt.Errorf("%s differ:\n%+v\n%+v", name, pair[0], pair[1])
			}
		}
		if len(folder.Pods) < 5 || len(folder.Services) < 2 || len(folder.Nodes) < 2 || len(folder.ServiceCIDRs) < 1 {
			return fmt.Errorf("that is no cluster: %d pods, %d services", len(folder.Pods), len(folder.Services))
		}
		return nil
	})
}

// gated is a pod that is never scheduled: it exists, and that is all.
func gated(namespace, name string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s}, spec: {schedulingGates: [{name: heddle.dev/never}], containers: [{name: c, image: none}]}}", name, namespace)
}

// TestChanges: a change is in the snapshot soon after kubectl made it.
func TestChanges(t *testing.T) {
	c, namespace := prepare(t)
	s := open(t, c)
	key := source.Key{Namespace: namespace, Name: "come-and-go"}
	c.Apply(t, gated(namespace, key.Name))
	came := until(t, s, time.Second, "the pod", func(w *source.Snapshot) bool { return w.Pods[key] != nil })
	before := s.Snapshot()
	c.Kubectl(t, "-n", namespace, "label", "pod", key.Name, "app=x")
	changed := until(t, s, time.Second, "its label", func(w *source.Snapshot) bool { return w.Pods[key].Labels["app"] == "x" })
	if w := s.Snapshot(); w.Revision <= before.Revision || before.Pods[key].Labels["app"] != "" || w.Services == nil {
		t.Errorf("revision %d after %d", w.Revision, before.Revision)
	}
	c.Kubectl(t, "-n", namespace, "delete", "pod", key.Name, "--wait=true", "--grace-period=0", "--force")
	went := until(t, s, time.Second, "it is gone", func(w *source.Snapshot) bool { return w.Pods[key] == nil })
	t.Logf("after kubectl returned: came %v, changed %v, went %v", came, changed, went)
}

// TestTokens: a projected token proves its pod, for its audience, while the
// pod is there.
func TestTokens(t *testing.T) {
	c, namespace := prepare(t)
	c.Apply(t, gated(namespace, "bound"))
	s := open(t, c, "Namespace")
	uid := c.Kubectl(t, "-n", namespace, "get", "pod", "bound", "-o", "jsonpath={.metadata.uid}")
	token := func(args ...string) string {
		return strings.TrimSpace(c.Kubectl(t, append([]string{"-n", namespace, "create", "token", "default", "--audience", "heddle.dev/controlplane"}, args...)...))
	}
	bound := token("--bound-object-kind", "Pod", "--bound-object-name", "bound", "--bound-object-uid", uid)
	got, err := s.ReviewToken(t.Context(), bound, "heddle.dev/controlplane")
	if err != nil || got.Namespace != namespace || got.ServiceAccount != "default" || got.PodName != "bound" || got.PodUID != uid || time.Until(got.Expiry) < 30*time.Minute {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.ReviewToken(t.Context(), token(), "heddle.dev/controlplane"); err != nil || got.PodUID != "" || got.ServiceAccount != "default" {
		t.Errorf("bound to no pod: %+v, %v", got, err)
	}
	for what, bad := range map[string][2]string{
		"another audience": {bound, "heddle.dev/other"},
		"changed":          {bound[:len(bound)-4] + "AAAA", "heddle.dev/controlplane"},
		"no token":         {"hello", "heddle.dev/controlplane"},
	} {
		if _, err := s.ReviewToken(t.Context(), bad[0], bad[1]); !errors.Is(err, source.ErrToken) {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.Kubectl(t, "-n", namespace, "delete", "pod", "bound", "--wait=true", "--grace-period=0", "--force")
	c.Eventually(t, 30*time.Second, "the token dies with its pod", func(ctx context.Context) error {
		if _, err := s.ReviewToken(ctx, bound, "heddle.dev/controlplane"); !errors.Is(err, source.ErrToken) {
			return fmt.Errorf("still good: %v", err)
		}
		return nil
	})
}

// TestWrites: secrets with versions, published config maps, events and the CA
// bundle of a webhook, as a real API server takes them.
func TestWrites(t *testing.T) {
	c, namespace := prepare(t)
	s := open(t, c, "Namespace")
	ctx := t.Context()
	if err := s.WriteSecret(ctx, namespace, "s", "", map[string][]byte{"a": {0, 1, 255}, "b": []byte("b")}); err != nil {
		t.Fatal(err)
	}
	data, version, err := s.ReadSecret(ctx, namespace, "s")
	if err != nil || string(data["a"]) != "\x00\x01\xff" {
		t.Errorf("%v, %v", data, err)
	}
	if err := s.WriteSecret(ctx, namespace, "s", "", data); !errors.Is(err, source.ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	if err := s.WriteSecret(ctx, namespace, "s", version, map[string][]byte{"a": []byte("new")}); err != nil {
		t.Error(err)
	}
	if err := s.WriteSecret(ctx, namespace, "s", version, data); !errors.Is(err, source.ErrConflict) {
		t.Errorf("a stale version: %v", err)
	}
	if data, _, err := s.ReadSecret(ctx, namespace, "s"); err != nil || len(data) != 1 || string(data["a"]) != "new" {
		t.Errorf("%v, %v", data, err)
	}
	if _, _, err := s.ReadSecret(ctx, namespace, "none"); !errors.Is(err, source.ErrNotFound) {
		t.Errorf("%v", err)
	}
	for _, text := range []string{"one", "two"} {
		if err := s.Publish(ctx, namespace, "m", map[string]string{"roots.pem": text}); err != nil {
			t.Error(err)
		}
		if got, err := s.Published(ctx, namespace, "m"); err != nil || got["roots.pem"] != text {
			t.Errorf("%v, %v", got, err)
		}
	}
	const hook = "heddle-e2e-source"
	c.Apply(t, `{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: `+hook+`}, webhooks: [
		{name: a.heddle.dev, sideEffects: None, admissionReviewVersions: [v1], failurePolicy: Ignore, clientConfig: {service: {namespace: `+namespace+`, name: none}}, namespaceSelector: {matchLabels: {none: none}}, rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}]}`)
	t.Cleanup(func() {
		_, _ = c.TryKubectl(context.Background(), "delete", "mutatingwebhookconfiguration", hook)
	})
	pem, err := s.Published(ctx, "kube-system", "kube-root-ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetCABundle(ctx, hook, []byte(pem["ca.crt"])); err != nil {
		t.Error(err)
	}
	if got := c.Kubectl(t, "get", "mutatingwebhookconfiguration", hook, "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}"); !strings.HasPrefix(got, "LS0tLS1CRUdJTi") {
		t.Errorf("caBundle %.40q", got)
	}
	s.Event(ctx, source.Ref{Kind: "Namespace", Name: namespace}, "Tested", "an event of a cluster-scoped object")
	c.Apply(t, gated(namespace, "told"))
	for range 3 {
		s.Event(ctx, source.Ref{Kind: "Pod", Namespace: namespace, Name: "told"}, "Tested", "told thrice")
	}
	c.Eventually(t, 10*time.Second, "kubectl describe shows the event", func(ctx context.Context) error {
		text, err := c.TryKubectl(ctx, "-n", namespace, "describe", "pod", "told")
		if err == nil && !(strings.Contains(text, "told thrice") && strings.Contains(text, "x3")) {
			err = errors.New(text)
		}
		return err
	})
}

// TestLead: of two that compete, one leads; when it ends, the other does soon.
func TestLead(t *testing.T) {
	c, _ := prepare(t)
	s := open(t, c, "Namespace")
	leading := make(chan int)
	compete := func(n int) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Lead(ctx, "e2e", func(ctx context.Context) {
				select {
				case leading <- n:
					<-ctx.Done()
				case <-ctx.Done():
				}
			})
		}()
		return func() { cancel(); <-done }
	}
	stops := []func(){compete(0), compete(1)}
	first := <-leading
	select {
	case n := <-leading:
		t.Fatalf("%d leads beside %d", n, first)
	case <-time.After(5 * time.Second):
	}
	stops[first]()
	began := time.Now()
	if n := <-leading; n == first || time.Since(began) > 5*time.Second {
		t.Errorf("%d leads after %v", n, time.Since(began))
	}
	stops[1-first]()
}

// TestCRDComesAndGoes: routes are watched as soon as somebody installs their
// CRD, and are gone with it.
func TestCRDComesAndGoes(t *testing.T) {
	c, namespace := prepare(t)
	if _, err := c.TryKubectl(t.Context(), "get", "crd", crd); err == nil {
		t.Fatalf("%s is installed already; this test would delete it", crd)
	}
	s := open(t, c)
	t.Cleanup(func() { _, _ = c.TryKubectl(context.Background(), "delete", "crd", crd, "--ignore-not-found") })
	c.Apply(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: `+crd+`, annotations: {api-approved.kubernetes.io: "unapproved, a test"}}, spec: {group: gateway.networking.k8s.io, scope: Namespaced,
		names: {kind: TCPRoute, listKind: TCPRouteList, plural: tcproutes, singular: tcproute}, versions: [{name: v1alpha2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}]}}`)
	c.Kubectl(t, "wait", "--for=condition=Established", "crd/"+crd, "--timeout=30s")
	c.Eventually(t, 30*time.Second, "a route can be made", func(ctx context.Context) error {
		return c.TryApply(ctx, "{apiVersion: gateway.networking.k8s.io/v1alpha2, kind: TCPRoute, metadata: {name: r, namespace: "+namespace+"}, spec: {b: 1, a: 2}}")
	})
	took := until(t, s, 15*time.Second, "the route", func(w *source.Snapshot) bool { return len(w.Routes) == 1 })
	for _, r := range s.Snapshot().Routes {
		if string(r.Spec) != `{"a":2,"b":1}` || r.Generation != 1 {
			t.Errorf("%+v", r)
		}
	}
	t.Logf("the route was there after %v", took)
	c.Kubectl(t, "delete", "crd", crd, "--wait=true")
	until(t, s, time.Minute, "no routes", func(w *source.Snapshot) bool { return len(w.Routes) == 0 })
	time.Sleep(15 * time.Second) // the watch ends; nothing is a Problem
	if p := s.Snapshot().Problems; len(p) > 0 {
		t.Errorf("problems %v", p)
	}
}

const crd = "tcproutes.gateway.networking.k8s.io"

// TestRestart: the API server is killed; what is known stays, nothing is
// missed, and nobody notices but the log.
func TestRestart(t *testing.T) {
	c, namespace := prepare(t)
	c.Apply(t, gated(namespace, "stays"))
	s := open(t, c)
	key := source.Key{Namespace: namespace, Name: "stays"}
	until(t, s, time.Second, "the pod", func(w *source.Snapshot) bool { return w.Pods[key] != nil })
	before := s.Snapshot()
	blinks := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // every snapshot meanwhile holds the pod
		defer close(blinks)
		for {
			select {
			case <-s.Changed():
				if w := s.Snapshot(); w.Pods[key] == nil || len(w.Nodes) != len(before.Nodes) || w.Revision < before.Revision {
					blinks <- fmt.Sprintf("revision %d: %d pods, %d nodes", w.Revision, len(w.Pods), len(w.Nodes))
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	node := controlPlaneNode(t, c)
	c.OnNode(t, node, "sh", "-c", "kill -9 $(pidof kube-apiserver)")
	c.Eventually(t, 2*time.Minute, "the API server is back", func(ctx context.Context) error {
		return c.TryApply(ctx, gated(namespace, "new"))
	})
	began := time.Now()
	for s.Snapshot().Pods[source.Key{Namespace: namespace, Name: "new"}] == nil {
		if time.Since(began) > 20*time.Second {
			t.Fatal("what was made after the restart is not seen")
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("seen %v after kubectl could make it", time.Since(began))
	cancel()
	if blink := <-blinks; blink != "" {
		t.Errorf("a blink: %s", blink)
	}
	if after := s.Snapshot().Pods[key]; after != before.Pods[key] {
		t.Error("the pod that did not change has another pointer")
	}
}

func controlPlaneNode(t *testing.T, c *client.Cluster) string {
	t.Helper()
	return strings.TrimSpace(c.Kubectl(t, "get", "nodes", "-l", "node-role.kubernetes.io/control-plane", "-o", "jsonpath={.items[0].metadata.name}"))
}
