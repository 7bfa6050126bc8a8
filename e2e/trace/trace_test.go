//go:build e2e

// Package trace promises: one purchase in the shop is one trace in the real
// Jaeger, read back through its query API, with a span of each side of each
// call under the right service and the right parent, and with the retry of a
// failed call as a span of its own.
package trace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
	"github.com/heddle-mesh/heddle/e2e/shop"
)

const (
	// collected is for spans to reach Jaeger: they wait a second for others.
	collected = 20 * time.Second
	item      = "thread-to-follow"
)

// what a user says: trace everything, there.
const settings = `apiVersion: heddle.dev/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec:
  traceSampling: 1
  traceCollector: jaeger.jaeger.svc.cluster.local:4317
---
apiVersion: heddle.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: orders, namespace: traced}
spec:
  targetRefs: [{name: orders}]
  retry: {attempts: 2, when: [5xx]}
`

func TestPurchaseInJaeger(t *testing.T) {
	c := client.Connect(t)
	c.EnsureHeddle(t)
	jaeger := shop.Open(t, c, "jaeger", "jaeger.yaml", "REFERENCE", c.Image("jaeger"))
	s := shop.Open(t, c, "traced", "traced.yaml")
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.TryKubectl(context.WithoutCancel(t.Context()), "delete", "meshconfig", "default"); err != nil {
			t.Error(err)
		}
	})
	c.Heddle(t, "policy", "apply", "-f", file)
	shop.Pause(t, 2*time.Second) // it is in force within a second

	for _, pod := range s.Pods(t, "orders") {
		s.Fault(t, pod, "status=503&n=1")
	}
	// One of the two replicas of orders fails it, and the other may too.
	if got := s.Probe(t, "deployment/shopper", "get", "http://web:8080/buy/"+item); !got.OK || !strings.Contains(got.Body, item) {
		t.Fatalf("the purchase: %+v", got)
	}
	c.Eventually(t, collected, "the purchase's trace is in Jaeger", func(ctx context.Context) error {
		raw, err := jaeger.TryKubectl(ctx, "get", "--raw", "/api/v1/namespaces/jaeger/services/http:jaeger:http-query/proxy/api/traces?service=shopper&limit=50&lookback=1h")
		if err != nil {
			return err
		}
		all, err := read(raw)
		if err != nil {
			return err
		}
		err = errors.New("no trace has a span of the purchase's path")
		for _, tr := range all {
			if tr.has(item) {
				if err = tr.judge(); err == nil {
					t.Log(tr)
					return nil
				}
				err = fmt.Errorf("%w\n%v", err, tr)
			}
		}
		return err
	})
}

// trace is what Jaeger tells of one.
type trace struct {
	Spans     []span
	Processes map[string]struct{ ServiceName string }
}

type span struct {
	TraceID, SpanID, OperationName, ProcessID string
	References                                []struct{ RefType, SpanID string }
	StartTime, Duration                       int64 // microseconds
	Tags                                      []struct {
		Key   string
		Value any
	}
}

func read(raw string) ([]trace, error) {
	var answer struct{ Data []trace }
	if err := json.Unmarshal([]byte(raw), &answer); err != nil {
		return nil, fmt.Errorf("jaeger says %.200q: %w", raw, err)
	}
	return answer.Data, nil
}

func (s span) tag(key string) string {
	for _, t := range s.Tags {
		if t.Key == key {
			return fmt.Sprint(t.Value)
		}
	}
	return ""
}

func (s span) parent() string {
	for _, r := range s.References {
		if r.RefType == "CHILD_OF" {
			return r.SpanID
		}
	}
	return ""
}

func (tr trace) has(word string) bool {
	for _, s := range tr.Spans {
		if strings.Contains(s.tag("url.path"), word) {
			return true
		}
	}
	return false
}

// String is the tree, for people.
func (tr trace) String() string {
	var b strings.Builder
	var under func(parent, indent string)
	under = func(parent, indent string) {
		for _, s := range tr.Spans {
			if s.parent() == parent {
				fmt.Fprintf(&b, "%s%s %s %s %s status %s attempt %q retry of %q %dµs\n", indent, tr.service(s), s.tag("span.kind"), s.OperationName, s.tag("url.path"),
					s.tag("http.response.status_code"), s.tag("heddle.attempt"), s.tag("heddle.retry"), s.Duration)
				under(s.SpanID, indent+"  ")
			}
		}
	}
	under("", "")
	return fmt.Sprintf("%d spans\n%s", len(tr.Spans), b.String())
}

func (tr trace) service(s span) string { return tr.Processes[s.ProcessID].ServiceName }

// find gives the spans of a service and kind under a parent.
func (tr trace) find(service, kind, parent string) (out []span) {
	for _, s := range tr.Spans {
		if tr.service(s) == service && s.tag("span.kind") == kind && s.parent() == parent {
			out = append(out, s)
		}
	}
	return out
}

// judge walks down the purchase: shopper, web, orders with its retries, stock.
func (tr trace) judge() error {
	one := func(service, kind string, parent span) (span, error) {
		got := tr.find(service, kind, parent.SpanID)
		if len(got) != 1 {
			return span{}, fmt.Errorf("%d %s spans of %s under %s, want 1", len(got), kind, service, tr.service(parent)+" "+parent.tag("span.kind"))
		}
		return got[0], nil
	}
	at, err := one("shopper", "client", span{})
	if err != nil {
		return err
	}
	if at, err = one("web", "server", at); err != nil {
		return err
	}
	tries := tr.find("web", "client", at.SpanID)
	if len(tries) < 2 || len(tries) > 3 {
		return fmt.Errorf("web called orders %d times, want 2 or 3: each attempt is a span", len(tries))
	}
	spans := 2
	for _, try := range tries {
		served, err := one("orders", "server", try)
		if err != nil {
			return err
		}
		n, want := try.tag("heddle.attempt"), "503"
		if n == fmt.Sprint(len(tries)) {
			want = "200"
		}
		for _, side := range []span{try, served} {
			if got := side.tag("http.response.status_code"); got != want {
				return fmt.Errorf("attempt %s of %d: %s says status %s, want %s", n, len(tries), side.tag("span.kind"), got, want)
			}
		}
		if (n == "1") != (try.tag("heddle.retry") == "") || n == "" {
			return fmt.Errorf("attempt %q says retry of %q", n, try.tag("heddle.retry"))
		}
		spans += 2
		if want == "503" {
			continue
		}
		asks, err := one("orders", "client", served)
		if err != nil {
			return err
		}
		if _, err := one("stock", "server", asks); err != nil {
			return err
		}
		spans += 2
	}
	if len(tr.Spans) != spans {
		return fmt.Errorf("%d spans, want %d", len(tr.Spans), spans)
	}
	return nil
}
