package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// document is one document of a YAML stream, with its text as it stands.
type document struct {
	number int    // from 1, of those with content
	line   int    // of its first content, from 1
	text   string // with the marker before it, if any
	first  int    // line that text begins at
}

// splitDocuments cuts a stream at its markers ("---" at the start of a line,
// and "..."; YAML 1.2 §9.1). Joined again, the texts are the stream.
func splitDocuments(stream string) []document {
	var out []document
	var text strings.Builder
	first, line := 1, 0
	flush := func() {
		if text.Len() > 0 {
			out = append(out, document{text: text.String(), first: first})
		}
		text.Reset()
	}
	for l := range strings.SplitAfterSeq(stream, "\n") {
		line++
		bare := strings.TrimRight(l, " \t\r\n")
		begins := bare == "---" || strings.HasPrefix(l, "--- ") || strings.HasPrefix(l, "---\t")
		if begins || text.Len() == 0 {
			flush()
			first = line
		}
		text.WriteString(l)
		if bare == "..." {
			flush()
		}
	}
	flush()
	n := 0
	for i := range out {
		if out[i].line = contentLine(out[i]); out[i].line > 0 {
			n++
			out[i].number = n
		}
	}
	return out
}

// contentLine gives the first line with more than a marker, a comment or a
// directive; 0 if there is none.
func contentLine(d document) int {
	n := d.first
	for l := range strings.SplitSeq(d.text, "\n") {
		l = strings.TrimSpace(strings.TrimPrefix(l, "---"))
		if l != "" && l != "..." && l[0] != '#' && l[0] != '%' {
			return n
		}
		n++
	}
	return 0
}

var errorLine = regexp.MustCompile(`\bline (\d+)`)

// object reads the document; case and repeated keys count, whole numbers stay
// whole. Lines in errors are those of the file.
func (d document) object() (map[string]any, error) {
	asJSON, err := yaml.YAMLToJSONStrict([]byte(d.text))
	if err != nil {
		text := strings.Join(strings.Fields(err.Error()), " ") // some have lines of their own
		return nil, errors.New(errorLine.ReplaceAllStringFunc(text, func(s string) string {
			n, _ := strconv.Atoi(strings.TrimPrefix(s, "line "))
			return fmt.Sprintf("line %d", n+d.first-1)
		}))
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(asJSON))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	obj, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object (write apiVersion, kind, metadata)")
	}
	return obj, nil
}

// write prints an object in the document's place.
func (d document) write(w io.Writer, obj map[string]any) error {
	text, err := yaml.Marshal(obj)
	if err != nil {
		return err
	}
	if strings.HasPrefix(d.text, "---") {
		text = append([]byte("---\n"), text...)
	}
	if strings.HasSuffix(strings.TrimRight(d.text, " \t\r\n"), "\n...") {
		text = append(text, "...\n"...)
	}
	_, err = w.Write(text)
	return err
}
