package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
)

// Cluster is what we need of one; cmd/heddle/cluster has it.
type Cluster interface {
	ServerVersion(ctx context.Context) (string, error)
	Apply(ctx context.Context, obj *cluster.Object) (cluster.Outcome, error)
	Get(ctx context.Context, ref cluster.Ref) (*cluster.Object, error)
	List(ctx context.Context, ref cluster.Ref, selector string) ([]cluster.Object, error)
	Delete(ctx context.Context, ref cluster.Ref) (bool, error)
	Fetch(ctx context.Context, path string, query map[string]string) ([]byte, error)
}

// Options of an installation.
type Options struct {
	Values  Values
	Release string        // Heddle's version, for image tags; "": the chart's
	Timeout time.Duration // until everything must be ready
	Out     io.Writer     // progress, a line each
}

// settle is how long a kind may take to be served after its CRD is established:
// API servers tell each other within seconds.
const settle = 15 * time.Second

// Install brings the cluster to what the chart says, from nothing or from any
// older version, and returns when everything is ready.
func Install(ctx context.Context, c Cluster, o Options) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("not done within %s (--timeout)", o.Timeout))
	defer cancel()
	i := &installer{c, o}
	kube, err := c.ServerVersion(ctx)
	if err != nil {
		return err
	}
	if err := i.notHelm(ctx); err != nil {
		return err
	}
	values, err := o.Values.merge()
	if err != nil {
		return err
	}
	if err := i.nodeValues(ctx, values); err != nil {
		return err
	}
	manifests, err := render(values, kube, o.Release)
	if err != nil {
		return err
	}
	if err := i.vacant(ctx); err != nil {
		return err
	}
	if err := i.apply(ctx, manifests); err != nil {
		return err
	}
	if err := i.prune(ctx, manifests); err != nil {
		return err
	}
	return i.ready(ctx, manifests)
}

// installer is one run of Install or Uninstall.
type installer struct {
	c Cluster
	o Options
}

func (i *installer) say(format string, args ...any) {
	fmt.Fprintf(i.o.Out, format+"\n", args...)
}

// notHelm refuses a cluster where Helm keeps the records.
func (i *installer) notHelm(ctx context.Context) error {
	obj, err := i.c.Get(ctx, cluster.Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: Namespace, Name: "heddle-controlplane"})
	if cluster.NotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if name := obj.GetAnnotations()["meta.helm.sh/release-name"]; name != "" {
		return fmt.Errorf("heddle was installed here by Helm as release %q of namespace %s: use helm upgrade, or helm uninstall",
			name, obj.GetAnnotations()["meta.helm.sh/release-namespace"])
	}
	return nil
}

