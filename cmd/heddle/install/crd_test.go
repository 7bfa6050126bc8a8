package install

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
)

// schemas gives each kind's schema from the CRDs.
func schemas(t *testing.T) map[string]map[string]any {
	t.Helper()
	ms, err := Render(Values{}, "v1.36.3", "")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]any{}
	for _, m := range ms {
		if m.Object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		kind, _, _ := unstructured.NestedString(m.Object.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(m.Object.Object, "spec", "versions")
		schema, _, _ := unstructured.NestedMap(asMap(versions[0]), "schema", "openAPIV3Schema")
		if _, ok, _ := unstructured.NestedMap(asMap(versions[0]), "subresources", "status"); !ok || len(versions) != 1 {
			t.Errorf("%s: want one version with a status subresource", kind)
		}
		if !slices.Contains(crds, m.Object.GetName()) {
			t.Errorf("uninstall does not know of %s", m.Object.GetName())
		}
		out[kind] = schema
	}
	if len(out) != len(crds) {
		t.Errorf("%d CRDs, uninstall knows %d", len(out), len(crds))
	}
	return out
}

var kinds = map[string]reflect.Type{
	"MeshConfig":    reflect.TypeFor[v1alpha1.MeshConfig](),
	"AccessPolicy":  reflect.TypeFor[v1alpha1.AccessPolicy](),
	"TrafficPolicy": reflect.TypeFor[v1alpha1.TrafficPolicy](),
}

// Every JSON field of the Go types is in the schema, with its type, and the
// other way around: a field that only one side knows is lost in silence.
func TestSchemasAreTheTypes(t *testing.T) {
	all := schemas(t)
	for kind, typ := range kinds {
		compare(t, kind, typ, all[kind])
	}
}

// scalars are types that JSON writes as one word.
var scalars = map[reflect.Type]string{
	reflect.TypeFor[metav1.Duration](): "string",
	reflect.TypeFor[metav1.Time]():     "string",
}

func compare(t *testing.T, at string, typ reflect.Type, schema map[string]any) {
	t.Helper()
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	want, scalar := scalars[typ], true
	if want == "" {
		want, scalar = jsonType(typ)
	}
	if schema["type"] != want {
		t.Errorf("%s: the schema says %v, Go %s is %s", at, schema["type"], typ, want)
		return
	}
	switch {
	case scalar:
	case typ.Kind() == reflect.Slice:
		compare(t, at+"[]", typ.Elem(), asMap(schema["items"]))
	case typ.Kind() == reflect.Map:
		compare(t, at+"{}", typ.Elem(), asMap(schema["additionalProperties"]))
	default:
		fields(t, at, typ, schema)
	}
}

func jsonType(typ reflect.Type) (name string, scalar bool) {
	switch typ.Kind() {
	case reflect.Struct, reflect.Map:
		return "object", false
	case reflect.Slice:
		return "array", false
	case reflect.String:
		return "string", true
	case reflect.Bool:
		return "boolean", true
	case reflect.Float64:
		return "number", true
	}
	return "integer", true
}

func fields(t *testing.T, at string, typ reflect.Type, schema map[string]any) {
	t.Helper()
	properties, seen := asMap(schema["properties"]), map[string]bool{}
	required, _, _ := unstructured.NestedStringSlice(schema, "required")
	for n := range typ.NumField() {
		f := typ.Field(n)
		tag := strings.Split(f.Tag.Get("json"), ",")
		if name := tag[0]; name == "metadata" {
			seen[name] = true
		} else if slices.Contains(tag, "inline") { // apiVersion, kind
			seen["apiVersion"], seen["kind"] = true, true
		} else {
			seen[name] = true
			optional := slices.Contains(tag, "omitempty") || slices.Contains(tag, "omitzero")
			if optional == slices.Contains(required, name) && typ != reflect.TypeFor[metav1.Condition]() {
				t.Errorf("%s.%s: optional in Go: %v, and in the schema otherwise", at, name, optional)
			}
			if properties[name] == nil {
				t.Errorf("%s.%s: not in the schema", at, name)
				continue
			}
			compare(t, at+"."+name, f.Type, asMap(properties[name]))
		}
	}
	for name := range properties {
		if !seen[name] {
			t.Errorf("%s.%s: not in the Go types", at, name)
		}
	}
}

