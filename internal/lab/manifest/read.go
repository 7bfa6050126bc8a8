// Package manifest reads the lab's input: files and folders of ordinary
// Kubernetes manifests, several documents a file. It decodes strictly, fills in
// the defaults that an API server would, validates what the lab relies on, and
// says of every bad document where it stands and what to do about it; the rest
// goes on. It does not relate one object to another. internal/lab calls it.
package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
	sourcemanifest "github.com/heddle-mesh/heddle/internal/source/manifest"
)

// maxFile bounds one file; a manifest of more is a mistake in the path.
const maxFile = 16 << 20

// Document is one good document.
type Document struct {
	File string
	Line int // where it begins
	Ref  source.Ref
	// Object is the typed object with defaults, such as *corev1.Pod; nil for
	// the kinds that the lab only passes on.
	Object metav1.Object
	// JSON is the document as written, for the kinds that are passed on.
	JSON []byte
	// Hash is the content's; it changes when the document means another thing.
	Hash string
}

// known gives a new value of each kind that the lab understands.
func known(apiVersion, kind string) metav1.Object {
	switch apiVersion + " " + kind {
	case "v1 Namespace":
		return &corev1.Namespace{}
	case "v1 ServiceAccount":
		return &corev1.ServiceAccount{}
	case "v1 Service":
		return &corev1.Service{}
	case "v1 Pod":
		return &corev1.Pod{}
	case "apps/v1 Deployment":
		return &appsv1.Deployment{}
	case "batch/v1 Job":
		return &batchv1.Job{}
	case "discovery.k8s.io/v1 EndpointSlice":
		return &discoveryv1.EndpointSlice{}
	case "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration":
		return &admissionregv1.MutatingWebhookConfiguration{}
	}
	return nil
}

// passedOn says whether the lab hands documents of this API on as they are.
func passedOn(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group == "heddle.dev" || group == "gateway.networking.k8s.io"
}

// clusterScoped kinds have no namespace.
func clusterScoped(kind string) bool {
	switch kind {
	case "Namespace", "MutatingWebhookConfiguration", "MeshConfig", "GatewayClass":
		return true
	}
	return false
}

// Parse reads the documents of one file. file is only used to say where
// something stands. A problem whose Ref is also a document's does not keep that
// object from being used.
func Parse(file string, data []byte) ([]Document, []source.Problem) {
	var docs []Document
	var problems []source.Problem
	if len(data) > maxFile {
		return nil, []source.Problem{{File: file, Err: "too big", Fix: "a file of manifests has at most 16 MiB"}}
	}
	for _, part := range split(data) {
		p := parser{file: file, line: part.line, text: part.text}
		p.document()
		docs = append(docs, p.docs...)
		problems = append(problems, p.problems...)
	}
	return docs, problems
}

type part struct {
	line int
	text []byte
}

// split cuts a file at its document markers.
func split(data []byte) []part {
	var parts []part
	cur := part{line: 1}
	line := 0
	for l := range bytes.Lines(data) {
		line++
		if bytes.HasPrefix(l, []byte("---")) && (len(l) == 3 || strings.ContainsRune(" \t\r\n", rune(l[3]))) {
			parts = append(parts, cur)
			cur = part{line: line + 1}
			if rest := bytes.TrimSpace(l[3:]); len(rest) > 0 && rest[0] != '#' { // a document may begin behind its marker
				cur = part{line: line, text: append([]byte("   "), l[3:]...)}
			}
			continue
		}
		cur.text = append(cur.text, l...)
	}
	return append(parts, cur)
}

// parser reads one YAML document.
type parser struct {
	file     string
	line     int
	text     []byte
	docs     []Document
	problems []source.Problem
	own      []source.Ref // Heddle's kinds among docs
}

func (p *parser) document() {
	js, err := yaml.YAMLToJSONStrict(p.text)
	if err != nil {
		p.syntax(err)
		return
	}
	if string(js) == "null" {
		return // only comments or nothing
	}
	p.object(js)
	if len(p.own) > 0 {
		p.judgeOwn()
	}
}

// judgeOwn says what the control plane will say of Heddle's kinds, but of the
// person's own file and line. The documents are passed on all the same: a bad
// AccessPolicy must deny what it selects, which only the control plane can do.
func (p *parser) judgeOwn() {
	for _, bad := range sourcemanifest.Read(p.file, p.text).Problems {
		i := slices.IndexFunc(p.own, func(r source.Ref) bool {
			return r.Kind == bad.Ref.Kind && r.Name == bad.Ref.Name && (r.Namespace == bad.Ref.Namespace || bad.Ref.Namespace == "")
		})
		if i < 0 {
			continue // of a kind that we judge ourselves
		}
		bad.Ref, bad.Line = p.own[i], p.line+max(bad.Line, 1)-1
		p.problems = append(p.problems, bad)
	}
}

