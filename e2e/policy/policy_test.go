//go:build e2e

// Package policy promises: what `heddle policy apply` says is in force within
// a second of the command's end. A failing endpoint is retried, so that its
// callers see nothing, and ejected, so that it gets nothing once it has failed
// again; a breaker sheds, a
// deny refuses and strict mode takes no plaintext, each with its reason.
package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/client"
	"github.com/heddle-mesh/heddle/e2e/ledger"
	"github.com/heddle-mesh/heddle/e2e/shop"
)

const (
	// inForce is the promise.
	inForce = time.Second
	// settled is how long after a change the load is looked at: the second
	// that it may take, and two in which it has to hold.
	settled = 3 * time.Second
	// avoided is how long balancing alone leaves a failing endpoint out (10 s at
	// most), and one more.
	avoided = 11 * time.Second
	// waiting is how long a sidecar waits for a client's first word at most.
	waiting = 11 * time.Second
	// rate of each load; a change is measured to 1/rate.
	rate = 60
)

// scene is a till with three replicas and two loads: one in the mesh and, from
// its first word on, one outside.
type scene struct {
	*shop.Place
	strangers *shop.Place
}

const meshed, stranger = "load in the mesh", "load outside"

func TestPolicyByCLI(t *testing.T) {
	c := client.Connect(t)
	c.EnsureHeddle(t)
	url := "http://till.policed:8080"
	s := &scene{Place: shop.Open(t, c, "policed", "till.yaml", "INJECT", "enabled", "TILLS", "3", "LOADS", "1", "RATE", fmt.Sprint(rate), "URL", url)}
	s.Add(t, "reader.yaml")
	s.Ready(t)
	s.all(t, time.Now(), meshed, "is answered", answered)
	t.Run("retry and ejection", s.retryAndEjection)
	t.Run("breaker", s.breaker)
	t.Run("deny", s.deny)
	s.strangers = shop.Open(t, c, "strangers", "till.yaml", "INJECT", "disabled", "TILLS", "0", "LOADS", "1", "RATE", fmt.Sprint(rate), "URL", url)
	s.all(t, time.Now(), stranger, "is answered", answered)
	t.Run("strict", s.strict)
	t.Run("mistake", s.mistake)
}

func answered(e ledger.Entry) bool { return e.Status == 200 }

func refused(status int, reason string) func(ledger.Entry) bool {
	return func(e ledger.Entry) bool { return e.Status == status && e.Reason == reason }
}

const traffic = `apiVersion: heddle.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: till, namespace: policed}
spec:
  targetRefs: [{name: till}]
`

// retryAndEjection: one of three replicas answers 503 to everything. Without a
// policy it costs its callers a request now and then, since balancing avoids
// what fails, for ten seconds at most; ejected, it gets none for longer.
func (s *scene) retryAndEjection(t *testing.T) {
	broken := s.Pods(t, "till")[0]
	now := time.Now()
	s.Fault(t, broken, "status=503")
	defer s.Fault(t, broken, "")
	s.Eventually(t, 3*avoided, "the failing replica is tried", func(context.Context) error {
		if s.Served(t, broken).Failed == 0 {
			return errors.New("it has failed no request yet")
		}
		return nil
	})
	s.some(t, now, 3*avoided+settled, "shows the failing replica", refused(503, ""))

	const retry = "  retry: {attempts: 2, when: [5xx], methods: [GET, POST], backoff: {base: 5ms, max: 20ms}, budget: {ratio: 0.5, minPerSecond: 20}}\n"
	now = s.apply(t, traffic+retry)
	before := s.Served(t, broken)
	s.Eventually(t, 3*avoided, "the failing replica is tried once more, and its failure retried", func(context.Context) error {
		if is := s.Served(t, broken); is.Failed == before.Failed {
			return fmt.Errorf("it has failed %d requests, as before", is.Failed)
		}
		return nil
	})
	s.all(t, now, meshed, "is retried", answered)

	now = s.apply(t, traffic+retry+"  outlierEjection: {consecutiveFailures: 1, baseEjection: 60s, maxEjection: 300s, maxEjectedPercent: 50}\n")
	s.Eventually(t, 3*avoided, "the failing replica is ejected: it gets no request for longer than balancing alone avoids it", func(context.Context) error {
		if left := avoided - time.Since(s.Served(t, broken).Last); left > 0 {
			return fmt.Errorf("its last request is not old enough by %v", left)
		}
		return nil
	})
	s.all(t, now, meshed, "is answered during the ejection", answered)
	t.Logf("the failing replica's last request came %v after the command", s.Served(t, broken).Last.Sub(now).Round(time.Millisecond))
	s.remove(t, "trafficpolicy", "till")
}

