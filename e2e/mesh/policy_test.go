package mesh

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/source"
)

//go:embed manifests/judge.yaml
var judgeManifest string

const (
	// inForce is how long a change of policy may take on a busy machine, from
	// the writing of its manifest on. It is a second by our own bound.
	inForce = 5 * time.Second
	// oneCall is for one dial and its answer; a refusal comes at once or never.
	oneCall = 3 * time.Second
	// probesPass is how long the judged pod has to stay ready: its probes come
	// each second, and one or two that fail are seen.
	probesPass = 3500 * time.Millisecond
	// controlMetrics is where the lab's control plane serves /debug/problems.
	controlMetrics = 15014
)

// court brings up the pods of this file, and takes them away.
func court(t *testing.T) (http, tcp string) {
	t.Helper()
	ctx, l := mesh(t)
	if err := l.Write("judge.yaml", judgeManifest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Remove("judge.yaml"); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
		defer cancel()
		if err := l.Wait(ctx, "the judged pods to go", readyLimit, func(s *lab.Status) bool {
			for _, p := range s.Pods {
				if p.Namespace == "judge" || p.Name == "stranger" {
					return false
				}
			}
			return true
		}); err != nil {
			t.Error(err)
		}
	})
	if err := l.Wait(ctx, "the judged pods", readyLimit, func(s *lab.Status) bool {
		ready := 0
		for _, p := range s.Pods {
			if p.Ready && !p.Terminating && (p.Namespace == "judge" || p.Name == "stranger") {
				ready++
			}
		}
		return ready == 4
	}); err != nil {
		t.Fatal(err)
	}
	judged := ip(t, "judge", "judged", false)
	return "http://" + judged + ":8080/who", judged + ":7000"
}

// write puts a policy into the lab. It is taken away when the test ends.
func write(t *testing.T, name, text string) {
	t.Helper()
	_, l := mesh(t)
	if err := l.Write(name, text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Remove(name) }) // mostly gone by then
}

func remove(t *testing.T, name string) {
	t.Helper()
	_, l := mesh(t)
	if err := l.Remove(name); err != nil {
		t.Fatal(err)
	}
}