// vacant waits for the end of an uninstallation: into a namespace that is
// being deleted nothing goes, and a kind that is being deleted takes what we
// would make of it along.
func (i *installer) vacant(ctx context.Context) error {
	for _, ref := range append(crdRefs(), namespaceRef) {
		obj, err := i.c.Get(ctx, ref)
		if cluster.NotFound(err) || err == nil && obj.GetDeletionTimestamp() == nil {
			continue
		}
		if err != nil {
			return err
		}
		i.say("%s is being deleted: waiting until it is gone", ref)
		if err := i.gone(ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

// nodeValues decides what the user left open about the node agent.
func (i *installer) nodeValues(ctx context.Context, values map[string]any) error {
	node, _ := values["node"].(map[string]any)
	if node == nil {
		if values["node"] != nil {
			return nil // not a map: the schema says it better
		}
		node = map[string]any{}
		values["node"] = node
	}
	if _, said := node["enabled"]; !said {
		proxy, err := i.kubeProxy(ctx)
		if err != nil {
			return err
		}
		if proxy != "" {
			i.say("%s forwards Services here: the node agent is left out (--set node.enabled=true installs it all the same)", proxy)
			node["enabled"] = false
		}
	}
	if node["enabled"] == false || node["apiServers"] != nil {
		return nil
	}
	addresses, err := i.apiServers(ctx)
	if err != nil {
		return err
	}
	node["apiServers"] = addresses
	return nil
}

// kubeProxy gives what forwards Services already; "": nothing that we know.
func (i *installer) kubeProxy(ctx context.Context) (string, error) {
	set := cluster.Ref{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "kube-system", Name: "kube-proxy"}
	if _, err := i.c.Get(ctx, set); err == nil {
		return set.String(), nil
	} else if !cluster.NotFound(err) {
		return "", err
	}
	// Static pods of managed clusters.
	for _, selector := range []string{"component=kube-proxy", "k8s-app=kube-proxy"} {
		pods, err := i.c.List(ctx, cluster.Ref{APIVersion: "v1", Kind: "Pod", Namespace: "kube-system"}, selector)
		if err != nil {
			return "", err
		}
		if len(pods) > 0 {
			return cluster.RefOf(&pods[0]).String(), nil
		}
	}
	return "", nil
}

// apiServers are the addresses behind the Service default/kubernetes.
func (i *installer) apiServers(ctx context.Context) ([]any, error) {
	found, err := i.c.List(ctx, cluster.Ref{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice", Namespace: "default"}, "kubernetes.io/service-name=kubernetes")
	if err != nil {
		return nil, err
	}
	var out []any
	for _, s := range found {
		ports, _, _ := unstructured.NestedSlice(s.Object, "ports")
		endpoints, _, _ := unstructured.NestedSlice(s.Object, "endpoints")
		for _, p := range ports {
			port, _, _ := unstructured.NestedInt64(asMap(p), "port")
			for _, e := range endpoints {
				addresses, _, _ := unstructured.NestedStringSlice(asMap(e), "addresses")
				for _, a := range addresses {
					out = append(out, net.JoinHostPort(a, strconv.FormatInt(port, 10)))
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no EndpointSlice of default/kubernetes names the API server's address: give it, --set 'node.apiServers={IP:PORT}'")
	}
	return out, nil
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// apply applies all in order; CRDs are in force before objects of their kinds
// come.
func (i *installer) apply(ctx context.Context, manifests []Manifest) error {
	unchanged, established := 0, false
	for _, m := range manifests {
		if !established && m.Object.GetKind() != "CustomResourceDefinition" {
			if err := i.established(ctx, manifests); err != nil {
				return err
			}
			established = true
		}
		outcome, err := i.applyOne(ctx, m.Object)
		if err != nil {
			return err
		}
		if outcome == cluster.Unchanged {
			unchanged++
			continue
		}
		i.say("%s %s", cluster.RefOf(m.Object), outcome)
	}
	if unchanged > 0 {
		i.say("%d objects unchanged", unchanged)
	}
	return nil
}

// applyOne waits for a kind that the API server learns of a moment late.
func (i *installer) applyOne(ctx context.Context, obj *cluster.Object) (cluster.Outcome, error) {
	give := time.Now().Add(settle)
	for {
		outcome, err := i.c.Apply(ctx, obj)
		if !errors.Is(err, cluster.ErrNoKind) || time.Now().After(give) {
			return outcome, err
		}
		if err := pause(ctx); err != nil {
			return "", err
		}
	}
}

// established waits until the CRDs are served.
func (i *installer) established(ctx context.Context, manifests []Manifest) error {
	for _, m := range manifests {
		if m.Object.GetKind() != "CustomResourceDefinition" {
			return nil // they are first
		}
		ref := cluster.RefOf(m.Object)
		for {
			obj, err := i.c.Get(ctx, ref)
			if err != nil {
				return err
			}
			if is, message := condition(obj, "Established"); is {
				break
			} else if err := pause(ctx); err != nil {
				return fmt.Errorf("%s is not established (%s): %w", ref, message, err)
			}
		}
	}
	return nil
}

// condition says whether a condition of an object's status is True, and what
// is said with it.
func condition(obj *cluster.Object, kind string) (bool, string) {
	list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, c := range list {
		if m := asMap(c); m["type"] == kind {
			message, _ := m["message"].(string)
			return m["status"] == "True", strings.TrimSpace(message)
		}
	}
	return false, "nothing is said yet"
}

// prunable are the kinds that any version of the chart made, in the order to
// delete them; CRDs are never pruned: with them go people's policies.
var prunable = []struct{ apiVersion, kind string }{
	{"admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"},
	{"apps/v1", "DaemonSet"}, {"apps/v1", "Deployment"}, {"policy/v1", "PodDisruptionBudget"}, {"v1", "Service"},
	{"rbac.authorization.k8s.io/v1", "RoleBinding"}, {"rbac.authorization.k8s.io/v1", "Role"},
	{"rbac.authorization.k8s.io/v1", "ClusterRoleBinding"}, {"rbac.authorization.k8s.io/v1", "ClusterRole"},
	{"v1", "ServiceAccount"}, {"heddle.dev/v1alpha1", "MeshConfig"},
}

// prune deletes what an older version, or other values, made and this one does
// not.
func (i *installer) prune(ctx context.Context, manifests []Manifest) error {
	keep := map[string]bool{}
	for _, m := range manifests {
		keep[cluster.RefOf(m.Object).String()] = true
	}
	for _, k := range prunable {
		objs, err := i.ours(ctx, k.apiVersion, k.kind)
		if err != nil {
			return err
		}
		for _, o := range objs {
			ref := cluster.RefOf(&o)
			if keep[ref.String()] {
				continue
			}
			if ref == nodeSet { // its rules would stay, and go stale
				if err := i.removeNode(ctx); err != nil {
					return err
				}
			}
			if _, err := i.c.Delete(ctx, ref); err != nil {
				return err
			}
			i.say("%s deleted: not wanted any more", ref)
		}
	}
	return nil
}

// ours lists the objects of a kind that carry the chart's label; what somebody
// copied into another namespace, label and all, is theirs.
func (i *installer) ours(ctx context.Context, apiVersion, kind string) ([]cluster.Object, error) {
	objs, err := i.c.List(ctx, cluster.Ref{APIVersion: apiVersion, Kind: kind}, partLabel)
	if errors.Is(err, cluster.ErrNoKind) {
		return nil, nil
	}
	for n := range objs { // items of lists may come without
		objs[n].SetAPIVersion(apiVersion)
		objs[n].SetKind(kind)
	}
	return slices.DeleteFunc(objs, func(o cluster.Object) bool { return o.GetNamespace() != "" && o.GetNamespace() != Namespace }), err
}

// look is how often the cluster is asked while we wait: people read along.
const look = time.Second

// pause waits one look, or says why there is no more time.
func pause(ctx context.Context) error {
	timer := time.NewTimer(look)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
