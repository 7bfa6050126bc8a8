package apiserver

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
	"github.com/heddle-mesh/heddle/internal/source"
)

const somePolicy = "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: p, namespace: shop}\nspec: {rules: [{action: allow}]}\n"

func TestWriteStatus(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		s.Apply(t, somePolicy)
		k, _ := Find("AccessPolicy")
		ref := source.Ref{Kind: "AccessPolicy", Namespace: "shop", Name: "p"}
		write := func(status, message string, generation int64) map[string]any {
			t.Helper()
			err := c.WriteStatus(t.Context(), k, ref, []source.Condition{{Type: "Accepted", Status: status, Reason: "R", Message: message, ObservedGeneration: generation}})
			if err != nil {
				t.Fatal(err)
			}
			return s.Get("accesspolicies", "shop", "p")
		}
		o := write("True", "in force", 0)
		first := field(o, "status.conditions.0.lastTransitionTime")
		if first != "2000-01-01T00:00:00Z" || field(o, "status.conditions.0.observedGeneration") != 1.0 || field(o, "status.conditions.0.message") != "in force" || field(o, "metadata.generation") != 1.0 {
			t.Errorf("%v", o)
		}
		version := field(o, "metadata.resourceVersion")
		time.Sleep(time.Hour)
		if o = write("True", "in force", 0); field(o, "metadata.resourceVersion") != version {
			t.Error("the same status was written again")
		}
		if o = write("True", "in force still", 7); field(o, "status.conditions.0.lastTransitionTime") != first || field(o, "status.conditions.0.observedGeneration") != 7.0 {
			t.Errorf("%v", o)
		}
		if o = write("False", strings.Repeat("x", maxMessage+1), 7); field(o, "status.conditions.0.lastTransitionTime") != "2000-01-01T01:00:00Z" || len(field(o, "status.conditions.0.message").(string)) != maxMessage {
			t.Errorf("%v", field(o, "status.conditions.0.lastTransitionTime"))
		}
		if field(o, "spec.rules.0.action") != "allow" {
			t.Errorf("the spec changed: %v", o)
		}
		ref.Name = "none"
		if err := c.WriteStatus(t.Context(), k, ref, nil); !errors.Is(err, source.ErrNotFound) || !strings.Contains(err.Error(), "AccessPolicy shop/none") {
			t.Errorf("error %v", err)
		}
	})
}

// Somebody writes the object between our read and our write.
func TestWriteStatusConflict(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		s.Apply(t, somePolicy)
		meddling := writeTries - 1
		s.Delay(func(r *http.Request) {
			if r.Method == http.MethodPatch && meddling > 0 {
				meddling--
				s.Apply(t, strings.Replace(somePolicy, "namespace: shop", "namespace: shop, labels: {key: \""+strings.Repeat("x", meddling+1)+"\"}", 1))
			}
		})
		k, _ := Find("AccessPolicy")
		ref := source.Ref{Kind: "AccessPolicy", Namespace: "shop", Name: "p"}
		conditions := []source.Condition{{Type: "Accepted", Status: "True", Reason: "R"}}
		if err := c.WriteStatus(t.Context(), k, ref, conditions); err != nil {
			t.Fatal(err)
		}
		if o := s.Get("accesspolicies", "shop", "p"); field(o, "status.conditions.0.type") != "Accepted" || field(o, "metadata.labels.key") != "x" {
			t.Errorf("%v", o)
		}
		meddling = 1000
		conditions[0].Status = "False"
		if err := c.WriteStatus(t.Context(), k, ref, conditions); !errors.Is(err, source.ErrConflict) {
			t.Errorf("error %v", err)
		}
	})
}

