package shop

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/desk"
	"github.com/heddle-mesh/heddle/e2e/ledger"
)

// Fault tells one pod's server how to fail (e2e/desk), as "status=503"; empty:
// not at all. The pod is asked on its own loopback, which no mesh touches.
func (p *Place) Fault(t testing.TB, pod, how string) {
	t.Helper()
	if s := p.Probe(t, "pod/"+pod, "get", "http://127.0.0.1:8080/-/fault?"+how); !s.OK {
		t.Fatalf("fault %s at %s: %+v", how, pod, s)
	}
}

// Served asks one pod's server what it saw.
func (p *Place) Served(t testing.TB, pod string) desk.Seen {
	t.Helper()
	var d desk.Seen
	s := p.Probe(t, "pod/"+pod, "get", "http://127.0.0.1:8080/-/seen")
	if err := json.Unmarshal([]byte(s.Body), &d); err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	return d
}

// Metrics are those of a pod's sidecar, as Prometheus would read them.
func (p *Place) Metrics(t testing.TB, pod string) string {
	t.Helper()
	return p.Kubectl(t, "get", "--raw", "/api/v1/namespaces/"+p.Namespace+"/pods/"+pod+":16020/proxy/metrics")
}

// Records are the ends of a load's requests since a time.
func (p *Place) Records(t testing.TB, target string, since time.Time) []ledger.Entry {
	t.Helper()
	out := p.Exec(t, target, "/load", "records", "-since", since.UTC().Format(time.RFC3339Nano))
	all, err := ledger.Read(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Start is when the request of a record began.
func Start(e ledger.Entry) time.Time {
	return e.At.Add(-time.Duration(e.Micros) * time.Microsecond)
}

// Ledgers reads the ledgers of all pods that this place ever had, from all
// nodes.
func (p *Place) Ledgers(t testing.TB) []ledger.Entry {
	t.Helper()
	var all []ledger.Entry
	for _, node := range p.Nodes(t) {
		out := p.OnNode(t, node, "sh", "-c", "for f in "+p.ledger()+"/*.jsonl; do [ ! -e \"$f\" ] || cat \"$f\"; done")
		got, err := ledger.Read(strings.NewReader(out))
		if err != nil {
			t.Fatalf("on %s: %v", node, err)
		}
		all = append(all, got...)
	}
	return all
}

func (p *Place) ledger() string { return ledgers + "/" + p.Namespace }

func (p *Place) clearLedgers(t testing.TB) {
	t.Helper()
	for _, node := range p.Nodes(t) {
		p.OnNode(t, node, "rm", "-rf", p.ledger())
	}
}

// EndLoad ends a place's load and waits until it has taken leave.
func (p *Place) EndLoad(t testing.TB) {
	t.Helper()
	p.Kubectl(t, "-n", p.Namespace, "scale", "deployment/load", "--replicas=0")
	p.Eventually(t, goneLimit, "the load has ended", func(ctx context.Context) error {
		is, err := p.TryKubectl(ctx, "-n", p.Namespace, "get", "pods", "-l", "app=load", "-o", "name")
		if err == nil && strings.TrimSpace(is) != "" {
			err = fmt.Errorf("there is %s", is)
		}
		return err
	})
}

// Pause lets time pass, while a load goes on.
func Pause(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	case <-time.After(d):
	}
}
