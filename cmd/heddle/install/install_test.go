package install

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
)

// wants fails for each text that is not there, in this order.
func wants(t *testing.T, got string, texts ...string) {
	t.Helper()
	rest := got
	for _, want := range texts {
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Errorf("no %q, or not there, in:\n%s", want, got)
			continue
		}
		rest = after
	}
}

func TestInstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		first := installed(t, f, "meshConfig.mtls=strict")
		wants(t, first, "CustomResourceDefinition accesspolicies.heddle.dev created", "Namespace heddle-system created",
			"ClusterRole heddle-controlplane created", "DaemonSet heddle-system/heddle-node created",
			"Deployment heddle-system/heddle-injector created", "MeshConfig default created", "MutatingWebhookConfiguration heddle-injector created",
			"heddle-node: 0 of 3 ready", "heddle-controlplane: 0 of 1 ready", "heddle-node: 3 of 3 ready", "heddle-controlplane: 1 of 1 ready")
		args, _, _ := unstructured.NestedSlice(f.objs["DaemonSet heddle-system/heddle-node"].Object, "spec", "template", "spec", "containers")
		if text := strings.Join(strings.Fields(strings.Trim(strings.ReplaceAll(toString(args), "map", " "), "[]")), " "); !strings.Contains(text, "--api-server=192.0.2.1:6443") {
			t.Errorf("the agents are not told the API server's address: %s", text)
		}
		if again := installed(t, f, "meshConfig.mtls=strict"); strings.Contains(again, "created") || strings.Contains(again, "configured") || !strings.Contains(again, "objects unchanged") {
			t.Errorf("again: %s", again)
		}
	})
}

func toString(v any) string {
	var b strings.Builder
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			b.WriteString(toString(e) + " ")
		}
	case map[string]any:
		for _, e := range v {
			b.WriteString(toString(e) + " ")
		}
	case string:
		return v
	}
	return b.String()
}

// Where kube-proxy is, the node agent is left out, and what an earlier
// installation had of it goes; what is not the chart's stays.
func TestInstallBesideKubeProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		installed(t, f, "controlplane.replicas=2")
		f.add("v1", "Secret", Namespace, "heddle-ca", nil)
		f.add("apps/v1", "DaemonSet", "kube-system", "kube-proxy", nil)
		f.add("apps/v1", "Deployment", "shop", "a-copy", map[string]any{"metadata": map[string]any{"labels": map[string]any{partLabel: "injector"}}})
		f.nodes()
		out := installed(t, f)
		// Its rules would outlive the agent, and nobody would keep them right.
		wants(t, out, "node rules: 3 of 3 nodes clean")
		wants(t, out, "DaemonSet kube-system/kube-proxy forwards Services here: the node agent is left out (--set node.enabled=true",
			"DaemonSet heddle-system/heddle-node deleted: not wanted any more", "PodDisruptionBudget heddle-system/heddle-controlplane deleted",
			"RoleBinding heddle-system/heddle-node deleted", "ServiceAccount heddle-system/heddle-node deleted")
		if f.objs["Secret heddle-system/heddle-ca"] == nil || len(f.deleted) != 5 {
			t.Errorf("deleted: %q", f.deleted)
		}
		if out := installed(t, f, "node.enabled=true"); !strings.Contains(out, "DaemonSet heddle-system/heddle-node created") {
			t.Errorf("told to: %s", out)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add("v1", "Pod", "kube-system", "kube-proxy-n1", map[string]any{"metadata": map[string]any{"labels": map[string]any{"component": "kube-proxy"}}})
		wants(t, installed(t, f), "Pod kube-system/kube-proxy-n1 forwards Services here")
	})
}

func TestInstallRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(*fake)
		want string
	}{
		{"helm's", func(f *fake) {
			f.add("apps/v1", "Deployment", Namespace, "heddle-controlplane", map[string]any{"metadata": map[string]any{
				"annotations": map[string]any{"meta.helm.sh/release-name": "mesh", "meta.helm.sh/release-namespace": "ops"}}})
		}, `installed here by Helm as release "mesh" of namespace ops: use helm upgrade`},
		{"old", func(f *fake) { f.version = "v1.28.0" }, "runs Kubernetes v1.28.0"},
		{"no address", func(f *fake) { delete(f.objs, "EndpointSlice default/kubernetes") }, "--set 'node.apiServers={IP:PORT}'"},
		{"never established", func(f *fake) {
			f.control = func(o *cluster.Object, _ time.Duration) {
				set(o, []any{map[string]any{"type": "Established", "status": "False", "message": "not all names are accepted"}}, "status", "conditions")
			}
		}, "CustomResourceDefinition accesspolicies.heddle.dev is not established (not all names are accepted): not done within 1m0s (--timeout)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c.make(f)
				var out bytes.Buffer
				err := Install(t.Context(), f, Options{Timeout: time.Minute, Out: &out})
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			})
		})
	}
}

// An uninstallation that is still under way is awaited.
func TestInstallAfterUninstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		ns := cluster.RefOf(f.add("v1", "Namespace", "", Namespace, nil))
		if _, err := f.Delete(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
		wants(t, installed(t, f), "Namespace heddle-system is being deleted: waiting until it is gone", "Namespace heddle-system created")
	})
}

