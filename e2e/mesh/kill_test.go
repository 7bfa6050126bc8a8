package mesh

import (
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/lab"
)

// restarts waits until a pod of the namespace mesh was restarted and is ready.
func restarts(t *testing.T, name string, since int) {
	t.Helper()
	ctx, l := mesh(t)
	err := l.Wait(ctx, name+" to be back", time.Minute, func(s *lab.Status) bool {
		for _, p := range s.Pods {
			if p.Namespace == "mesh" && p.Name == name {
				return p.Ready && p.Restarts > since
			}
		}
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
}

// kill -9 of a server's sidecar costs at most what was open through it: callers
// go on at the other endpoint, and it comes back by itself.
func TestServerSidecarKilled(t *testing.T) {
	_, l := mesh(t)
	b := pod(t, "mesh", "server-b")
	killed := make(chan error, 1)
	time.AfterFunc(500*time.Millisecond, func() { killed <- l.Kill(b, "heddle-sidecar run") })
	const at = 4
	s := probe(t, "client", "get", "http://servers/who", "-n", "8000", "-c", "4")
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	if s.Failed > at { // one for each request that was under way
		t.Errorf("%d of 8000 requests failed: %+v", s.Failed, s)
	}
	restarts(t, "server-b", b.Restarts)
	ctx, _ := mesh(t)
	eventually(ctx, t, "both servers answer", func() bool {
		return len(must(t, "client", "get", "http://servers/who", "-n", "400", "-c", "8").Answers) == 2
	})
}

// kill -9 of a client's sidecar never lets its pod speak plaintext: dials are
// refused until it is back.
func TestClientSidecarKilled(t *testing.T) {
	_, l := mesh(t)
	c := pod(t, "mesh", "ip-bound") // a pod that no other test dials from
	must(t, "ip-bound", "get", "http://servers/who")
	if err := l.Kill(c, "heddle-sidecar run"); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{ip(t, "plain", "plain-server", false) + ":7000", outside + ":7000", ip(t, "mesh", "server-a", false) + ":7000"} {
		if s := probe(t, "ip-bound", "connect", to); s.OK {
			// Only wrong if the sidecar was not back yet.
			if p := pod(t, "mesh", "ip-bound"); p.Restarts == c.Restarts {
				t.Errorf("a dial to %s passed without a sidecar", to)
			}
		}
	}
	restarts(t, "ip-bound", c.Restarts)
	must(t, "ip-bound", "get", "http://servers/who")
}

// kill -9 of the control plane, again and again, disturbs no traffic; addresses
// never asked before are refused inside the cluster and pass outside it; when
// it is back, so is the news.
func TestControlPlaneKilled(t *testing.T) {
	ctx, l := mesh(t)
	must(t, "client", "get", "http://servers/who")
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 60 { // six seconds
			<-tick.C
			_ = l.KillProgram("heddle-controlplane") // not there: it is down, as wanted
		}
	}()
	s := probe(t, "client", "get", "http://servers/who", "-n", "6000", "-c", "2")
	if s.Failed > 0 {
		t.Errorf("%d of %d requests failed without a control plane: %+v", s.Failed, s.Count+s.Failed, s)
	}
	if s := probe(t, "client", "connect", "10.96.255.254:80"); s.OK || s.Millis > 5000 {
		t.Errorf("a new address inside the cluster, without a control plane: %+v", s)
	}
	must(t, "server-a", "get", "http://"+outside+":8080/who") // first use there
	<-done
	err := l.Wait(ctx, "the control plane", time.Minute, func(s *lab.Status) bool { return s.Ready })
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Write("late.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: late, namespace: mesh, labels: {app: nobody}}
spec:
  containers: [{name: app, image: probe, command: ["APPS/probe", "serve", "-http", ":80", "-echo", ":7000"]}]
`); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "a new pod joins a Service", func() bool { return probe(t, "client", "get", "http://nobody/who").OK })
	if err := l.Remove("late.yaml"); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "a removed pod leaves it", func() bool { return probe(t, "client", "get", "http://nobody/who").Reason == "no_endpoints" })
}
