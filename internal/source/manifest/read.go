// Package manifest reads ordinary Kubernetes manifests, YAML or JSON, several
// documents and Lists in one text, into the values of internal/source. A bad
// document becomes a Problem with its line, field and fix; the rest is read.
// Kinds we do not use are passed over. It opens no files and remembers
// nothing: what becomes of an object whose document went bad is for its callers,
// internal/source/files and internal/source/kube.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Object is one good document.
type Object struct {
	Ref  source.Ref
	Line int
	// Value is a *source.Namespace, Node, Pod, Service, EndpointSlice or
	// ServiceAccount, a []netip.Prefix of a ServiceCIDR, a
	// *v1alpha1.MeshConfig, AccessPolicy or TrafficPolicy, or a *source.Route.
	Value any
	// JSON of the object as it stands, if it is of our kinds.
	JSON []byte
}

// Text is what one text holds.
type Text struct {
	Objects  []Object
	Problems []source.Problem
	Broken   []source.BrokenPolicy
	// Bad names the objects whose documents cannot be used.
	Bad []source.Ref
	// Nameless: a document cannot be used and does not say whose it is.
	Nameless bool
}

// maxDocuments bounds the documents and List items of one text: more is no
// manifest anybody wrote or a tool would split.
const maxDocuments = 50_000

// Read reads a text; file only names it in Problems.
func Read(file string, data []byte) *Text {
	r := &reader{file: file, out: &Text{}}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	line := 1
	for _, doc := range split(string(data)) {
		r.document(doc, line)
		line += strings.Count(doc, "\n")
	}
	return r.out
}

type reader struct {
	file   string
	server bool // what is read comes from an API server
	out    *Text
	count  int
}

// split cuts at lines of three dashes; each piece but the first keeps its
// dashes, so that line numbers add up.
func split(text string) []string {
	var out []string
	start := 0
	for at := 0; at < len(text); {
		end := strings.IndexByte(text[at:], '\n') + at + 1
		if end == at {
			end = len(text)
		}
		if isMark(text[at:end]) && at > start {
			out = append(out, text[start:at])
			start = at
		}
		at = end
	}
	return append(out, text[start:])
}

