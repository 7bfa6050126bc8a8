package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/trim"
)

// decoder gives the value, what was left out of it, and why there is none.
type decoder func(it item) (value any, warnings, errs []v1alpha1.FieldError)

// decoders are the kinds we use.
var decoders = map[string]decoder{
	"v1 Namespace": foreign(func(o *corev1.Namespace, _ source.Ref) (any, []v1alpha1.FieldError) { return trim.Namespace(o), nil }),
	"v1 Node": foreign(func(o *corev1.Node, _ source.Ref) (any, []v1alpha1.FieldError) {
		v, f := trim.Node(o)
		return v, f
	}),
	"v1 Pod": foreign(func(o *corev1.Pod, r source.Ref) (any, []v1alpha1.FieldError) {
		o.Namespace = r.Namespace
		v, f := trim.Pod(o)
		return v, f
	}),
	"v1 Service": foreign(func(o *corev1.Service, r source.Ref) (any, []v1alpha1.FieldError) {
		o.Namespace = r.Namespace
		v, f := trim.Service(o)
		return v, f
	}),
	"v1 ServiceAccount": foreign(func(o *corev1.ServiceAccount, r source.Ref) (any, []v1alpha1.FieldError) {
		o.Namespace = r.Namespace
		return trim.ServiceAccount(o), nil
	}),
	"discovery.k8s.io/v1 EndpointSlice": foreign(func(o *discoveryv1.EndpointSlice, r source.Ref) (any, []v1alpha1.FieldError) {
		o.Namespace = r.Namespace
		v, f := trim.EndpointSlice(o)
		return v, f
	}),
	"networking.k8s.io/v1 ServiceCIDR": foreign(func(o *networkingv1.ServiceCIDR, _ source.Ref) (any, []v1alpha1.FieldError) {
		v, f := trim.ServiceCIDR(o)
		return v, f
	}),
	"heddle.dev/v1alpha1 MeshConfig": own(func(o *v1alpha1.MeshConfig, _ source.Ref) []v1alpha1.FieldError { return o.Validate() }),
	"heddle.dev/v1alpha1 AccessPolicy": own(func(o *v1alpha1.AccessPolicy, r source.Ref) []v1alpha1.FieldError {
		o.Namespace = r.Namespace
		return o.Validate()
	}),
	"heddle.dev/v1alpha1 TrafficPolicy": own(func(o *v1alpha1.TrafficPolicy, r source.Ref) []v1alpha1.FieldError {
		o.Namespace = r.Namespace
		return o.Validate()
	}),
	"gateway.networking.k8s.io/v1 HTTPRoute":      route,
	"gateway.networking.k8s.io/v1beta1 HTTPRoute": route,
	"gateway.networking.k8s.io/v1 GRPCRoute":      route,
	"gateway.networking.k8s.io/v1 TCPRoute":       route,
	"gateway.networking.k8s.io/v1alpha2 TCPRoute": route,
	"gateway.networking.k8s.io/v1 TLSRoute":       route,
	"gateway.networking.k8s.io/v1alpha3 TLSRoute": route,
	"gateway.networking.k8s.io/v1alpha2 TLSRoute": route,
}

// foreign decodes a kind of Kubernetes: fields we do not know may be newer
// than we are and are passed over.
func foreign[T any](cut func(*T, source.Ref) (any, []v1alpha1.FieldError)) decoder {
	return func(it item) (any, []v1alpha1.FieldError, []v1alpha1.FieldError) {
		o := new(T)
		if err := json.Unmarshal(it.json, o); err != nil {
			return nil, nil, []v1alpha1.FieldError{fieldError(err)}
		}
		v, warnings := cut(o, it.ref)
		return v, warnings, nil
	}
}

// own decodes one of our kinds: a field we do not know is a mistake, and
// passing over it could open what it meant to close.
func own[T any, P interface {
	*T
	SetGeneration(int64)
}](check func(*T, source.Ref) []v1alpha1.FieldError) decoder {
	return func(it item) (any, []v1alpha1.FieldError, []v1alpha1.FieldError) {
		var raw any
		if err := json.Unmarshal(it.json, &raw); err != nil {
			return nil, nil, []v1alpha1.FieldError{fieldError(err)}
		}
		var errs []v1alpha1.FieldError
		if _, err := yaml.YAMLToJSONStrict([]byte(it.doc)); err != nil {
			errs = append(errs, v1alpha1.FieldError{Err: strings.TrimPrefix(err.Error(), "yaml: "), Fix: "say each field once"})
		}
		unknown(raw, reflect.TypeFor[T](), "", &errs)
		o := new(T)
		if err := json.Unmarshal(it.json, o); err != nil {
			if e := fieldError(err); e.Field != "" || len(errs) == 0 {
				errs = append(errs, e)
			}
			return nil, nil, errs
		}
		P(o).SetGeneration(it.generation())
		errs = append(errs, check(o, it.ref)...)
		return o, nil, errs
	}
}

func fieldError(err error) v1alpha1.FieldError {
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return v1alpha1.FieldError{Field: te.Field, Err: fmt.Sprintf("a %s does not belong here", te.Value), Fix: "it wants " + kindOf(te.Type)}
	}
	return v1alpha1.FieldError{Err: err.Error(), Fix: "correct the value"}
}

// kindOf names a Go type for people.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint16:
		return "a number up to 65535"
	}
	return "a number"
}

// unknownField is the Err of a field that the kind does not have.
const unknownField = "no such field"

// unknown finds fields that a type does not have.
func unknown(v any, t reflect.Type, path string, errs *[]v1alpha1.FieldError) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		ownForm(v, t, path, errs)
		return
	}
	switch v := v.(type) {
	case map[string]any:
		if t.Kind() != reflect.Struct {
			return
		}
		known := map[string]reflect.Type{}
		fields(t, known)
		for k, inner := range sorted(v) {
			at := strings.TrimPrefix(path+"."+k, ".")
			if ft, ok := known[k]; ok {
				unknown(inner, ft, at, errs)
			} else {
				*errs = append(*errs, v1alpha1.FieldError{Field: at, Err: unknownField, Fix: "correct its name, or take it out"})
			}
		}
	case []any:
		if t.Kind() != reflect.Slice {
			return
		}
		for i, inner := range v {
			unknown(inner, t.Elem(), fmt.Sprintf("%s[%d]", path, i), errs)
		}
	}
}

// ownForm reads a value whose type has a form of its own. What is wrong with it
// is found here, where its path is known; the whole object's decoder only says
// that something is.
func ownForm(v any, t reflect.Type, path string, errs *[]v1alpha1.FieldError) {
	if v == nil {
		return // as if it were not said
	}
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, reflect.New(t).Interface())
	}
	if err == nil {
		return
	}
	fix := "correct the value"
	if t.Name() == "Duration" {
		fix = "a duration such as 1.5s or 250ms"
	}
	*errs = append(*errs, v1alpha1.FieldError{Field: path, Err: strings.TrimPrefix(err.Error(), "time: "), Fix: fix})
}

// fields collects the JSON names of a struct.
func fields(t reflect.Type, into map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			fields(f.Type, into)
		case name != "":
			into[name] = f.Type
		}
	}
}
