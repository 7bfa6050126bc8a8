package install

import (
	"bytes"

	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
)

// nodes makes three agents whose pods follow the DaemonSet's template; away
// nodes never do.
func (f *fake) nodes(away ...string) {
	for _, node := range []string{"n1", "n2", "n3"} {
		f.pod("heddle-node", "heddle-node-"+node, scheduled(map[string]any{}))
		set(f.objs["Pod heddle-system/heddle-node-"+node], node, "spec", "nodeName")
	}
	f.control = func(o *cluster.Object, age time.Duration) {
		willing(o, age)
		ds := f.objs["DaemonSet heddle-system/heddle-node"]
		node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
		if ds == nil || node == "" || strings.Contains(strings.Join(away, " "), node) {
			return
		}
		part, _, _ := unstructured.NestedString(ds.Object, "spec", "template", "metadata", "labels", partLabel)
		set(o, part, "metadata", "labels", partLabel)
		if part == cleaning {
			set(o, []any{map[string]any{"state": map[string]any{"waiting": map[string]any{"reason": "CrashLoopBackOff"}},
				"lastState": map[string]any{"terminated": map[string]any{"exitCode": int64(0)}}}}, "status", "containerStatuses")
		}
	}
}

func uninstalled(t *testing.T, f *fake, r Removal) string {
	t.Helper()
	var out bytes.Buffer
	if err := Uninstall(t.Context(), f, Options{Timeout: 5 * time.Minute, Out: &out}, r); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

func TestUninstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		installed(t, f, "meshConfig.mtls=strict", "controlplane.replicas=2", "injector.replicas=2")
		f.nodes()
		f.add("v1", "Secret", Namespace, "heddle-ca", nil)
		f.add("v1", "Pod", "shop", "web", map[string]any{"metadata": map[string]any{"annotations": map[string]any{"heddle.dev/status": "{}"}}})
		out := uninstalled(t, f, Removal{})
		wants(t, out, "MutatingWebhookConfiguration heddle-injector deleted", "these pods have a sidecar until they are restarted",
			"1 in namespace shop: kubectl label namespace shop heddle.dev/inject- ; kubectl -n shop rollout restart deployment",
			"warning: no kube-proxy was found here", "3 of 3 nodes clean", "DaemonSet heddle-system/heddle-node deleted",
			"ClusterRole heddle-controlplane deleted", "CustomResourceDefinition accesspolicies.heddle.dev deleted", "Namespace heddle-system deleted")
		if diff := cmp.Diff([]string{"Pod shop/web"}, f.names()); diff != "" {
			t.Error(diff)
		}
		if out := uninstalled(t, f, Removal{}); strings.Contains(out, "deleted") {
			t.Errorf("of nothing: %s", out)
		}
	})
}

func TestUninstallKeepsCRDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		installed(t, f, "meshConfig.mtls=strict", "node.enabled=false")
		uninstalled(t, f, Removal{KeepCRDs: true})
		want := []string{"CustomResourceDefinition accesspolicies.heddle.dev", "CustomResourceDefinition meshconfigs.heddle.dev",
			"CustomResourceDefinition trafficpolicies.heddle.dev", "MeshConfig default"}
		if diff := cmp.Diff(want, f.names()); diff != "" {
			t.Error(diff)
		}
	})
}

// A namespace that somebody else made stays, with what is theirs in it.
func TestUninstallFromOthersNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.add("v1", "Namespace", "", Namespace, nil)
		installed(t, f, "node.enabled=false,createNamespace=false")
		for _, ref := range remains {
			f.add(ref.APIVersion, ref.Kind, ref.Namespace, ref.Name, nil)
		}
		f.add("v1", "Secret", Namespace, "theirs", nil)
		f.add("apps/v1", "Deployment", "shop", "a-copy", map[string]any{"metadata": map[string]any{"labels": map[string]any{partLabel: "injector"}}})
		wants(t, uninstalled(t, f, Removal{}), "Namespace heddle-system stays: the chart did not make it")
		if diff := cmp.Diff([]string{"Deployment shop/a-copy", "Namespace heddle-system", "Secret heddle-system/theirs"}, f.names()); diff != "" {
			t.Error(diff)
		}
	})
}

// A node that is away is named, and does not keep Heddle in the cluster.
func TestUninstallPastADeadNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		installed(t, f)
		f.nodes("n2")
		f.add("apps/v1", "DaemonSet", "kube-system", "kube-proxy", nil)
		start := time.Now()
		out := uninstalled(t, f, Removal{})
		wants(t, out, "node rules: 2 of 3 nodes clean", "warning: these nodes were not cleaned within 1m0s: n2 (the agent is still there)", "Namespace heddle-system deleted")
		if strings.Contains(out, "no kube-proxy") {
			t.Error(out)
		}
		if took := time.Since(start); took > cleanWait+30*time.Second {
			t.Error(took)
		}
	})
}

// Stopped while nodes are being cleaned, the next try goes on there.
func TestUninstallAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		installed(t, f)
		f.nodes("n1")
		var out bytes.Buffer
		err := Uninstall(t.Context(), f, Options{Timeout: 10 * time.Second, Out: &out}, Removal{})
		if err == nil || !strings.Contains(err.Error(), "run it again") || f.objs["DaemonSet heddle-system/heddle-node"] == nil {
			t.Fatal(err)
		}
		f.nodes()
		wants(t, uninstalled(t, f, Removal{}), "node rules: 3 of 3 nodes clean", "DaemonSet heddle-system/heddle-node deleted")
	})
}

// Why a namespace does not go is said.
func TestUninstallLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		installed(t, f, "node.enabled=false")
		f.control = func(o *cluster.Object, age time.Duration) {
			if o.GetKind() == "Namespace" && o.GetDeletionTimestamp() != nil {
				f.ends["Namespace heddle-system"] = time.Now().Add(time.Hour)
				set(o, []any{map[string]any{"type": "NamespaceContentRemaining", "status": "True", "message": "pods has 1 resource instances"}}, "status", "conditions")
			}
		}
		err := Uninstall(t.Context(), f, Options{Timeout: 20 * time.Second, Out: &bytes.Buffer{}}, Removal{})
		if err == nil || !strings.Contains(err.Error(), "Namespace heddle-system is still there (pods has 1 resource instances): not done within 20s") {
			t.Error(err)
		}
	})
}

// The cleaners see the folder around the agents' own, so that they can remove it.
func TestCleanersMount(t *testing.T) {
	ms, err := Render(Values{}, "v1.36.3", "v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		if m.Object.GetKind() != "DaemonSet" {
			continue
		}
		got, err := cleaners(m.Object)
		if err != nil {
			t.Fatal(err)
		}
		volumes, _, _ := unstructured.NestedSlice(got.Object, "spec", "template", "spec", "volumes")
		containers, _, _ := unstructured.NestedSlice(got.Object, "spec", "template", "spec", "containers")
		want := map[string]any{"name": "state", "hostPath": map[string]any{"path": "/var/lib", "type": "Directory"}}
		if diff := cmp.Diff(want, volumes[0]); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[string]any{"name": "state", "mountPath": "/var/lib"}, asMap(containers[0])["volumeMounts"].([]any)[0]); diff != "" {
			t.Error(diff)
		}
		return
	}
	t.Fatal("no DaemonSet in the chart")
}