// breaker: all replicas are slow, and more than a few at once are shed.
func (s *scene) breaker(t *testing.T) {
	for _, pod := range s.Pods(t, "till") {
		s.Fault(t, pod, "delay=400ms")
		defer s.Fault(t, pod, "")
	}
	now := time.Now()
	s.all(t, now, meshed, "is answered slowly", answered)
	now = s.apply(t, traffic+"  circuitBreaker: {maxConnections: 4, maxPending: 2, maxRequests: 6}\n")
	s.some(t, now, inForce, "is shed", refused(503, "circuit_open"))
	s.all(t, now, meshed, "is answered or shed", func(e ledger.Entry) bool { return answered(e) || refused(503, "circuit_open")(e) })
	s.some(t, now, inForce, "is shed at once", func(e ledger.Entry) bool {
		return refused(503, "circuit_open")(e) && e.Micros < (100*time.Millisecond).Microseconds()
	})
	s.some(t, now, inForce, "is answered beside what is shed", answered)
	now = s.remove(t, "trafficpolicy", "till")
	s.all(t, now, meshed, "is answered again", answered)
}

// deny: by identity. Others of the mesh are not concerned.
func (s *scene) deny(t *testing.T) {
	now := s.apply(t, `apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: no-load, namespace: policed}
spec:
  selector: {app: till}
  rules:
  - {action: deny, from: [{identities: ["spiffe://cluster.local/ns/policed/sa/load"]}]}
  - {action: allow}
`)
	s.all(t, now, meshed, "is refused", refused(403, "access_denied"))
	if other := s.Probe(t, "deployment/reader", "get", "http://till:8080/pay"); !other.OK {
		t.Errorf("the deny names another, and the reader gets %+v", other)
	}
	if got := s.Heddle(t, "policy", "get", "-n", "policed"); !strings.Contains(got, "no-load") {
		t.Errorf("heddle policy get does not show it:\n%s", got)
	}
	// It ends with 3 where somebody is refused.
	got, err := s.TryHeddle(t.Context(), "policy", "explain", "--from", "policed/load", "--to", "policed/svc/till")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(got, "no-load") {
		t.Errorf("heddle policy explain does not name the deny: %v\n%s", err, got)
	}
	now = s.remove(t, "accesspolicy", "no-load")
	s.all(t, now, meshed, "is answered again", answered)
}

// strict: plaintext is refused, mTLS is not. Who comes from outside the mesh is
// not told the reason; the sidecars count it.
func (s *scene) strict(t *testing.T) {
	now := s.apply(t, `apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: strict, namespace: policed}
spec:
  mtls: {mode: strict}
`)
	s.all(t, now, stranger, "is refused", func(e ledger.Entry) bool { return !answered(e) && (e.Status == 403 || e.Status == 0) })
	counted := false
	for line := range strings.Lines(s.Metrics(t, s.Pods(t, "till")[0])) {
		counted = counted || strings.HasPrefix(line, "heddle_refused_total") && strings.Contains(line, `reason="plaintext_refused"`) && strings.Contains(line, "inbound")
	}
	if !counted {
		t.Error("no sidecar counts a refusal with the reason plaintext_refused")
	}
	s.all(t, now, meshed, "is answered: it comes by mTLS", answered)
	// A connection that was opened before waits for mTLS, and is cut, some time
	// later: only those that come after that are promised an answer.
	s.remove(t, "accesspolicy", "strict")
	shop.Pause(t, waiting)
	s.all(t, time.Now(), stranger, "is answered again", answered)
}

