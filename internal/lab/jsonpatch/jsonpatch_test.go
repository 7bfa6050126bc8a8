package jsonpatch

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestApply(t *testing.T) {
	for _, c := range []struct{ name, doc, patch, want, err string }{
		{"add member", `{"a":1}`, `[{"op":"add","path":"/b","value":2}]`, `{"a":1,"b":2}`, ""},
		{"add replaces a member", `{"a":1}`, `[{"op":"add","path":"/a","value":[]}]`, `{"a":[]}`, ""},
		{"add null", `{}`, `[{"op":"add","path":"/a","value":null}]`, `{"a":null}`, ""},
		{"add at the front", `{"l":[2]}`, `[{"op":"add","path":"/l/0","value":1}]`, `{"l":[1,2]}`, ""},
		{"add at the end by index", `{"l":[2]}`, `[{"op":"add","path":"/l/1","value":3}]`, `{"l":[2,3]}`, ""},
		{"add at the end by dash", `{"l":[2]}`, `[{"op":"add","path":"/l/-","value":3}]`, `{"l":[2,3]}`, ""},
		{"add to the root", `{"l":1}`, `[{"op":"add","path":"","value":{"x":1}}]`, `{"x":1}`, ""},
		{"add deep in an array", `{"l":[{"e":[]}]}`, `[{"op":"add","path":"/l/0/e/-","value":"v"}]`, `{"l":[{"e":["v"]}]}`, ""},
		{"escapes", `{"m":{}}`, `[{"op":"add","path":"/m/heddle.dev~1inject~0","value":"x"}]`, `{"m":{"heddle.dev/inject~":"x"}}`, ""},
		{"replace", `{"a":1}`, `[{"op":"replace","path":"/a","value":2}]`, `{"a":2}`, ""},
		{"replace an element", `[1,2]`, `[{"op":"replace","path":"/1","value":3}]`, `[1,3]`, ""},
		{"remove member", `{"a":1,"b":2}`, `[{"op":"remove","path":"/a"}]`, `{"b":2}`, ""},
		{"remove element", `{"l":[1,2,3]}`, `[{"op":"remove","path":"/l/1"}]`, `{"l":[1,3]}`, ""},
		{"test holds", `{"a":{"b":[1,"x"]}}`, `[{"op":"test","path":"/a","value":{"b":[1.0,"x"]}}]`, `{"a":{"b":[1,"x"]}}`, ""},
		{"steps see each other", `{}`, `[{"op":"add","path":"/a","value":{}},{"op":"add","path":"/a/b","value":1}]`, `{"a":{"b":1}}`, ""},
		{"big numbers survive", `{"n":9007199254740993}`, `[]`, `{"n":9007199254740993}`, ""},
		{"empty patch", `{"a":1}`, `[]`, `{"a":1}`, ""},

		{"test fails", `{"a":1}`, `[{"op":"test","path":"/a","value":2}]`, "", "does not hold"},
		{"replace nothing", `{}`, `[{"op":"replace","path":"/a","value":2}]`, "", "does not exist"},
		{"remove nothing", `{}`, `[{"op":"remove","path":"/a"}]`, "", "does not exist"},
		{"remove the root", `{}`, `[{"op":"remove","path":""}]`, "", "cannot be removed"},
		{"parent absent", `{}`, `[{"op":"add","path":"/a/b","value":2}]`, "", `"a" does not exist`},
		{"parent is a scalar", `{"a":1}`, `[{"op":"add","path":"/a/b","value":2}]`, "", "neither"},
		{"index beyond", `[1]`, `[{"op":"add","path":"/2","value":2}]`, "", "beyond"},
		{"replace beyond", `[1]`, `[{"op":"replace","path":"/1","value":2}]`, "", "beyond"},
		{"dash removes nothing", `[1]`, `[{"op":"remove","path":"/-"}]`, "", "not an index"},
		{"leading zero", `[1,2]`, `[{"op":"replace","path":"/01","value":2}]`, "", "not an index"},
		{"negative", `[1,2]`, `[{"op":"replace","path":"/-1","value":2}]`, "", "not an index"},
		{"move is unknown", `{"a":1}`, `[{"op":"move","from":"/a","path":"/b"}]`, "", "unknown operation"},
		{"no value", `{}`, `[{"op":"add","path":"/a"}]`, "", "no value"},
		{"no path", `{}`, `[{"op":"add","value":1}]`, "", "path is not a string"},
		{"path without slash", `{}`, `[{"op":"add","path":"a","value":1}]`, "", "begins with"},
		{"lone tilde", `{}`, `[{"op":"add","path":"/a~2","value":1}]`, "", "stands alone"},
		{"no array", `{}`, `{"op":"add"}`, "", "read the patch"},
		{"two documents", `{} {}`, `[]`, "", "something follows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Apply([]byte(c.doc), []byte(c.patch))
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want one with %q", err, c.err)
				}
			case err != nil:
				t.Fatal(err)
			case string(got) != c.want:
				t.Fatalf("got %s, want %s", got, c.want)
			}
		})
	}
}

func FuzzApply(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":2}]}`), []byte(`[{"op":"add","path":"/a/-","value":null},{"op":"remove","path":"/a/1/b"}]`))
	f.Add([]byte(`[]`), []byte(`[{"op":"test","path":"","value":[]},{"op":"replace","path":"","value":1e400}]`))
	f.Add([]byte(`{"":{"~":0}}`), []byte(`[{"op":"replace","path":"//~0","value":"x"}]`))
	f.Fuzz(func(t *testing.T, doc, patch []byte) {
		before := string(doc)
		got, err := Apply(doc, patch)
		if string(doc) != before {
			t.Fatal("the input was changed")
		}
		if err == nil && !json.Valid(got) {
			t.Fatalf("not JSON: %s", got)
		}
	})
}
