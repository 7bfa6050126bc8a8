package install

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// call is one kind of call that a program makes to the API server.
type call struct {
	account, verbs, group, resource string
	in                              string // namespace; "": everywhere
	name                            string // "": any, or it is being made
}

const here = Namespace

// calls is everything that our programs ask the API server: what they may do
// is this and no more.
var calls = []call{
	// controlplane: internal/source/kube watches its catalogue.
	{"heddle-controlplane", "list watch", "", "namespaces", "", ""},
	{"heddle-controlplane", "list watch", "", "nodes", "", ""},
	{"heddle-controlplane", "list watch", "", "pods", "", ""},
	{"heddle-controlplane", "list watch", "", "services", "", ""},
	{"heddle-controlplane", "list watch", "", "serviceaccounts", "", ""},
	{"heddle-controlplane", "list watch", "discovery.k8s.io", "endpointslices", "", ""},
	{"heddle-controlplane", "list watch", "networking.k8s.io", "servicecidrs", "", ""},
	{"heddle-controlplane", "list watch", "gateway.networking.k8s.io", "httproutes", "", ""},
	{"heddle-controlplane", "list watch", "gateway.networking.k8s.io", "grpcroutes", "", ""},
	{"heddle-controlplane", "list watch", "gateway.networking.k8s.io", "tcproutes", "", ""},
	{"heddle-controlplane", "list watch", "gateway.networking.k8s.io", "tlsroutes", "", ""},
	// WriteStatus reads the object, and patches its status.
	{"heddle-controlplane", "get list watch", "heddle.dev", "meshconfigs", "", ""},
	{"heddle-controlplane", "get list watch", "heddle.dev", "accesspolicies", "", ""},
	{"heddle-controlplane", "get list watch", "heddle.dev", "trafficpolicies", "", ""},
	{"heddle-controlplane", "patch", "heddle.dev", "meshconfigs/status", "", ""},
	{"heddle-controlplane", "patch", "heddle.dev", "accesspolicies/status", "", ""},
	{"heddle-controlplane", "patch", "heddle.dev", "trafficpolicies/status", "", ""},
	{"heddle-controlplane", "create", "authentication.k8s.io", "tokenreviews", "", ""},
	// The authority, the published roots, the lease of who writes.
	{"heddle-controlplane", "create", "", "secrets", here, ""},
	{"heddle-controlplane", "get patch", "", "secrets", here, "heddle-ca"},
	{"heddle-controlplane", "create", "", "configmaps", here, ""},
	{"heddle-controlplane", "get patch", "", "configmaps", here, "heddle-trust-bundle"},
	{"heddle-controlplane", "create", "coordination.k8s.io", "leases", here, ""},
	{"heddle-controlplane", "get update", "coordination.k8s.io", "leases", here, "heddle-status"},

	// injector: what decides about a pod (cmd/heddle-injector, watched).
	{"heddle-injector", "list watch", "", "namespaces", "", ""},
	{"heddle-injector", "list watch", "", "nodes", "", ""},
	{"heddle-injector", "list watch", "networking.k8s.io", "servicecidrs", "", ""},
	{"heddle-injector", "list watch", "heddle.dev", "meshconfigs", "", ""},
	// SetCABundle; the certificate; the published roots.
	{"heddle-injector", "get patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "heddle-injector"},
	{"heddle-injector", "create", "", "secrets", here, ""},
	{"heddle-injector", "get patch", "", "secrets", here, "heddle-injector-tls"},
	{"heddle-injector", "get", "", "configmaps", here, "heddle-trust-bundle"},

	// node agent: where the control plane is, and its roots.
	{"heddle-node", "get list", "discovery.k8s.io", "endpointslices", here, ""},
	{"heddle-node", "get", "", "configmaps", here, "heddle-trust-bundle"},
}

// right is one thing that the chart allows.
func right(account, in, group, resource, name, verb string) string {
	return fmt.Sprintf("%s may %s %s/%s %q in %q", account, verb, group, resource, name, in)
}

// rights reads the rendered roles and bindings.
func rights(t *testing.T) []string {
	t.Helper()
	ms, err := Render(Values{}, "v1.36.3", "")
	if err != nil {
		t.Fatal(err)
	}
	rules, bound := map[string][]rbacv1.PolicyRule{}, map[string]string{} // by kind and name; subject to namespace
	var out []string
	read := func(m Manifest, into any) {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m.Object.Object, into); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range ms {
		switch m.Object.GetKind() {
		case "ClusterRole", "Role":
			var r rbacv1.ClusterRole
			read(m, &r)
			rules[m.Object.GetKind()+r.Name] = r.Rules
		case "ClusterRoleBinding", "RoleBinding":
			var b rbacv1.RoleBinding
			read(m, &b)
			if len(b.Subjects) != 1 || b.Subjects[0].Kind != "ServiceAccount" || b.Subjects[0].Namespace != Namespace || b.Subjects[0].Name != b.RoleRef.Name {
				t.Errorf("%s: subjects %v", b.Name, b.Subjects)
			}
			bound[b.RoleRef.Kind+b.RoleRef.Name] = m.Object.GetNamespace()
		}
	}
	for key, list := range rules {
		in, ok := bound[key]
		if !ok {
			t.Errorf("%s is bound to nobody", key)
		}
		account := strings.TrimPrefix(strings.TrimPrefix(key, "Cluster"), "Role")
		for _, r := range list {
			names := r.ResourceNames
			if names == nil {
				names = []string{""}
			}
			for _, g := range r.APIGroups {
				for _, res := range r.Resources {
					for _, v := range r.Verbs {
						for _, n := range names {
							out = append(out, right(account, in, g, res, n, v))
						}
					}
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// Every call is allowed, and nothing else is.
func TestRightsAreTheCalls(t *testing.T) {
	allowed := rights(t)
	var wanted []string
	for _, c := range calls {
		for _, v := range strings.Fields(c.verbs) {
			wanted = append(wanted, right(c.account, c.in, c.group, c.resource, c.name, v))
		}
	}
	for _, w := range wanted {
		if !slices.Contains(allowed, w) {
			t.Errorf("not allowed: %s", w)
		}
	}
	for n, a := range allowed {
		if !slices.Contains(wanted, a) {
			t.Errorf("nobody needs: %s", a)
		}
		if n > 0 && allowed[n-1] == a {
			t.Errorf("said twice: %s", a)
		}
		if strings.Contains(a, "*") {
			t.Errorf("a wildcard: %s", a)
		}
	}
}
