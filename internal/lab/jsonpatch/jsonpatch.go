// Package jsonpatch applies a JSON patch (RFC 6902) as an admission webhook
// returns it: add, replace, remove and test. It is strict: an operation it does
// not know, a path that leads nowhere or an index out of range fails the whole
// patch and changes nothing. It does not know what the document means.
// internal/lab/admit calls it.
package jsonpatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxOperations bounds a patch: a webhook that sends more is broken, and each
// operation may copy an array.
const maxOperations = 10_000

// operation is one step of a patch; Value is nil if the member is absent,
// which differs from null.
type operation struct {
	Op    string           `json:"op"`
	Path  *string          `json:"path"`
	Value *json.RawMessage `json:"value"`
}

// Apply returns doc with the patch applied. Neither input is changed.
func Apply(doc, patch []byte) ([]byte, error) {
	root, err := decode(doc)
	if err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	ops, err := readPatch(patch)
	if err != nil {
		return nil, err
	}
	for i, op := range ops {
		if root, err = apply(root, op); err != nil {
			return nil, fmt.Errorf("operation %d, %s %q: %w", i, op.Op, *op.Path, err)
		}
	}
	return json.Marshal(root)
}

// readPatch decodes and checks the operations. encoding/json turns "null" for a
// *RawMessage into nil, so a null value is found by looking at the raw members.
func readPatch(patch []byte) ([]operation, error) {
	var raw []map[string]json.RawMessage
	if err := json.Unmarshal(patch, &raw); err != nil {
		return nil, fmt.Errorf("read the patch: %w", err)
	}
	if len(raw) > maxOperations {
		return nil, fmt.Errorf("read the patch: %d operations, more than %d", len(raw), maxOperations)
	}
	ops := make([]operation, len(raw))
	for i, m := range raw {
		op := &ops[i]
		if err := json.Unmarshal(m["op"], &op.Op); err != nil {
			return nil, fmt.Errorf("operation %d: op is not a string", i)
		}
		if err := json.Unmarshal(m["path"], &op.Path); err != nil || op.Path == nil {
			return nil, fmt.Errorf("operation %d: path is not a string", i)
		}
		if v, ok := m["value"]; ok {
			op.Value = &v
		}
	}
	return ops, nil
}

func apply(root any, op operation) (any, error) {
	path, err := pointer(*op.Path)
	if err != nil {
		return nil, err
	}
	var value any
	switch op.Op {
	case "add", "replace", "test":
		if op.Value == nil {
			return nil, fmt.Errorf("no value")
		}
		if value, err = decode(*op.Value); err != nil {
			return nil, fmt.Errorf("read the value: %w", err)
		}
	case "remove":
	default:
		return nil, fmt.Errorf("unknown operation")
	}
	return walk(root, path, func(old any, exists bool) (any, bool, error) {
		if op.Op != "add" && !exists {
			return nil, false, fmt.Errorf("the path does not exist")
		}
		switch op.Op {
		case "remove":
			return nil, false, nil
		case "test":
			if !equal(old, value) {
				return nil, false, fmt.Errorf("the test does not hold")
			}
			return old, true, nil
		}
		return value, true, nil
	}, op.Op == "add")
}

// change gives the new value at the end of a path and whether it stays.
type change func(old any, exists bool) (value any, keep bool, err error)

// walk follows path from node, lets f change what stands at its end and returns
// the new node. insert makes an array grow instead of replacing.
func walk(node any, path []string, f change, insert bool) (any, error) {
	if len(path) == 0 {
		v, keep, err := f(node, true)
		if err == nil && !keep {
			return nil, fmt.Errorf("the whole document cannot be removed")
		}
		return v, err
	}
	switch n := node.(type) {
	case map[string]any:
		return n, walkMap(n, path, f, insert)
	case []any:
		return walkArray(n, path, f, insert)
	}
	return nil, fmt.Errorf("%q: its parent is neither an object nor an array", path[0])
}

func walkMap(n map[string]any, path []string, f change, insert bool) error {
	old, exists := n[path[0]]
	if len(path) > 1 {
		if !exists {
			return fmt.Errorf("%q does not exist", path[0])
		}
		v, err := walk(old, path[1:], f, insert)
		if err == nil {
			n[path[0]] = v
		}
		return err
	}
	v, keep, err := f(old, exists)
	switch {
	case err != nil:
		return err
	case keep:
		n[path[0]] = v
	default:
		delete(n, path[0])
	}
	return nil
}

func walkArray(n []any, path []string, f change, insert bool) (any, error) {
	last := len(path) == 1
	i, err := index(path[0], len(n), last && insert)
	if err != nil {
		return nil, err
	}
	if !last {
		v, err := walk(n[i], path[1:], f, insert)
		if err == nil {
			n[i] = v
		}
		return n, err
	}
	if insert {
		v, _, err := f(nil, false)
		if err != nil {
			return nil, err
		}
		out := append(make([]any, 0, len(n)+1), n[:i]...)
		return append(append(out, v), n[i:]...), nil
	}
	v, keep, err := f(n[i], true)
	if err != nil {
		return nil, err
	}
	if !keep {
		return append(n[:i:i], n[i+1:]...), nil
	}
	n[i] = v
	return n, nil
}

// index reads an array index (RFC 6901 §4: digits without leading zeros);
// "-" means behind the last element and only makes sense for an insertion.
func index(s string, length int, insert bool) (int, error) {
	limit := length - 1
	if insert {
		limit = length
		if s == "-" {
			return length, nil
		}
	}
	i, err := strconv.Atoi(s)
	if err != nil || s != strconv.Itoa(i) || i < 0 {
		return 0, fmt.Errorf("%q is not an index of the array", s)
	}
	if i > limit {
		return 0, fmt.Errorf("index %d is beyond the array of %d", i, length)
	}
	return i, nil
}

// pointer splits a JSON pointer (RFC 6901).
func pointer(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	if s[0] != '/' {
		return nil, fmt.Errorf("a path begins with '/'")
	}
	parts := strings.Split(s[1:], "/")
	for i, p := range parts {
		for j := 0; j < len(p); j++ {
			if p[j] == '~' && (j+1 == len(p) || p[j+1] != '0' && p[j+1] != '1') {
				return nil, fmt.Errorf("%q: '~' stands alone", p)
			}
		}
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return parts, nil
}

// decode keeps numbers as they are written: an int64 must not become a float.
func decode(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows the value")
	}
	return v, nil
}

// equal compares by value (RFC 6902 §4.6): numbers numerically.
func equal(a, b any) bool {
	switch x := a.(type) {
	case json.Number:
		y, ok := b.(json.Number)
		if !ok {
			return false
		}
		if x == y {
			return true
		}
		f, err1 := x.Float64()
		g, err2 := y.Float64()
		return err1 == nil && err2 == nil && f == g
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			w, ok := y[k]
			if !ok || !equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !equal(x[i], y[i]) {
				return false
			}
		}
		return true
	}
	return a == b // strings, booleans, null
}