// Kinds that are being deleted would take along what is made of them.
func TestInstallAfterUninstallOfKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		installed(t, f, "node.enabled=false")
		for _, ref := range crdRefs() {
			if _, err := f.Delete(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		}
		wants(t, installed(t, f, "node.enabled=false"), "CustomResourceDefinition meshconfigs.heddle.dev is being deleted: waiting until it is gone",
			"CustomResourceDefinition accesspolicies.heddle.dev created", "CustomResourceDefinition trafficpolicies.heddle.dev created")
	})
}

// status makes a pod of a part with one container in a state.
func (f *fake) pod(part, name string, status map[string]any) {
	f.add("v1", "Pod", Namespace, name, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app.kubernetes.io/name": part}},
		"spec":     map[string]any{"containers": []any{map[string]any{"ports": []any{map[string]any{"name": "http", "containerPort": int64(15014)}}}}},
		"status":   status})
}

func scheduled(more map[string]any) map[string]any {
	return map[string]any{"conditions": []any{map[string]any{"type": "PodScheduled", "status": "True"}}, "containerStatuses": []any{more}}
}

// What is stuck is named, with the reason, while it waits and at the end.
func TestInstallSaysWhatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.control = func(o *cluster.Object, age time.Duration) {
			if o.GetKind() == "CustomResourceDefinition" || o.GetName() == "heddle-injector" {
				willing(o, age)
			} else {
				willing(o, min(age, time.Second))
			}
		}
		state := func(kind string, v map[string]any) map[string]any {
			return map[string]any{"state": map[string]any{kind: v}}
		}
		f.pod("heddle-node", "heddle-node-a", scheduled(state("waiting", map[string]any{"reason": "ImagePullBackOff", "message": "no such image"})))
		crashed := state("waiting", map[string]any{"reason": "CrashLoopBackOff", "message": "back-off 10s"})
		crashed["restartCount"] = int64(2)
		f.pod("heddle-node", "heddle-node-b", scheduled(crashed))
		f.pod("heddle-node", "heddle-node-c", map[string]any{"conditions": []any{map[string]any{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}}})
		f.pod("heddle-node", "heddle-node-d", scheduled(state("waiting", map[string]any{"reason": "ContainerCreating"})))
		f.pages = map[string]string{"/api/v1/namespaces/heddle-system/pods/heddle-node-b/log previous=true tailLines=1": "heddle-node: no nf_tables\n"}
		var out bytes.Buffer
		start := time.Now()
		err := Install(t.Context(), f, Options{Timeout: time.Minute, Out: &out})
		if err == nil || time.Since(start) != time.Minute {
			t.Fatal(err, time.Since(start))
		}
		wants(t, out.String(), "heddle-injector: 1 of 1 ready", "heddle-node-a: ImagePullBackOff: no such image")
		wants(t, err.Error(), "not done within 1m0s (--timeout)", "heddle-node: 0 of 3 ready",
			"pod heddle-node-a: ImagePullBackOff: no such image", "pod heddle-node-b: CrashLoopBackOff: heddle-node: no nf_tables",
			"pod heddle-node-c: no node takes it: 0/3 nodes", "and more", "heddle-controlplane: 0 of 1 ready", "there is no pod of it")
		if strings.Contains(err.Error(), "injector") {
			t.Error("the injector is ready")
		}
	})
}

// A pod that runs is asked itself; a pod that has not begun is explained by
// its newest event, and a missing pod by that of its owner.
func TestTrouble(t *testing.T) {
	f := newFake()
	i := &installer{f, Options{}}
	f.pod("x", "asked", scheduled(map[string]any{"state": map[string]any{"running": map[string]any{}}}))
	f.pod("x", "silent", scheduled(map[string]any{"state": map[string]any{"running": map[string]any{}}}))
	f.pod("x", "creating", scheduled(map[string]any{"state": map[string]any{"waiting": map[string]any{"reason": "ContainerCreating"}}}))
	f.pages = map[string]string{"/api/v1/namespaces/heddle-system/pods/asked:15014/proxy/ready": "not ready: no snapshot\n",
		"/api/v1/namespaces/heddle-system/pods/silent:15014/proxy/ready": `{"kind":"Status"}`}
	for n, e := range []struct{ about, kind, text string }{{"creating", "Normal", "Scheduled"}, {"creating", "Normal", "Pulling"}, {"heddle-node", "Warning", "FailedCreate"}, {"heddle-node", "Normal", "x"}} {
		f.add("v1", "Event", Namespace, string(rune('a'+n)), map[string]any{"type": e.kind, "reason": e.text, "message": "m",
			"lastTimestamp": "2026-01-01T00:00:0" + string(rune('0'+n)) + "Z", "involvedObject": map[string]any{"name": e.about}})
	}
	for pod, want := range map[string]string{"asked": "not ready: no snapshot", "silent": "runs, but is not ready", "creating": "ContainerCreating: Pulling: m"} {
		if got := i.trouble(t.Context(), f.objs["Pod heddle-system/"+pod]); got != want {
			t.Errorf("%s: %q, want %q", pod, got, want)
		}
	}
	if got := i.why(t.Context(), &workload{name: "heddle-node", label: "app.kubernetes.io/name=heddle-node"}); got != "there is no pod of it: FailedCreate: m" {
		t.Error(got)
	}
}