// find walks a schema: a name is a property, "[]" the items of a list.
func find(t *testing.T, schema map[string]any, path string) map[string]any {
	t.Helper()
	for step := range strings.SplitSeq(path, ".") {
		if step == "[]" {
			schema = asMap(schema["items"])
		} else {
			schema = asMap(asMap(schema["properties"])[step])
		}
	}
	if schema == nil {
		t.Fatalf("no %s in the schema", path)
	}
	return schema
}

// The words and bounds of the schema are those of Validate: what one takes,
// the other does not refuse.
func TestSchemasSayWhatValidateSays(t *testing.T) {
	all := schemas(t)
	words := func(kind, path string, use func(word string) []v1alpha1.FieldError) {
		t.Helper()
		enum, _ := find(t, all[kind], path)["enum"].([]any)
		if len(enum) < 2 {
			t.Errorf("%s: enum %v", path, enum)
		}
		for _, w := range enum {
			if bad := use(fmt.Sprint(w)); len(bad) > 0 {
				t.Errorf("%s: %v: %v", path, w, bad)
			}
		}
	}
	words("AccessPolicy", "spec.rules.[].action", func(w string) []v1alpha1.FieldError {
		p := v1alpha1.AccessPolicy{Spec: v1alpha1.AccessPolicySpec{Rules: []v1alpha1.AccessRule{{Action: v1alpha1.AccessAction(w)}}}}
		return p.Validate()
	})
	words("AccessPolicy", "spec.mtls.mode", func(w string) []v1alpha1.FieldError {
		p := v1alpha1.AccessPolicy{Spec: v1alpha1.AccessPolicySpec{MTLS: &v1alpha1.MTLSRule{Mode: v1alpha1.MTLSMode(w)}}}
		return p.Validate()
	})
	traffic := func(r v1alpha1.Retry) []v1alpha1.FieldError {
		p := v1alpha1.TrafficPolicy{Spec: v1alpha1.TrafficPolicySpec{TargetRefs: []v1alpha1.TargetRef{{Name: "a"}}, Retry: &r}}
		return p.Validate()
	}
	words("TrafficPolicy", "spec.retry.when.[]", func(w string) []v1alpha1.FieldError {
		return traffic(v1alpha1.Retry{When: []v1alpha1.RetryCause{v1alpha1.RetryCause(w)}})
	})
	bounds := func(path string, use func(n uint32) []v1alpha1.FieldError) {
		t.Helper()
		s := find(t, all["TrafficPolicy"], path)
		least, most := s["minimum"].(int64), s["maximum"].(int64)
		for n, good := range map[int64]bool{least: true, most: true, most + 1: false} {
			if bad := use(uint32(n)); (len(bad) == 0) != good {
				t.Errorf("%s: %d: %v, want good: %v", path, n, bad, good)
			}
		}
	}
	bounds("spec.retry.attempts", func(n uint32) []v1alpha1.FieldError { return traffic(v1alpha1.Retry{Attempts: n}) })
	bounds("spec.retry.statusCodes.[]", func(n uint32) []v1alpha1.FieldError {
		return traffic(v1alpha1.Retry{StatusCodes: []uint32{n}})
	})
	bounds("spec.retry.maxBodyBytes", func(n uint32) []v1alpha1.FieldError {
		return traffic(v1alpha1.Retry{MaxBodyBytes: &n})
	})
	bounds("spec.outlierEjection.maxEjectedPercent", func(n uint32) []v1alpha1.FieldError {
		p := v1alpha1.TrafficPolicy{Spec: v1alpha1.TrafficPolicySpec{TargetRefs: []v1alpha1.TargetRef{{Name: "a"}},
			OutlierEjection: &v1alpha1.OutlierEjection{MaxEjectedPercent: &n}}}
		return p.Validate()
	})
	bounds("spec.circuitBreaker.maxConnections", func(n uint32) []v1alpha1.FieldError {
		p := v1alpha1.TrafficPolicy{Spec: v1alpha1.TrafficPolicySpec{TargetRefs: []v1alpha1.TargetRef{{Name: "a"}},
			CircuitBreaker: &v1alpha1.CircuitBreaker{MaxConnections: &n}}}
		return p.Validate()
	})
}
