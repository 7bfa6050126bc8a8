package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
)

// fake is a cluster in memory, whose controllers are one function.
type fake struct {
	mu      sync.Mutex
	objs    map[string]*cluster.Object
	born    map[string]time.Time
	ends    map[string]time.Time // of objects that are being deleted
	version string
	// control is called before each read, as controllers would have acted by
	// then; age is the object's.
	control func(o *cluster.Object, age time.Duration)
	pages   map[string]string // what Fetch gives; /ready with an error
	deleted []string
}

func newFake() *fake {
	f := &fake{objs: map[string]*cluster.Object{}, born: map[string]time.Time{}, ends: map[string]time.Time{}, version: "v1.36.3", control: willing}
	f.add("v1", "Namespace", "", "default", nil)
	f.add("discovery.k8s.io/v1", "EndpointSlice", "default", "kubernetes", map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"kubernetes.io/service-name": "kubernetes"}},
		"ports":    []any{map[string]any{"port": int64(6443)}}, "endpoints": []any{map[string]any{"addresses": []any{"192.0.2.1"}}}})
	return f
}

// willing makes everything ready after five seconds.
func willing(o *cluster.Object, age time.Duration) {
	switch o.GetKind() {
	case "CustomResourceDefinition":
		if age >= time.Second {
			set(o, []any{map[string]any{"type": "Established", "status": "True"}}, "status", "conditions")
		}
	case "Deployment":
		set(o, o.GetGeneration(), "status", "observedGeneration")
		want, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		set(o, want, "status", "replicas")
		set(o, want, "status", "updatedReplicas")
		if age >= 5*time.Second {
			set(o, want, "status", "availableReplicas")
		}
	case "DaemonSet":
		set(o, o.GetGeneration(), "status", "observedGeneration")
		set(o, int64(3), "status", "desiredNumberScheduled")
		set(o, int64(3), "status", "updatedNumberScheduled")
		if age >= 5*time.Second {
			set(o, int64(3), "status", "numberAvailable")
		}
	}
}

func set(o *cluster.Object, v any, path ...string) {
	if err := unstructured.SetNestedField(o.Object, v, path...); err != nil {
		panic(err)
	}
}

func (f *fake) add(apiVersion, kind, namespace, name string, more map[string]any) *cluster.Object {
	o := &cluster.Object{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	maps.Copy(o.Object, more)
	o.SetNamespace(namespace)
	o.SetName(name)
	f.objs[cluster.RefOf(o).String()], f.born[cluster.RefOf(o).String()] = o, time.Now()
	return o
}

// act lets controllers act and deletions end.
func (f *fake) act() {
	for name, o := range f.objs {
		f.control(o, time.Since(f.born[name]))
	}
	for name, end := range f.ends {
		if time.Now().Before(end) {
			continue
		}
		for other, o := range f.objs {
			if other == name || "Namespace "+o.GetNamespace() == name {
				delete(f.objs, other)
			}
		}
		delete(f.ends, name)
	}
}

func absent(ref cluster.Ref) error {
	return fmt.Errorf("read %s: %w", ref, apierrors.NewNotFound(schema.GroupResource{Resource: ref.Kind}, ref.Name))
}

func (f *fake) ServerVersion(context.Context) (string, error) { return f.version, nil }

func (f *fake) Get(_ context.Context, ref cluster.Ref) (*cluster.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.act()
	if o := f.objs[ref.String()]; o != nil {
		return o.DeepCopy(), nil
	}
	return nil, absent(ref)
}

func (f *fake) Apply(_ context.Context, obj *cluster.Object) (cluster.Outcome, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.act()
	ref := cluster.RefOf(obj)
	if obj.GetAPIVersion() == "heddle.dev/v1alpha1" && time.Since(f.born["CustomResourceDefinition meshconfigs.heddle.dev"]) < 3*time.Second {
		return "", fmt.Errorf("%s: %w", ref, cluster.ErrNoKind)
	}
	if ns := obj.GetNamespace(); ns != "" && f.objs["Namespace "+ns] == nil {
		return "", fmt.Errorf("apply %s: no namespace", ref)
	}
	old := f.objs[ref.String()]
	next := obj.DeepCopy()
	if old != nil {
		same := old.DeepCopy()
		delete(same.Object, "status")
		same.SetGeneration(0)
		wanted := next.DeepCopy()
		wanted.SetGeneration(0)
		if reflect.DeepEqual(same.Object, wanted.Object) {
			return cluster.Unchanged, nil
		}
		next.SetGeneration(old.GetGeneration() + 1)
	}
	f.objs[ref.String()], f.born[ref.String()] = next, time.Now()
	if old != nil {
		return cluster.Configured, nil
	}
	return cluster.Created, nil
}

func (f *fake) List(_ context.Context, ref cluster.Ref, selector string) ([]cluster.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.act()
	if ref.APIVersion == "heddle.dev/v1alpha1" && f.objs["CustomResourceDefinition meshconfigs.heddle.dev"] == nil {
		return nil, cluster.ErrNoKind
	}
	var out []cluster.Object
	for _, name := range slices.Sorted(maps.Keys(f.objs)) {
		o := f.objs[name]
		key, value, valued := strings.Cut(selector, "=")
		has, is := o.GetLabels()[key]
		if o.GetKind() == ref.Kind && (ref.Namespace == "" || o.GetNamespace() == ref.Namespace) && (selector == "" || is && (!valued || has == value)) {
			out = append(out, *o.DeepCopy())
		}
	}
	return out, nil
}

func (f *fake) Delete(_ context.Context, ref cluster.Ref) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.act()
	o := f.objs[ref.String()]
	if o == nil {
		return false, nil
	}
	f.deleted = append(f.deleted, ref.String())
	if ref.Kind == "Namespace" || ref.Kind == "CustomResourceDefinition" { // finalizers
		f.ends[ref.String()] = time.Now().Add(3 * time.Second)
		set(o, time.Now().UTC().Format(time.RFC3339), "metadata", "deletionTimestamp")
		return true, nil
	}
	delete(f.objs, ref.String())
	return true, nil
}

func (f *fake) Fetch(_ context.Context, path string, query map[string]string) ([]byte, error) {
	for _, k := range slices.Sorted(maps.Keys(query)) {
		path += " " + k + "=" + query[k]
	}
	var err error
	if strings.HasSuffix(path, "/ready") {
		err = errors.New("503")
	}
	return []byte(f.pages[path]), err
}

// names lists what is there of Heddle.
func (f *fake) names() []string {
	var out []string
	for name, o := range f.objs {
		if o.GetNamespace() != "default" && name != "Namespace default" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func installed(t *testing.T, f *fake, sets ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := Install(t.Context(), f, Options{Values: Values{Set: sets}, Release: "v1", Timeout: time.Minute, Out: &out}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}
