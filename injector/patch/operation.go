package patch

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Operation is one step of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`              // add, replace or remove
	Path  string `json:"path"`            // JSON pointer (RFC 6901)
	Value any    `json:"value,omitempty"` // not for remove
}

func add(path string, value any) Operation { return Operation{Op: "add", Path: path, Value: value} }

func remove(path string) Operation { return Operation{Op: "remove", Path: path} }

// escape makes a name one step of a pointer (RFC 6901 §3).
func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func unescape(step string) string {
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
}

// Apply carries operations out on a decoded JSON document and gives the new
// one. doc itself may be changed; after an error it is of no use.
func Apply(doc any, ops []Operation) (any, error) {
	for _, op := range ops {
		steps, err := pointer(op.Path)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
		}
		value, err := generic(op.Value)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
		}
		if doc, err = change(doc, steps, op.Op, value); err != nil {
			return nil, fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
		}
	}
	return doc, nil
}

func pointer(path string) ([]string, error) {
	if path == "" || path[0] != '/' {
		return nil, fmt.Errorf("pointer does not begin with /")
	}
	steps := strings.Split(path[1:], "/")
	for i := range steps {
		steps[i] = unescape(steps[i])
	}
	return steps, nil
}

// generic turns a typed value into what a JSON decoder gives.
func generic(v any) (any, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return decode(b)
}

// change goes down the steps and gives what takes node's place.
func change(node any, steps []string, op string, value any) (any, error) {
	step, last := steps[0], len(steps) == 1
	switch n := node.(type) {
	case map[string]any:
		child, ok := n[step]
		switch {
		case last && op == "add":
			n[step] = value
			return n, nil
		case !ok:
			return nil, fmt.Errorf("no member %q", step)
		case last && op == "remove":
			delete(n, step)
			return n, nil
		case last && op == "replace":
			n[step] = value
			return n, nil
		case last:
			return nil, fmt.Errorf("operation is not known")
		}
		child, err := change(child, steps[1:], op, value)
		n[step] = child
		return n, err
	case []any:
		return changeList(n, steps, op, value)
	}
	return nil, fmt.Errorf("nothing to go into at %q", step)
}

func changeList(n []any, steps []string, op string, value any) (any, error) {
	step, last := steps[0], len(steps) == 1
	if last && op == "add" && step == "-" {
		return append(n, value), nil
	}
	i, err := strconv.Atoi(step)
	if err != nil || i < 0 || i > len(n) || i == len(n) && !(last && op == "add") {
		return nil, fmt.Errorf("no element %q", step)
	}
	switch {
	case last && op == "add":
		return append(n[:i:i], append([]any{value}, n[i:]...)...), nil
	case last && op == "remove":
		return append(n[:i:i], n[i+1:]...), nil
	case last && op == "replace":
		n[i] = value
		return n, nil
	case last:
		return nil, fmt.Errorf("operation is not known")
	}
	n[i], err = change(n[i], steps[1:], op, value)
	return n, err
}
