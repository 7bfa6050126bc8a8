package install

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
)

var nodeSet = cluster.Ref{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: Namespace, Name: "heddle-node"}

const (
	// cleaning is the part of pods that take the rules out of their node.
	cleaning = "cleaning"
	// cleanWait is how long nodes may take; one that is away must not keep
	// Heddle in the cluster.
	cleanWait = time.Minute
)

// removeNode turns the node agents into cleaners and waits until each node is
// clean: rules outlive their agent on purpose, so that it can be replaced. The
// DaemonSet stays until then, so that a second try finds what is left to do.
func (i *installer) removeNode(ctx context.Context) error {
	set, err := i.c.Get(ctx, nodeSet)
	if cluster.NotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	proxy, err := i.kubeProxy(ctx)
	if err != nil {
		return err
	}
	if proxy == "" {
		i.say("warning: no kube-proxy was found here. Without the node agent no Service can be reached, that of DNS included, until something else forwards them.")
	}
	cleaners, err := cleaners(set)
	if err != nil {
		return err
	}
	if _, err := i.c.Apply(ctx, cleaners); err != nil {
		return err
	}
	return i.cleaned(ctx)
}

// cleaners is the set with pods that run "heddle-node clean" in place of the
// agent. They end at once and are started again: cleaning twice is cleaning
// once.
func cleaners(set *cluster.Object) (*cluster.Object, error) {
	out := &cluster.Object{Object: map[string]any{"apiVersion": set.GetAPIVersion(), "kind": set.GetKind()}}
	out.SetName(set.GetName())
	out.SetNamespace(set.GetNamespace())
	out.SetLabels(set.GetLabels())
	spec, _, err := unstructured.NestedMap(set.Object, "spec") // a copy
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nodeSet, err)
	}
	containers, _, _ := unstructured.NestedSlice(spec, "template", "spec", "containers")
	if len(containers) != 1 {
		return nil, fmt.Errorf("%s has %d containers, want the agent alone: it is none of ours", nodeSet, len(containers))
	}
	agent := asMap(containers[0])
	agent["args"] = []any{"clean"}
	if err := mountParent(spec, agent); err != nil {
		return nil, fmt.Errorf("%s: %w", nodeSet, err)
	}
	delete(agent, "readinessProbe")
	delete(agent, "livenessProbe")
	for _, set := range []struct {
		value any
		path  []string
	}{
		{containers, []string{"template", "spec", "containers"}},
		{cleaning, []string{"template", "metadata", "labels", partLabel}},
		{"100%", []string{"updateStrategy", "rollingUpdate", "maxUnavailable"}},
	} {
		if err := unstructured.SetNestedField(spec, set.value, set.path...); err != nil {
			return nil, fmt.Errorf("%s: %w", nodeSet, err)
		}
	}
	out.Object["spec"] = spec
	return out, nil
}

// mountParent gives the cleaners the folder that the agents' own is in: nobody
// can remove what is mounted for him. It is there on every node, so nothing is
// made either.
func mountParent(spec, agent map[string]any) error {
	volumes, _, err := unstructured.NestedSlice(spec, "template", "spec", "volumes")
	if err != nil {
		return err
	}
	for _, v := range volumes {
		host, ok := asMap(v)["hostPath"].(map[string]any)
		if !ok {
			continue
		}
		mounts, _ := agent["volumeMounts"].([]any)
		for _, m := range mounts {
			if mount := asMap(m); mount["name"] == asMap(v)["name"] {
				mount["mountPath"] = path.Dir(fmt.Sprint(mount["mountPath"]))
			}
		}
		host["path"], host["type"] = path.Dir(fmt.Sprint(host["path"])), "Directory"
	}
	return unstructured.SetNestedSlice(spec, volumes, "template", "spec", "volumes")
}

// cleaned waits for every node, and names those that do not answer in time.
func (i *installer) cleaned(ctx context.Context) error {
	give, said := time.Now().Add(cleanWait), -1
	for {
		done, missing, err := i.nodes(ctx)
		if err != nil {
			return err
		}
		if done != said {
			i.say("node rules: %d of %d nodes clean", done, done+len(missing))
			said = done
		}
		if len(missing) == 0 {
			return nil
		}
		if time.Now().After(give) {
			i.say("warning: these nodes were not cleaned within %s: %s. Their rules for Services go when they are restarted.", cleanWait, strings.Join(missing, ", "))
			return nil
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// nodes counts the clean ones and names the others, with what is known.
func (i *installer) nodes(ctx context.Context) (done int, missing []string, err error) {
	set, err := i.c.Get(ctx, nodeSet)
	if err != nil {
		return 0, nil, err
	}
	pods, err := i.c.List(ctx, cluster.Ref{APIVersion: "v1", Kind: "Pod", Namespace: Namespace}, "app.kubernetes.io/name=heddle-node")
	if err != nil {
		return 0, nil, err
	}
	for _, p := range pods {
		node, _, _ := unstructured.NestedString(p.Object, "spec", "nodeName")
		switch {
		case p.GetLabels()[partLabel] != cleaning:
			missing = append(missing, node+" (the agent is still there)")
		case cleanedOnce(&p):
			done++
		default:
			missing = append(missing, node+" ("+i.trouble(ctx, &p)+")")
		}
	}
	_, want, current := replicas(set)
	if !current && len(missing) == 0 {
		missing = append(missing, "those whose pod is still to come")
	}
	for n := int64(done + len(missing)); n < want; n++ {
		missing = append(missing, "one without a pod")
	}
	slices.Sort(missing)
	return done, missing, nil
}

// cleanedOnce says whether the pod's container has ended well at least once.
func cleanedOnce(pod *cluster.Object) bool {
	statuses, _, _ := unstructured.NestedSlice(pod.Object, "status", "containerStatuses")
	for _, s := range statuses {
		for _, state := range []string{"state", "lastState"} {
			if ended, ok, _ := unstructured.NestedMap(asMap(s), state, "terminated"); ok && ended["exitCode"] == int64(0) {
				return true
			}
		}
	}
	return false
}
