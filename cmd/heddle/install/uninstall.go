package install

import (
	"context"
	"fmt"
	"slices"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
)

// Removal says how far an uninstallation goes.
type Removal struct {
	KeepCRDs bool // and with them the policies that people wrote
}

// crds of ours, by name: what a chart of any version made.
var crds = []string{"meshconfigs.heddle.dev", "accesspolicies.heddle.dev", "trafficpolicies.heddle.dev"}

var namespaceRef = cluster.Ref{APIVersion: "v1", Kind: "Namespace", Name: Namespace}

func crdRefs() (out []cluster.Ref) {
	for _, name := range crds {
		out = append(out, cluster.Ref{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition", Name: name})
	}
	return out
}

// remains are what our programs made in the namespace.
var remains = []cluster.Ref{
	{APIVersion: "v1", Kind: "Secret", Namespace: Namespace, Name: "heddle-ca"},
	{APIVersion: "v1", Kind: "Secret", Namespace: Namespace, Name: "heddle-injector-tls"},
	{APIVersion: "v1", Kind: "ConfigMap", Namespace: Namespace, Name: "heddle-trust-bundle"},
	{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: Namespace, Name: "heddle-status"},
}

// Uninstall takes Heddle out, so that nothing of it is left: first the webhook,
// so that no pod waits for an injector that is gone; then the node agents and
// their rules; then the rest. It may be stopped anywhere and run again.
func Uninstall(ctx context.Context, c Cluster, o Options, r Removal) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("not done within %s (--timeout); run it again", o.Timeout))
	defer cancel()
	i := &installer{c, o}
	if _, err := c.ServerVersion(ctx); err != nil {
		return err
	}
	if err := i.notHelm(ctx); err != nil {
		return err
	}
	if err := i.remove(ctx, "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"); err != nil {
		return err
	}
	if err := i.meshed(ctx); err != nil {
		return err
	}
	if err := i.removeNode(ctx); err != nil {
		return err
	}
	for _, k := range prunable {
		if k.kind == "MeshConfig" && r.KeepCRDs {
			continue // people's settings, as much as the chart's
		}
		if err := i.remove(ctx, k.apiVersion, k.kind); err != nil {
			return err
		}
	}
	var gone []cluster.Ref
	if !r.KeepCRDs {
		gone = crdRefs()
	}
	obj, err := c.Get(ctx, namespaceRef)
	switch {
	case cluster.NotFound(err):
		return i.removeAndWait(ctx, gone)
	case err != nil:
		return err
	}
	if _, made := obj.GetLabels()[partLabel]; made {
		return i.removeAndWait(ctx, append(gone, namespaceRef))
	}
	i.say("%s stays: the chart did not make it (createNamespace=false)", namespaceRef)
	if err := i.stopped(ctx); err != nil {
		return err
	}
	return i.removeAndWait(ctx, append(gone, remains...))
}

// stopped waits until no pod of ours is left: one that ends may still write.
func (i *installer) stopped(ctx context.Context) error {
	for {
		pods, err := i.c.List(ctx, cluster.Ref{APIVersion: "v1", Kind: "Pod", Namespace: Namespace}, partLabel)
		if err != nil || len(pods) == 0 {
			return err
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%s is still there: %w", cluster.RefOf(&pods[0]), err)
		}
	}
}

// remove deletes all of our objects of a kind.
func (i *installer) remove(ctx context.Context, apiVersion, kind string) error {
	objs, err := i.ours(ctx, apiVersion, kind)
	if err != nil {
		return err
	}
	for _, o := range objs {
		if err := i.removeOne(ctx, cluster.RefOf(&o)); err != nil {
			return err
		}
	}
	return nil
}

func (i *installer) removeOne(ctx context.Context, ref cluster.Ref) error {
	was, err := i.c.Delete(ctx, ref)
	if was {
		i.say("%s deleted", ref)
	}
	return err
}

// removeAndWait deletes objects and waits until they are gone, with all that
// is in them.
func (i *installer) removeAndWait(ctx context.Context, refs []cluster.Ref) error {
	for _, ref := range refs {
		if err := i.removeOne(ctx, ref); err != nil {
			return err
		}
	}
	for _, ref := range refs {
		if err := i.gone(ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

// gone waits until the API server has removed an object.
func (i *installer) gone(ctx context.Context, ref cluster.Ref) error {
	why := ""
	for {
		obj, err := i.c.Get(ctx, ref)
		switch {
		case cluster.NotFound(err):
			return nil
		case err != nil && ctx.Err() == nil:
			return err
		case err == nil:
			why = lingering(obj)
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%s is still there%s: %w", ref, why, err)
		}
	}
}

// lingering is why the API server has not removed a namespace or CRD yet.
func lingering(obj *cluster.Object) string {
	for _, kind := range []string{"NamespaceContentRemaining", "NamespaceFinalizersRemaining", "NamespaceDeletionContentFailure", "Terminating"} {
		if is, message := condition(obj, kind); is {
			return " (" + message + ")"
		}
	}
	return ""
}

// meshed names the pods that still have a sidecar: they go on until they are
// restarted, by what they knew last.
func (i *installer) meshed(ctx context.Context) error {
	pods, err := i.c.List(ctx, cluster.Ref{APIVersion: "v1", Kind: "Pod"}, "")
	if err != nil {
		return err
	}
	count := map[string]int{} // by namespace
	for _, p := range pods {
		if _, is := p.GetAnnotations()[v1alpha1.StatusKey]; is {
			count[p.GetNamespace()]++
		}
	}
	if len(count) == 0 {
		return nil
	}
	i.say("warning: these pods have a sidecar until they are restarted. They go on with what they know, but their certificates end within hours, and then their calls do.")
	var names []string
	for ns := range count {
		names = append(names, ns)
	}
	slices.Sort(names)
	for _, ns := range names {
		i.say("  %d in namespace %s: kubectl label namespace %s %s- ; kubectl -n %s rollout restart deployment,statefulset,daemonset", count[ns], ns, ns, v1alpha1.InjectKey, ns)
	}
	return nil
}
