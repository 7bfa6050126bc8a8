package mesh

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// policyCommand runs heddle policy on the lab and gives what it prints and its
// exit code.
func policyCommand(t *testing.T, stdin string, args ...string) (string, int) {
	t.Helper()
	ctx, l := mesh(t)
	cmd := exec.CommandContext(ctx, filepath.Join(l.Bin, "heddle"), append([]string{"policy", "--source=lab:" + l.Name}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// What the commands say is what the sidecars do: before a policy, after it was
// applied, and of one that apply refuses. The word that apply waits for comes
// from the lab's control plane.
func testCommands(t *testing.T, url, tcp string) {
	_, l := mesh(t)
	agrees := func(who string, allowed bool) {
		t.Helper()
		out, code := policyCommand(t, "", "explain", "--from", "judge/"+who, "--to", "judge/judged", "--port", "8080")
		if want := map[bool]int{true: 0, false: 3}[allowed]; code != want {
			t.Errorf("explain of %s ends with %d, want %d:\n%s", who, code, want, out)
		}
		// The sidecar may be hearing of the change just made.
		within(t, fmt.Sprintf("%s: the sidecar says as explain does, allowed=%v", who, allowed), func() bool { return passes(t, "judge", who, url) == allowed })
	}
	agrees("good", true)
	agrees("other", true)
	const policy = "  mtls: {mode: strict}\n  rules:\n  - action: allow\n    from: [{identities: [spiffe://cluster.local/ns/judge/sa/good]}]\n"
	t.Cleanup(func() { _ = l.Remove("accesspolicy.judge.by-command.yaml") }) // gone by then, if all went well
	out, code := policyCommand(t, accessPolicy("by-command", policy), "apply", "-f", "-")
	if code != 0 || !strings.Contains(out, "AccessPolicy judge/by-command created\n") || !strings.Contains(out, "in force; selects 1 pod\n") {
		t.Fatalf("apply ends with %d:\n%s", code, out)
	}
	t.Log(out)
	within(t, "the other caller refused", func() bool {
		status, reason := newCaller(t, "judge", "other").get(url)
		return status == http.StatusForbidden && reason == "access_denied"
	})
	agrees("good", true)
	agrees("other", false)
	if out, code := policyCommand(t, "", "explain", "--from", ip(t, "plain", "stranger", false), "--to", "judge/judged", "--port", "7000"); code != 3 || !strings.Contains(out, "plaintext_refused") || echoed(t, "plain", "stranger", tcp) == nil {
		t.Errorf("explain of the stranger ends with %d:\n%s", code, out)
	}
	if out, _ := policyCommand(t, "", "get", "-n", "judge"); !strings.Contains(out, "mtls strict, 1 allow  yes") {
		t.Errorf("get says\n%s", out)
	}
	out, code = policyCommand(t, accessPolicy("by-command", strings.Replace(policy, "allow", "alow", 1)), "apply", "-f", "-")
	if code != 1 || !strings.Contains(out, "spec.rules[0].action") || !strings.Contains(out, "nothing was sent") {
		t.Errorf("apply of a mistake ends with %d:\n%s", code, out)
	}
	agrees("good", true)
	remove(t, "accesspolicy.judge.by-command.yaml")
	within(t, "the other caller taken again", func() bool { return passes(t, "judge", "other", url) })
	agrees("other", true)
}