// within waits until a change that was just written is in force, and says how
// long that took.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	written := time.Now()
	for !ok() {
		if time.Since(written) > inForce {
			t.Fatalf("not so within %v: %s", inForce, what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Logf("%s: %v after the manifest was written", what, time.Since(written).Round(time.Millisecond))
}

// from dials out of a pod, as its program would: through its redirect.
func from(t *testing.T, namespace, name string) func(ctx context.Context, network, address string) (net.Conn, error) {
	t.Helper()
	_, l := mesh(t)
	f, err := l.Network()
	if err != nil {
		t.Fatal(err)
	}
	netns := f.PodNetNS(pod(t, namespace, name).UID)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return fabric.Dial(ctx, netns, network, address)
	}
}

// caller sends requests from a pod, over one connection as long as that lasts.
type caller struct {
	t      *testing.T
	client *http.Client
	reused bool // the last request went over the connection of the one before
}

func newCaller(t *testing.T, namespace, name string) *caller {
	t.Helper()
	tr := &http.Transport{DialContext: from(t, namespace, name), MaxIdleConnsPerHost: 1}
	t.Cleanup(tr.CloseIdleConnections)
	return &caller{t: t, client: &http.Client{Transport: tr, Timeout: oneCall}}
}

// get gives the status and the reason; 0: no answer.
func (c *caller) get(url string) (status int, reason string) {
	ctx := httptrace.WithClientTrace(c.t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { c.reused = i.Reused }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, resp.Header.Get("X-Heddle-Reason")
}

// passes asks once, over a connection of its own.
func passes(t *testing.T, namespace, name, url string) bool {
	t.Helper()
	status, _ := newCaller(t, namespace, name).get(url)
	return status == http.StatusOK
}

// line is an open TCP connection to an echo server.
type line struct{ net.Conn }

func dialLine(t *testing.T, namespace, name, address string) (*line, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), oneCall)
	defer cancel()
	c, err := from(t, namespace, name)(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	return &line{c}, nil
}

// echoes says a word and wants it back. It is a line, so that it can be told
// from the beginning of an HTTP request.
func (l *line) echoes() error {
	if err := l.SetDeadline(time.Now().Add(oneCall)); err != nil {
		return err
	}
	const word = "heddle\n"
	if _, err := io.WriteString(l, word); err != nil {
		return err
	}
	_, err := io.ReadFull(l, make([]byte, len(word)))
	return err
}

// echoed opens a connection and uses it once.
func echoed(t *testing.T, namespace, name, address string) error {
	t.Helper()
	l, err := dialLine(t, namespace, name, address)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.echoes()
}

func accessPolicy(name, spec string) string {
	return "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: " + name + ", namespace: judge}\nspec:\n  selector: {app: judged}\n" + spec
}

// staysReady wants the judged pod to pass its probes.
func staysReady(t *testing.T) {
	t.Helper()
	before := pod(t, "judge", "judged")
	for end := time.Now().Add(probesPass); time.Now().Before(end); {
		if p := pod(t, "judge", "judged"); !p.Ready || p.Restarts != before.Restarts {
			t.Fatalf("the node's probes do not pass: ready=%v, %d restarts, %d before", p.Ready, p.Restarts, before.Restarts)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// logged wants lines of the judged pod's sidecar that hold all the words.
func logged(t *testing.T, words ...string) {
	t.Helper()
	ctx, l := mesh(t)
	eventually(ctx, t, "the log says "+strings.Join(words, ", "), func() bool {
		text, err := l.Logs(ctx, "judge", "judged", "heddle-sidecar")
		if err != nil {
			t.Fatal(err)
		}
	next:
		for row := range bytes.Lines(text) {
			for _, w := range words {
				if !bytes.Contains(row, []byte(w)) {
					continue next
				}
			}
			return true
		}
		return false
	})
}

// problems asks the control plane.
func problems(t *testing.T) []source.Problem {
	t.Helper()
	ctx, l := mesh(t)
	s, err := l.Status()
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Get(ctx, s.Nodes[0].Name, netip.AddrPortFrom(s.Nodes[0].Addresses[0], controlMetrics), "/debug/problems")
	if err != nil {
		t.Fatal(err)
	}
	var out []source.Problem
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// What AccessPolicies say is in force soon after they are written, changed or
// taken away.
func TestPolicy(t *testing.T) {
	url, tcp := court(t)
	t.Run("strict", func(t *testing.T) { testStrict(t, url, tcp) })
	t.Run("strict port", func(t *testing.T) { testStrictPort(t, url, tcp) })
	t.Run("allow", func(t *testing.T) { testAllow(t, url, tcp) })
	t.Run("deny wins", func(t *testing.T) { testDenyWins(t, url, tcp) })
	t.Run("broken", func(t *testing.T) { testBroken(t, url) })
	t.Run("open connections", func(t *testing.T) { testOpen(t, url, tcp) })
	t.Run("commands", func(t *testing.T) { testCommands(t, url, tcp) })
}

// Strict refuses plaintext, whoever sends it but the node's probes; permissive
// takes it, and so it is again when the policy is gone.
func testStrict(t *testing.T, url, tcp string) {
	if !passes(t, "plain", "stranger", url) || echoed(t, "plain", "stranger", tcp) != nil {
		t.Fatal("plaintext does not pass in permissive mode")
	}
	write(t, "strict.yaml", accessPolicy("strict", "  mtls: {mode: strict}\n"))
	within(t, "plaintext refused", func() bool { return !passes(t, "plain", "stranger", url) })
	if err := echoed(t, "plain", "stranger", tcp); err == nil {
		t.Error("plaintext TCP passes in strict mode")
	}
	logged(t, `"reason":"plaintext_refused"`)
	if !passes(t, "judge", "good", url) || echoed(t, "judge", "good", tcp) != nil {
		t.Error("a meshed caller does not pass in strict mode")
	}
	staysReady(t)
	remove(t, "strict.yaml")
	within(t, "plaintext taken again", func() bool { return passes(t, "plain", "stranger", url) })
}

// Strict on one port leaves the others as they were.
func testStrictPort(t *testing.T, url, tcp string) {
	write(t, "port.yaml", accessPolicy("port", "  mtls: {mode: strict, ports: [7000]}\n"))
	within(t, "plaintext to port 7000 refused", func() bool { return echoed(t, "plain", "stranger", tcp) != nil })
	if !passes(t, "plain", "stranger", url) {
		t.Error("plaintext to port 8080 is refused, though only 7000 is strict")
	}
	if err := echoed(t, "judge", "good", tcp); err != nil {
		t.Errorf("a meshed caller on the strict port: %v", err)
	}
	remove(t, "port.yaml")
	within(t, "plaintext to port 7000 taken again", func() bool { return echoed(t, "plain", "stranger", tcp) == nil })
}

// An allow rule for one identity refuses all others, and says which policy did.
func testAllow(t *testing.T, url, tcp string) {
	for _, who := range []string{"good", "other"} {
		if !passes(t, "judge", who, url) || echoed(t, "judge", who, tcp) != nil {
			t.Fatalf("%s does not pass without a policy", who)
		}
	}
	write(t, "allow.yaml", accessPolicy("only-good", "  rules:\n  - action: allow\n    from: [{identities: [spiffe://cluster.local/ns/judge/sa/good]}]\n"))
	other := newCaller(t, "judge", "other")
	within(t, "the other caller refused", func() bool {
		status, reason := other.get(url)
		return status == http.StatusForbidden && reason == "access_denied"
	})
	if err := echoed(t, "judge", "other", tcp); err == nil {
		t.Error("the other caller's TCP connection passes")
	}
	logged(t, `"reason":"access_denied"`, "sa/other", "AccessPolicy/judge/only-good")
	if !passes(t, "judge", "good", url) || echoed(t, "judge", "good", tcp) != nil {
		t.Error("the allowed caller does not pass")
	}
	if passes(t, "plain", "stranger", url) {
		t.Error("a caller without an identity passes where only one identity may")
	}
	staysReady(t)
	remove(t, "allow.yaml")
	within(t, "the other caller taken again", func() bool { return passes(t, "judge", "other", url) })
}

// Policies add, and a deny goes before every allow, in whichever policy.
func testDenyWins(t *testing.T, url, tcp string) {
	write(t, "allow-all.yaml", accessPolicy("allow-all", "  rules:\n  - action: allow\n"))
	write(t, "deny-one.yaml", accessPolicy("deny-other", "  rules:\n  - action: deny\n    from: [{identities: [spiffe://cluster.local/ns/judge/sa/other]}]\n    ports: [7000]\n"))
	within(t, "the other caller's TCP refused", func() bool { return echoed(t, "judge", "other", tcp) != nil })
	logged(t, `"reason":"access_denied"`, "sa/other", "AccessPolicy/judge/deny-other#0")
	if !passes(t, "judge", "other", url) {
		t.Error("a deny for port 7000 reaches port 8080")
	}
	if err := echoed(t, "judge", "good", tcp); err != nil {
		t.Errorf("the caller that no deny means: %v", err)
	}
	remove(t, "deny-one.yaml")
	within(t, "the other caller's TCP taken again", func() bool { return echoed(t, "judge", "other", tcp) == nil })
}

// A policy with a mistake in it denies what it selects, at once, and the
// control plane says where the mistake stands and what to do about it.
func testBroken(t *testing.T, url string) {
	const spec = "  rules:\n  - action: alow\n    from: [{namespaces: [judge]}]\n"
	write(t, "typo.yaml", accessPolicy("typo", spec))
	good := newCaller(t, "judge", "good")
	within(t, "everybody refused", func() bool {
		status, reason := good.get(url)
		return status == http.StatusForbidden && reason == "access_denied"
	})
	if passes(t, "plain", "stranger", url) {
		t.Error("plaintext passes a broken policy")
	}
	logged(t, "AccessPolicy/judge/typo: spec.rules[0].action")
	found := false
	for _, p := range problems(t) {
		if p.Ref == (source.Ref{Kind: "AccessPolicy", Namespace: "judge", Name: "typo"}) {
			found = true
			if p.File == "" || p.Line < 2 || p.Field != "spec.rules[0].action" || !strings.Contains(p.Err, "alow") || !strings.Contains(p.Fix, "allow") {
				t.Errorf("the problem says %+v", p)
			}
			t.Log(p)
		}
	}
	if !found {
		t.Errorf("/debug/problems does not name the policy: %v", problems(t))
	}
	if err := echoed(t, "judge", "other", ip(t, "judge", "good", false)+":7000"); err != nil {
		t.Errorf("a pod that the broken policy does not select: %v", err)
	}
	staysReady(t)
	write(t, "typo.yaml", accessPolicy("typo", strings.Replace(spec, "alow", "allow", 1)))
	within(t, "in force once corrected", func() bool { return passes(t, "judge", "good", url) })
	for _, p := range problems(t) {
		if p.Ref.Namespace == "judge" {
			t.Errorf("a problem of the corrected policy: %v", p)
		}
	}
	remove(t, "typo.yaml")
	within(t, "plaintext taken again", func() bool { return passes(t, "plain", "stranger", url) })
}

// A policy that comes or goes counts for connections that are open: requests
// on one are judged anew, TCP that is no longer allowed is reset.
func testOpen(t *testing.T, url, tcp string) {
	kept := newCaller(t, "judge", "other")
	if status, reason := kept.get(url); status != http.StatusOK {
		t.Fatal(status, reason)
	}
	open, err := dialLine(t, "judge", "other", tcp)
	if err == nil {
		err = open.echoes()
	}
	if err != nil {
		t.Fatal(err)
	}
	write(t, "deny.yaml", accessPolicy("deny-other", "  rules:\n  - action: deny\n    from: [{identities: [spiffe://cluster.local/ns/judge/sa/other]}]\n"))
	within(t, "requests on the open connection refused", func() bool {
		status, _ := kept.get(url)
		if !kept.reused {
			t.Error("the connection did not stay open")
		}
		return status == http.StatusForbidden
	})
	within(t, "the open TCP connection ended", func() bool { return open.echoes() != nil })
	remove(t, "deny.yaml")
	within(t, "requests on the open connection taken again", func() bool {
		status, _ := kept.get(url)
		if !kept.reused {
			t.Error("the connection did not stay open")
		}
		return status == http.StatusOK
	})
	// Of two policies the one that let this connection in goes.
	allow := func(who string) string {
		return accessPolicy("allow-"+who, "  rules:\n  - action: allow\n    from: [{identities: [spiffe://cluster.local/ns/judge/sa/"+who+"]}]\n")
	}
	write(t, "allow-good.yaml", allow("good"))
	write(t, "allow-other.yaml", allow("other"))
	var both *line
	within(t, "both callers allowed", func() bool {
		both, err = dialLine(t, "judge", "other", tcp)
		return err == nil && both.echoes() == nil && !passes(t, "plain", "stranger", url)
	})
	stays, err := dialLine(t, "judge", "good", tcp)
	if err == nil {
		err = stays.echoes()
	}
	if err != nil {
		t.Fatal(err)
	}
	remove(t, "allow-other.yaml")
	within(t, "the connection of the policy that went ended", func() bool { return both.echoes() != nil })
	if err := stays.echoes(); err != nil {
		t.Errorf("the connection that the other policy allows: %v", err)
	}
}