func TestSecrets(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		ctx := t.Context()
		if _, v, err := c.ReadSecret(ctx, "n", "s"); !errors.Is(err, source.ErrNotFound) || v != "" {
			t.Errorf("%q, %v", v, err)
		}
		if err := c.WriteSecret(ctx, "n", "s", "", map[string][]byte{"a": []byte("one"), "b": {0, 255}}); err != nil {
			t.Fatal(err)
		}
		if err := c.WriteSecret(ctx, "n", "s", "", nil); !errors.Is(err, source.ErrConflict) {
			t.Errorf("made twice: %v", err)
		}
		data, v, err := c.ReadSecret(ctx, "n", "s")
		if err != nil || string(data["a"]) != "one" || !bytes.Equal(data["b"], []byte{0, 255}) || v == "" {
			t.Errorf("%v %q %v", data, v, err)
		}
		if err := c.WriteSecret(ctx, "n", "s", v, map[string][]byte{"c": []byte("two")}); err != nil {
			t.Fatal(err)
		}
		if err := c.WriteSecret(ctx, "n", "s", v, map[string][]byte{"c": []byte("three")}); !errors.Is(err, source.ErrConflict) {
			t.Errorf("stale: %v", err)
		}
		if data, _, _ := c.ReadSecret(ctx, "n", "s"); len(data) != 1 || string(data["c"]) != "two" {
			t.Errorf("%v", data)
		}
		s.Delete("secrets", "n", "s")
		if err := c.WriteSecret(ctx, "n", "s", v, nil); !errors.Is(err, source.ErrConflict) {
			t.Errorf("deleted: %v", err)
		}
		s.Refuse("secrets", 403)
		if err := c.WriteSecret(ctx, "n", "s", "", nil); err == nil || errors.Is(err, source.ErrConflict) || !strings.Contains(err.Error(), "write secret n/s") {
			t.Errorf("forbidden: %v", err)
		}
	})
}

func TestPublish(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		ctx := t.Context()
		if _, err := c.Published(ctx, "n", "m"); !errors.Is(err, source.ErrNotFound) {
			t.Errorf("%v", err)
		}
		for _, text := range []string{"one", "one", "two"} {
			if err := c.Publish(ctx, "n", "m", map[string]string{"k": text}); err != nil {
				t.Fatal(err)
			}
			if got, err := c.Published(ctx, "n", "m"); err != nil || got["k"] != text || len(got) != 1 {
				t.Errorf("%v, %v", got, err)
			}
		}
		before := s.Get("configmaps", "n", "m")
		if err := c.Publish(ctx, "n", "m", map[string]string{"k": "two"}); err != nil || field(s.Get("configmaps", "n", "m"), "metadata.resourceVersion") != field(before, "metadata.resourceVersion") {
			t.Errorf("written again though the same (%v)", err)
		}
		// Two that begin at once: both get through.
		var all sync.WaitGroup
		for _, text := range []string{"a", "b"} {
			all.Go(func() {
				if err := c.Publish(ctx, "n", "new", map[string]string{"k": text}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

func TestSetCABundle(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		s.Apply(t, "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\nmetadata: {name: h}\nwebhooks: [{name: a, clientConfig: {caBundle: b2xk}}, {name: b, clientConfig: {service: {name: x}}}]\n")
		pem := []byte("-----BEGIN CERTIFICATE-----")
		for range 2 {
			if err := c.SetCABundle(t.Context(), "h", pem); err != nil {
				t.Fatal(err)
			}
		}
		hooks := s.Get("mutatingwebhookconfigurations", "", "h")["webhooks"].([]any)
		for _, h := range hooks {
			if got := field(h.(map[string]any), "clientConfig.caBundle"); got != "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t" {
				t.Errorf("%v", got)
			}
		}
		if field(hooks[1].(map[string]any), "clientConfig.service.name") != "x" {
			t.Errorf("%v", hooks)
		}
		if err := c.SetCABundle(t.Context(), "none", pem); !errors.Is(err, source.ErrNotFound) {
			t.Errorf("%v", err)
		}
	})
}

func TestEvents(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { c.WriteEvents(ctx) })
		defer all.Wait()
		defer cancel()
		s.Apply(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop, uid: u-7}\n")
		pod := source.Ref{Kind: "Pod", Namespace: "shop", Name: "p"}
		for range 5 {
			c.Event(ctx, pod, "CaptureLost", "its redirect is gone")
			time.Sleep(time.Minute)
		}
		c.Event(ctx, source.Ref{Kind: "MeshConfig", Name: "default"}, "Bad", strings.Repeat("x", 2*maxNote))
		time.Sleep(time.Second)
		events := s.All("events")
		if len(events) != 2 {
			t.Fatalf("%d events: %v", len(events), events)
		}
		mesh, e := events[0], events[1]
		if field(e, "count") != 5.0 || field(e, "involvedObject.uid") != "u-7" || field(e, "reason") != "CaptureLost" || field(e, "lastTimestamp") != "2000-01-01T00:04:00Z" || field(e, "firstTimestamp") != "2000-01-01T00:00:00Z" {
			t.Errorf("%v", e)
		}
		if field(mesh, "metadata.namespace") != "default" || len(field(mesh, "message").(string)) != maxNote {
			t.Errorf("%v", mesh)
		}
		// More than can be written are dropped, and nobody waits.
		s.Down()
		for range 10 * eventQueue {
			c.Event(ctx, pod, "Flood", "x")
		}
		s.Up()
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}
