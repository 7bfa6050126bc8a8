package manifest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
)

// ReadObject reads one object in the JSON of an API server, whose lists leave
// the kind out of each item. Its Problems name no file and no line.
func ReadObject(apiVersion, kind string, data []byte) *Text {
	r := &reader{server: true, out: &Text{}}
	r.object(item{json: data}, header{APIVersion: apiVersion, Kind: kind})
	return r.out
}

// ours says whether an apiVersion is of our kinds.
func ours(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group == v1alpha1.Group
}

// serverKept are the parts of an object's metadata that API servers keep for
// themselves or for other tools. We read none of them, and most change when
// the object says the same.
var serverKept = []string{"managedFields", "resourceVersion", "selfLink", "ownerReferences", "finalizers"}

// lastApplied is where kubectl keeps a second copy of the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// written is what people wrote of one of our objects: without the status,
// which is our own word, and without serverKept.
func written(text []byte) []byte {
	var o map[string]any
	if json.Unmarshal(text, &o) != nil {
		return text // the decoder will say what is wrong
	}
	changed := drop(o, "status")
	if meta, ok := o["metadata"].(map[string]any); ok {
		for _, k := range serverKept {
			changed = drop(meta, k) || changed
		}
		if notes, ok := meta["annotations"].(map[string]any); ok {
			changed = drop(notes, lastApplied) || changed
			if len(notes) == 0 {
				changed = drop(meta, "annotations") || changed
			}
		}
	}
	if !changed {
		return text
	}
	out, err := json.Marshal(o)
	if err != nil {
		return text
	}
	return out
}

func drop(m map[string]any, key string) bool {
	_, had := m[key]
	delete(m, key)
	return had
}

// route takes a route of the Gateway API as it is written.
func route(it item) (any, []v1alpha1.FieldError, []v1alpha1.FieldError) {
	var o struct {
		Metadata struct {
			Generation int64     `json:"generation"`
			Created    time.Time `json:"creationTimestamp"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(it.json, &o); err != nil {
		return nil, nil, []v1alpha1.FieldError{fieldError(err)}
	}
	spec, err := json.Marshal(o.Spec) // sorts the keys
	if err != nil {
		return nil, nil, []v1alpha1.FieldError{{Field: "spec", Err: fmt.Sprintf("cannot be kept: %v", err), Fix: "correct the value"}}
	}
	return &source.Route{Ref: it.ref, Generation: o.Metadata.Generation, Created: o.Metadata.Created, Spec: spec}, nil, nil
}
