package install

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
)

const (
	// patience is how long a part may make no progress before we say why.
	patience = 15 * time.Second
	// lastWord is what explaining a failure may take, after the time is up.
	lastWord = 10 * time.Second
)

// workload is one part of Heddle that must become ready.
type workload struct {
	ref         cluster.Ref
	name, label string
	said        string    // last progress line
	since       time.Time // of that line
	why         string    // last explanation
	done        bool
}

// ready waits for all workloads, with a line for each step, and says what is
// stuck and why.
func (i *installer) ready(ctx context.Context, manifests []Manifest) error {
	var parts []*workload
	for _, m := range manifests {
		if k := m.Object.GetKind(); k == "Deployment" || k == "DaemonSet" {
			parts = append(parts, &workload{ref: cluster.RefOf(m.Object), name: m.Object.GetName(), since: time.Now(),
				label: "app.kubernetes.io/name=" + m.Object.GetName()})
		}
	}
	for {
		waiting := 0
		for _, p := range parts {
			if err := i.progress(ctx, p); err != nil && ctx.Err() == nil {
				return err
			}
			if !p.done {
				waiting++
			}
		}
		if waiting == 0 {
			return nil
		}
		if err := pause(ctx); err != nil {
			return i.stuck(ctx, parts, err)
		}
	}
}

// progress looks at one part, and says what is new.
func (i *installer) progress(ctx context.Context, p *workload) error {
	if p.done {
		return nil
	}
	obj, err := i.c.Get(ctx, p.ref)
	if err != nil {
		return err
	}
	have, want, current := replicas(obj)
	p.done = current && have == want
	line := fmt.Sprintf("%s: %d of %d ready", p.name, have, want)
	if !current {
		line = p.name + ": being rolled out"
	}
	if line != p.said {
		p.said, p.since = line, time.Now()
		i.say("%s", line)
	}
	if !p.done && time.Since(p.since) >= patience {
		if why := i.why(ctx, p); why != p.why {
			p.why = why
			i.say("  %s", strings.ReplaceAll(why, "\n", "\n  "))
		}
	}
	return nil
}

// replicas counts the pods that are ready, and how many should be; current:
// all are of the newest template, and no older one is left.
func replicas(obj *cluster.Object) (have, want int64, current bool) {
	get := func(path ...string) int64 {
		v, _, _ := unstructured.NestedInt64(obj.Object, path...)
		return v
	}
	seen := get("status", "observedGeneration") >= obj.GetGeneration()
	if obj.GetKind() == "DaemonSet" {
		want = get("status", "desiredNumberScheduled")
		return get("status", "numberAvailable"), want, seen && get("status", "updatedNumberScheduled") == want
	}
	want = get("spec", "replicas")
	return get("status", "availableReplicas"), want, seen && get("status", "updatedReplicas") == want && get("status", "replicas") == want
}

// stuck explains each part that is not ready.
func (i *installer) stuck(ctx context.Context, parts []*workload, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
	var b strings.Builder
	for _, p := range parts {
		if !p.done {
			fmt.Fprintf(&b, "\n%s\n  %s", p.said, strings.ReplaceAll(i.why(ctx, p), "\n", "\n  "))
		}
	}
	return fmt.Errorf("%w%s", cause, b.String())
}

// explained bounds how many pods of a part are explained: they mostly have the
// same trouble.
const explained = 3

// why says what keeps the pods of a part from being ready.
func (i *installer) why(ctx context.Context, p *workload) string {
	pods, err := i.c.List(ctx, cluster.Ref{APIVersion: "v1", Kind: "Pod", Namespace: Namespace}, p.label)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, pod := range pods {
		if ok, _ := condition(&pod, "Ready"); ok {
			continue
		}
		if len(out) == explained {
			out = append(out, "and more")
			break
		}
		out = append(out, fmt.Sprintf("pod %s: %s", pod.GetName(), i.trouble(ctx, &pod)))
	}
	if len(pods) == 0 {
		out = append(out, strings.TrimSuffix("there is no pod of it: "+i.events(ctx, p.name, true), ": "))
	}
	return strings.Join(out, "\n")
}

// trouble says in one line what is wrong with a pod.
func (i *installer) trouble(ctx context.Context, pod *cluster.Object) string {
	if at := pod.GetDeletionTimestamp(); at != nil {
		return "is ending"
	}
	if is, message := condition(pod, "PodScheduled"); !is {
		return "no node takes it: " + message
	}
	statuses, _, _ := unstructured.NestedSlice(pod.Object, "status", "containerStatuses")
	if len(statuses) == 0 {
		return "its node has not begun it"
	}
	status := asMap(statuses[0])
	if waiting, ok, _ := unstructured.NestedMap(status, "state", "waiting"); ok {
		reason, _ := waiting["reason"].(string)
		message, _ := waiting["message"].(string)
		if restarts, _, _ := unstructured.NestedInt64(status, "restartCount"); restarts > 0 {
			message = i.lastLog(ctx, pod, true)
		}
		if message == "" {
			message = i.events(ctx, pod.GetName(), false) // such as that its image is being fetched
		}
		return strings.TrimSuffix(reason+": "+message, ": ")
	}
	if _, ok, _ := unstructured.NestedMap(status, "state", "terminated"); ok {
		return "ended: " + i.lastLog(ctx, pod, false)
	}
	return i.askReady(ctx, pod)
}

// lastLog is the last line of a container's log, where programs say why they
// ended.
func (i *installer) lastLog(ctx context.Context, pod *cluster.Object, previous bool) string {
	query := map[string]string{"tailLines": "1"}
	if previous {
		query["previous"] = "true"
	}
	text, err := i.c.Fetch(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/log", Namespace, pod.GetName()), query)
	if err != nil {
		return "its log cannot be read"
	}
	return strings.TrimSpace(string(text))
}

// askReady asks a running program itself.
func (i *installer) askReady(ctx context.Context, pod *cluster.Object) string {
	containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
	if len(containers) == 0 {
		return "not ready"
	}
	ports, _, _ := unstructured.NestedSlice(asMap(containers[0]), "ports")
	for _, p := range ports {
		if m := asMap(p); m["name"] == "http" {
			path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%v/proxy/ready", Namespace, pod.GetName(), m["containerPort"])
			body, err := i.c.Fetch(ctx, path, nil)
			if text := strings.TrimSpace(string(body)); err != nil && text != "" && text[0] != '{' { // a Status is the API server's word, not the program's
				return text
			}
		}
	}
	return "runs, but is not ready"
}

// events gives the newest event, or warning, about a part or a pod: it says
// what no status does, such as why there is no pod.
func (i *installer) events(ctx context.Context, name string, warnings bool) string {
	all, err := i.c.List(ctx, cluster.Ref{APIVersion: "v1", Kind: "Event", Namespace: Namespace}, "")
	if err != nil {
		return ""
	}
	newest, text := "", ""
	for _, e := range all {
		about, _, _ := unstructured.NestedString(e.Object, "involvedObject", "name")
		if warnings && e.Object["type"] != "Warning" || about != name && !strings.HasPrefix(about, name+"-") {
			continue
		}
		at, _, _ := unstructured.NestedString(e.Object, "lastTimestamp")
		if at == "" { // events.k8s.io leaves it out
			at = e.GetCreationTimestamp().UTC().Format(time.RFC3339)
		}
		if at >= newest {
			newest, text = at, fmt.Sprintf("%v: %v", e.Object["reason"], e.Object["message"])
			if about != name {
				text = about + ": " + text
			}
		}
	}
	return text
}