func (p *parser) object(js []byte) {
	var h struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(js, &h); err != nil {
		p.noObject(err)
		return
	}
	if h.APIVersion == "v1" && h.Kind == "List" {
		for _, item := range h.Items {
			p.object(item)
		}
		return
	}
	ref := source.Ref{Kind: h.Kind, Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}
	if clusterScoped(h.Kind) {
		ref.Namespace = ""
	} else if ref.Namespace == "" {
		ref.Namespace = metav1.NamespaceDefault
	}
	obj := known(h.APIVersion, h.Kind)
	switch {
	case h.Kind == "" || h.APIVersion == "":
		p.fail(ref, "kind", "apiVersion and kind are needed", "write them at the top of the document")
	case obj == nil && !passedOn(h.APIVersion):
		p.fail(ref, "kind", "the lab does not know "+h.Kind+" of "+h.APIVersion,
			"it knows Namespace, ServiceAccount, Service, Pod, Deployment, Job, EndpointSlice, MutatingWebhookConfiguration and Heddle's kinds")
	case obj == nil:
		if p.passOn(ref, js) && strings.HasPrefix(h.APIVersion, v1alpha1.Group+"/") {
			p.own = append(p.own, ref)
		}
	default:
		p.typed(ref, obj, js)
	}
}

// noObject reports what is YAML but has not the shape of any object.
func (p *parser) noObject(err error) {
	field, msg := "", err.Error()
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		field, msg = wrong.Field, fmt.Sprintf("a %s cannot be read as %s", wrong.Value, typeName(wrong.Type))
	}
	p.fail(source.Ref{}, field, "not a Kubernetes object: "+msg, "give apiVersion, kind and metadata")
}

// passOn takes a document whose meaning is the control plane's matter, and says
// whether it did.
func (p *parser) passOn(ref source.Ref, js []byte) bool {
	f := checkName(ref)
	if f == nil {
		f = checkKind(ref.Kind)
	}
	if f != nil {
		p.fail(ref, f.path, f.err, f.fix)
		return false
	}
	var m map[string]any
	if err := json.Unmarshal(js, &m); err != nil {
		p.fail(ref, "", err.Error(), "")
		return false
	}
	if md, ok := m["metadata"].(map[string]any); ok && ref.Namespace != "" {
		md["namespace"] = ref.Namespace
	}
	out, err := json.Marshal(m)
	if err != nil {
		p.fail(ref, "", err.Error(), "")
		return false
	}
	p.docs = append(p.docs, Document{File: p.file, Line: p.line, Ref: ref, JSON: out, Hash: Hash(out)})
	return true
}

func (p *parser) typed(ref source.Ref, obj metav1.Object, js []byte) {
	d := json.NewDecoder(bytes.NewReader(js))
	d.DisallowUnknownFields()
	if err := d.Decode(obj); err != nil {
		p.decodeError(ref, err)
		return
	}
	obj.SetNamespace(ref.Namespace)
	setDefaults(obj)
	if bad := validate(ref, obj); len(bad) > 0 {
		for _, f := range bad {
			p.fail(ref, f.path, f.err, f.fix)
		}
		return
	}
	for _, f := range forgo(obj) {
		p.fail(ref, f.path, f.err, f.fix)
	}
	canonical, err := json.Marshal(obj)
	if err != nil {
		p.fail(ref, "", err.Error(), "")
		return
	}
	p.docs = append(p.docs, Document{File: p.file, Line: p.line, Ref: ref, Object: obj, JSON: canonical, Hash: Hash(canonical)})
}

func (p *parser) fail(ref source.Ref, field, err, fix string) {
	p.problems = append(p.problems, source.Problem{
		File: p.file, Line: p.lineOf(field), Ref: ref, Field: field, Err: err, Fix: fix,
	})
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// syntax reports broken YAML; the parser's line counts from the document.
func (p *parser) syntax(err error) {
	msg := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
	line := p.line
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		if n, convErr := strconv.Atoi(m[1]); convErr == nil {
			line = p.line + n - 1
		}
		msg = strings.Replace(msg, m[0], "", 1)
	}
	p.problems = append(p.problems, source.Problem{
		File: p.file, Line: line, Err: "not YAML: " + msg, Fix: "mend the syntax; the objects of this file stay as they were",
	})
}

// decodeError reports a document that is YAML but not of its kind.
func (p *parser) decodeError(ref source.Ref, err error) {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		p.fail(ref, wrong.Field, fmt.Sprintf("a %s cannot be read as %s", wrong.Value, typeName(wrong.Type)), "see the Kubernetes reference of "+ref.Kind)
		return
	}
	msg := err.Error()
	if name, ok := strings.CutPrefix(msg, "json: unknown field "); ok {
		if field, err := strconv.Unquote(name); err == nil {
			p.fail(ref, field, "there is no such field", "correct its name or its indentation, or remove it")
			return
		}
	}
	p.fail(ref, "", msg, "see the Kubernetes reference of "+ref.Kind)
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return t.Kind().String()
}

// lineOf finds a field's line: the last segment of its path, looked for as a
// key after the segments before it. The document's first line if not found.
func (p *parser) lineOf(field string) int {
	if field == "" {
		return p.line
	}
	lines := strings.Split(string(p.text), "\n")
	at, found := 0, false
	for _, segment := range strings.Split(field, ".") {
		key, _, _ := strings.Cut(segment, "[")
		for i := at; i < len(lines); i++ {
			l := strings.TrimLeft(lines[i], " -\t")
			if strings.HasPrefix(l, key+":") || strings.HasPrefix(l, `"`+key+`"`) {
				at, found = i, true
				break
			}
		}
	}
	if !found {
		return p.line
	}
	return p.line + at
}

// Hash is a short fingerprint of content.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