// mistake: what does not compile is refused before it reaches the cluster, with
// the field's name.
func (s *scene) mistake(t *testing.T) {
	file := write(t, traffic+"  retry: {attempts: 2, when: [sometimes]}\n")
	_, err := s.TryHeddle(t.Context(), "policy", "apply", "-f", file)
	if err == nil || !strings.Contains(err.Error(), "spec.retry.when") {
		t.Errorf("a retry on nothing that exists: %v, want an error that names the field spec.retry.when", err)
	}
	if _, err := s.TryKubectl(t.Context(), "-n", "policed", "get", "trafficpolicy", "till"); err == nil {
		t.Error("the mistake is in the cluster")
	}
}

// apply gives the time of the command's end.
func (s *scene) apply(t *testing.T, text string) time.Time {
	t.Helper()
	s.Heddle(t, "policy", "apply", "-f", write(t, text))
	return time.Now()
}

func (s *scene) remove(t *testing.T, kind, name string) time.Time {
	t.Helper()
	s.Kubectl(t, "-n", "policed", "delete", kind, name)
	return time.Now()
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// look gives the requests that a load began since a time, once it is settled.
func (s *scene) look(t *testing.T, since time.Time, who string) (begun []ledger.Entry) {
	t.Helper()
	shop.Pause(t, time.Until(since.Add(settled)))
	place := s.Place
	if who == stranger {
		place = s.strangers
	}
	for _, e := range place.Records(t, "deployment/load", since) {
		if !shop.Start(e).Before(since) {
			begun = append(begun, e)
		}
	}
	if want := rate * int(settled-inForce) / int(time.Second) / 2; len(begun) < want {
		t.Fatalf("%s: %d requests since %v, want %d at least: nothing is proven", who, len(begun), since.Format("15:04:05.000"), want)
	}
	return begun
}

// all wants every request to be as it must be from a second after the change
// on, and says how long it took.
func (s *scene) all(t *testing.T, since time.Time, who, what string, ok func(ledger.Entry) bool) {
	t.Helper()
	took, wrong, late := time.Duration(0), 0, []string(nil)
	for _, e := range s.look(t, since, who) {
		if ok(e) {
			continue
		}
		wrong++
		if at := shop.Start(e).Sub(since); at >= inForce && len(late) < 5 {
			late = append(late, fmt.Sprintf("after %v: status %d %s %s", at.Round(time.Millisecond), e.Status, e.Reason, e.Err))
		} else {
			took = max(took, at)
		}
	}
	if late != nil {
		t.Errorf("%s: not so within %v: %s:\n%s", who, inForce, what, strings.Join(late, "\n"))
		return
	}
	t.Logf("%s %s: %v after the command (%d requests were not, before)", who, what, took.Round(time.Millisecond), wrong)
}

// some wants one request at least to be so within a limit.
func (s *scene) some(t *testing.T, since time.Time, limit time.Duration, what string, ok func(ledger.Entry) bool) {
	t.Helper()
	n, first := 0, limit+1
	begun := s.look(t, since, meshed)
	for _, e := range begun {
		if ok(e) {
			n++
			first = min(first, e.At.Sub(since))
		}
	}
	if n == 0 || first > limit {
		t.Errorf("%s: not within %v: %s: %d of %d, the first after %v", meshed, limit, what, n, len(begun), first)
		return
	}
	t.Logf("%s %s: %v after the command, %d of %d", meshed, what, first.Round(time.Millisecond), n, len(begun))
}
