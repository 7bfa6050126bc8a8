package patch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

// Edited is what became of one object of a manifest.
type Edited struct {
	Object string // "Deployment shop/web"
	Result        // Patch is already carried out
}

// ErrShape says that an object is of a kind we know and not as that kind is.
var ErrShape = errors.New("not as its kind must be")

// templates says where the pod stands in each kind we know.
var templates = map[string]string{
	"v1/Pod":                   "",
	"v1/ReplicationController": "spec.template",
	"apps/v1/Deployment":       "spec.template",
	"apps/v1/StatefulSet":      "spec.template",
	"apps/v1/DaemonSet":        "spec.template",
	"apps/v1/ReplicaSet":       "spec.template",
	"batch/v1/Job":             "spec.template",
	"batch/v1/CronJob":         "spec.jobTemplate.spec.template",
}

// Workload puts the sidecar into the pod, or the pod template, of a decoded
// object, or of each object of a list. Fields it does not know stay as they
// are. namespace counts where the object names none. An object of another kind
// gives no Edited and is not touched.
func Workload(doc map[string]any, ns Namespace, cfg Config) ([]Edited, error) {
	return walk(doc, ns.Name, func(pod *corev1.Pod, who subject, namespace string) Result {
		at := ns
		at.Name = namespace
		return patchPod(pod, at, cfg, who)
	})
}

// UninjectWorkload is Workload's reverse.
func UninjectWorkload(doc map[string]any) ([]Edited, error) {
	return walk(doc, "", func(pod *corev1.Pod, _ subject, _ string) Result { return Uninject(pod) })
}

type edit func(pod *corev1.Pod, who subject, namespace string) Result

func walk(doc map[string]any, namespace string, f edit) ([]Edited, error) {
	kind, _ := doc["kind"].(string)
	items, isList := doc["items"].([]any)
	if !isList || !strings.HasSuffix(kind, "List") {
		return one(doc, namespace, f)
	}
	var out []Edited
	var errs []error
	for i, item := range items {
		obj, ok := item.(map[string]any)
		if !ok {
			errs = append(errs, fmt.Errorf("%s: items[%d]: %w (write an object)", kind, i, ErrShape))
			continue
		}
		edited, err := walk(obj, namespace, f)
		if err != nil {
			errs = append(errs, fmt.Errorf("items[%d]: %w", i, err))
		}
		out = append(out, edited...)
	}
	return out, errors.Join(errs...)
}

// one edits a single object.
func one(doc map[string]any, namespace string, f edit) ([]Edited, error) {
	version, _ := doc["apiVersion"].(string)
	kind, _ := doc["kind"].(string)
	path, known := templates[version+"/"+kind]
	if !known {
		return nil, nil
	}
	object, namespace := named(doc, kind, namespace)
	node := doc
	var steps []string
	if path != "" {
		steps = strings.Split(path, ".")
	}
	for i, step := range steps {
		next, ok := node[step].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: %s: %w (write a pod template there)", object, strings.Join(steps[:i+1], "."), ErrShape)
		}
		node = next
	}
	pod, err := podOf(node)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w: %v", object, path, ErrShape, err)
	}
	prefix := path
	if prefix != "" {
		prefix += "."
	}
	r := f(pod, subject{object: object, prefix: prefix}, namespace)
	if len(r.Patch) > 0 {
		if _, ok := node["metadata"].(map[string]any); !ok {
			node["metadata"] = map[string]any{} // templates may leave it out
		}
		if _, err := Apply(node, r.Patch); err != nil {
			return nil, fmt.Errorf("%s: apply patch: %w", object, err)
		}
		if meta, _ := node["metadata"].(map[string]any); path != "" && len(meta) == 0 {
			delete(node, "metadata") // what we may have added goes with what we took
		}
	}
	return []Edited{{Object: object, Result: r}}, nil
}

// named gives how messages call an object, and its namespace.
func named(doc map[string]any, kind, namespace string) (string, string) {
	meta, _ := doc["metadata"].(map[string]any)
	if ns, _ := meta["namespace"].(string); ns != "" {
		namespace = ns
	}
	name, _ := meta["name"].(string)
	if generate, _ := meta["generateName"].(string); name == "" && generate != "" {
		name = generate + "*"
	}
	if name == "" {
		name = "(unnamed)"
	}
	if namespace == "" {
		return kind + " " + name, namespace
	}
	return kind + " " + namespace + "/" + name, namespace
}

// podOf reads a pod or a template; case counts, as for the API server.
func podOf(node map[string]any) (*corev1.Pod, error) {
	if _, ok := node["spec"].(map[string]any); !ok {
		return nil, errors.New("no spec (write the pod's spec there)")
	}
	b, err := json.Marshal(node)
	if err != nil {
		return nil, err
	}
	var pod corev1.Pod
	if err := kjson.Unmarshal(b, &pod); err != nil {
		return nil, err
	}
	return &pod, nil
}

// decode reads JSON and keeps whole numbers whole.
func decode(b []byte) (any, error) {
	var v any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	err := dec.Decode(&v)
	return v, err
}
