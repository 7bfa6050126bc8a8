package cluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Read gives the objects of a stream of YAML or JSON documents, those of lists
// one by one; name is for errors. Empty documents are none.
func Read(name string, text []byte) ([]*Object, error) {
	var out []*Object
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for number := 1; ; number++ {
		doc, err := docs.Read()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: document %d: %w", name, number, err)
		}
		objs, err := decode(doc)
		if err != nil {
			return nil, fmt.Errorf("read %s: document %d: %w", name, number, err)
		}
		out = append(out, objs...)
	}
}

func decode(doc []byte) ([]*Object, error) {
	// Strict: of two equal keys one would be lost in silence.
	asJSON, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, err
	}
	if string(asJSON) == "null" {
		return nil, nil
	}
	var about struct{ APIVersion, Kind string }
	if err := json.Unmarshal(asJSON, &about); err != nil || about.APIVersion == "" || about.Kind == "" {
		return nil, errors.New("no Kubernetes object (write apiVersion, kind and metadata)")
	}
	obj := &Object{}
	if err := obj.UnmarshalJSON(asJSON); err != nil {
		return nil, err
	}
	if !obj.IsList() {
		return []*Object{obj}, nil
	}
	var out []*Object
	err = obj.EachListItem(func(item runtime.Object) error {
		out = append(out, item.(*unstructured.Unstructured))
		return nil
	})
	return out, err
}