func isMark(line string) bool {
	rest, ok := strings.CutPrefix(line, "---")
	return ok && (rest == "" || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// item is one object's text on its way to a value.
type item struct {
	ref        source.Ref
	apiVersion string
	json       []byte
	doc        string // whole document, to find lines in
	line       int    // of the document
	path       string // of the object in the document: "" or items[3]
	counted    int64  // its generation, where an API server counts; 0: nobody does
}

// generation stands for the number that an API server counts up with each
// change of spec: a checksum of it, never 0, for one of our kinds. Nobody
// counts in a text, and what is compared is only whether two are the same.
func (it item) generation() int64 {
	if !ours(it.apiVersion) || it.counted != 0 {
		return it.counted
	}
	var o struct {
		Spec any `json:"spec"`
	}
	spec := it.json
	if json.Unmarshal(it.json, &o) == nil {
		if canonical, err := json.Marshal(o.Spec); err == nil {
			spec = canonical
		}
	}
	h := fnv.New64a()
	h.Write(spec)
	return int64(h.Sum64()>>(64-generationBits)) | 1
}

// generationBits is what a JSON number carries exactly.
const generationBits = 53

func (r *reader) document(doc string, line int) {
	if blank(doc) {
		return
	}
	text, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		r.unreadable(doc, line, err)
		return
	}
	r.object(item{json: text, doc: doc, line: line}, header{})
}

// blank: nothing but comments and marks.
func blank(doc string) bool {
	for l := range strings.Lines(doc) {
		if l = strings.TrimSpace(l); l != "" && l[0] != '#' && l != "---" && l != "..." {
			return false
		}
	}
	return true
}

type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name       string `json:"name"`
		Namespace  string `json:"namespace"`
		Generation int64  `json:"generation"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// object takes one document or item; outer is the List it stands in.
func (r *reader) object(it item, outer header) {
	if r.count++; r.count > maxDocuments {
		if r.count == maxDocuments+1 {
			r.problem(it, v1alpha1.FieldError{Err: fmt.Sprintf("more than %d documents", maxDocuments), Fix: "split the file"})
			r.out.Nameless = true
		}
		return
	}
	var h header
	if err := json.Unmarshal(it.json, &h); err != nil {
		r.unreadable(it.doc, it.line, typeError(err))
		return
	}
	if h.Kind == "" && h.APIVersion == "" {
		h.Kind, h.APIVersion = strings.TrimSuffix(outer.Kind, "List"), outer.APIVersion
	}
	it.ref = source.Ref{Kind: h.Kind, Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}
	it.apiVersion = h.APIVersion
	if r.server && ours(h.APIVersion) {
		it.counted = h.Metadata.Generation
	}
	if strings.HasSuffix(h.Kind, "List") && outer.Kind == "" {
		for i, raw := range h.Items {
			r.object(item{json: raw, doc: it.doc, line: it.line, path: fmt.Sprintf("items[%d]", i)}, h)
		}
		return
	}
	switch {
	case (h.Kind == "") != (h.APIVersion == ""):
		r.bad(it, v1alpha1.FieldError{Err: "apiVersion and kind must both be there", Fix: "add the one that is missing"})
		return
	case decoders[h.APIVersion+" "+h.Kind] == nil:
		if ours(h.APIVersion) {
			r.bad(it, v1alpha1.FieldError{Field: "kind", Err: fmt.Sprintf("%s %s is none of Heddle's", h.APIVersion, h.Kind), Fix: "kinds are MeshConfig, AccessPolicy and TrafficPolicy of heddle.dev/v1alpha1"})
		}
		return
	}
	if clusterScoped(h.Kind) {
		it.ref.Namespace = ""
	} else if it.ref.Namespace == "" {
		it.ref.Namespace = "default"
	}
	if it.ref.Name == "" {
		r.bad(it, v1alpha1.FieldError{Field: "metadata.name", Err: "is missing", Fix: "name the object; generateName needs an API server"})
		return
	}
	r.decode(it)
}

func clusterScoped(kind string) bool {
	switch kind {
	case "Namespace", "Node", "ServiceCIDR", "MeshConfig":
		return true
	}
	return false
}

func (r *reader) decode(it item) {
	if ours(it.apiVersion) {
		it.json = written(it.json)
	}
	value, warnings, errs := decoders[it.apiVersion+" "+it.ref.Kind](it)
	if len(errs) > 0 {
		r.bad(it, errs...)
		return
	}
	for _, w := range warnings {
		r.problem(it, w)
	}
	o := Object{Ref: it.ref, Line: it.line + lineOf(it.doc, it.path), Value: value}
	if ours(it.apiVersion) {
		o.JSON = it.json
	}
	r.out.Objects = append(r.out.Objects, o)
}

// problem reports a field of an object that stays.
func (r *reader) problem(it item, e v1alpha1.FieldError) {
	at := it.path
	if e.Field != "" {
		at = strings.TrimPrefix(at+"."+e.Field, ".")
	}
	r.out.Problems = append(r.out.Problems, source.Problem{
		File: r.file, Line: it.line + lineOf(it.doc, at), Ref: it.ref, Field: e.Field, Err: e.Err, Fix: e.Fix,
		Generation: it.generation(),
	})
}

// bad reports an object that cannot be used. An AccessPolicy denies what it
// selects, and everything in its namespace if that cannot be told.
func (r *reader) bad(it item, errs ...v1alpha1.FieldError) {
	for _, e := range errs {
		r.problem(it, e)
	}
	if it.ref.Name == "" || it.ref.Kind == "" {
		r.out.Nameless = true
	} else {
		r.out.Bad = append(r.out.Bad, it.ref)
	}
	if it.ref.Kind == "AccessPolicy" && ours(it.apiVersion) {
		if it.ref.Namespace == "" {
			it.ref.Namespace = "default"
		}
		r.out.Broken = append(r.out.Broken, source.BrokenPolicy{Ref: it.ref, Selector: salvage(it, errs), Err: errs[0].Error()})
	}
}

// salvage reads the selection of a policy that is otherwise bad. A field of
// spec that we do not know may be a misspelt selector, so then it selects all.
func salvage(it item, errs []v1alpha1.FieldError) map[string]string {
	for _, e := range errs {
		if e.Err == unknownField && strings.Count(e.Field, ".") < 2 && !strings.Contains(e.Field, "[") || strings.HasPrefix(e.Field, "spec.selector") || e.Field == "kind" {
			return nil
		}
	}
	var p struct {
		Spec struct {
			Selector map[string]string `json:"selector"`
		} `json:"spec"`
	}
	if json.Unmarshal(it.json, &p) != nil || len(p.Spec.Selector) == 0 {
		return nil
	}
	return p.Spec.Selector
}

var (
	kindLine      = regexp.MustCompile(`(?m)(?:^[ -]*|["{,]\s*)kind["']?[ \t]*:[ \t]*["']?([A-Za-z]+)`)
	nameLine      = regexp.MustCompile(`(?m)(?:^[ -]*|["{,]\s*)name["']?[ \t]*:[ \t]*["']?([A-Za-z0-9.-]+)`)
	namespaceLine = regexp.MustCompile(`(?m)(?:^[ -]*|["{,]\s*)namespace["']?[ \t]*:[ \t]*["']?([A-Za-z0-9.-]+)`)
	yamlLine      = regexp.MustCompile(`line (\d+): ?`)
)

// unreadable reports a document that is no YAML, or no object. Who it meant to
// be is looked for in its text, so that an AccessPolicy in there denies at
// least its namespace.
func (r *reader) unreadable(doc string, line int, err error) {
	p := source.Problem{File: r.file, Line: line + lineOf(doc, ""), Err: strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: "), Fix: "correct the document"}
	if m := yamlLine.FindStringSubmatchIndex(p.Err); m != nil {
		if n, e := strconv.Atoi(p.Err[m[2]:m[3]]); e == nil && n <= strings.Count(doc, "\n")+1 {
			p.Line = line + max(n-1, 0)
			p.Err = p.Err[:m[0]] + p.Err[m[1]:]
		}
	}
	kinds := kindLine.FindAllStringSubmatch(doc, -1)
	if len(kinds) > 0 {
		p.Ref.Kind = kinds[0][1]
	}
	if m := nameLine.FindStringSubmatch(doc); m != nil {
		p.Ref.Name = m[1]
	}
	spaces := []string{}
	for _, m := range namespaceLine.FindAllStringSubmatch(doc, -1) {
		if !slices.Contains(spaces, m[1]) {
			spaces = append(spaces, m[1])
		}
	}
	if len(spaces) == 0 {
		spaces = append(spaces, "default")
	}
	if !clusterScoped(p.Ref.Kind) {
		p.Ref.Namespace = spaces[0]
	}
	r.out.Problems = append(r.out.Problems, p)
	r.out.Nameless = true
	if slices.ContainsFunc(kinds, func(k []string) bool { return k[1] == "AccessPolicy" }) {
		for _, ns := range spaces {
			ref := source.Ref{Kind: "AccessPolicy", Namespace: ns, Name: p.Ref.Name}
			r.out.Broken = append(r.out.Broken, source.BrokenPolicy{Ref: ref, Err: p.Err})
		}
	}
}

// typeError makes of encoding/json's words some that name no Go types.
func typeError(err error) error {
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if te.Field == "" {
			return fmt.Errorf("a %s is no object", te.Value)
		}
		return fmt.Errorf("%s: a %s does not belong here", te.Field, te.Value)
	}
	return err
}
