package manifest

import (
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// sorted goes through a map by its keys.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// lineOf gives how many lines below the document's first the field at path
// stands; the line of the nearest thing found above it where the text is not
// plain block YAML. It reads indentation only, so a hint for people, no more.
func lineOf(doc, path string) int {
	lines := strings.Split(doc, "\n")
	at := 0
	for at < len(lines)-1 && skippable(lines[at]) {
		at++
	}
	if path == "" {
		return at
	}
	c := cursor{lines: lines, at: at, indent: -1, first: true}
	for _, step := range steps(path) {
		if !c.down(step) {
			break
		}
	}
	return c.at
}

func skippable(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || line[0] == '#' || line == "---"
}

// steps cuts spec.rules[0].from into spec, rules, [0, from.
func steps(path string) []string {
	return strings.FieldsFunc(strings.ReplaceAll(path, "[", ".["), func(r rune) bool { return r == '.' || r == ']' })
}

// cursor stands on a line whose content is at an indentation.
type cursor struct {
	lines  []string
	at     int
	indent int  // of the thing stood on; its parts are deeper
	first  bool // parts may begin on the line itself: top, or after a dash
}

// down moves to a part of the thing stood on.
func (c *cursor) down(step string) bool {
	index, isIndex := -1, false
	if n, ok := strings.CutPrefix(step, "["); ok {
		isIndex = true
		index, _ = strconv.Atoi(n)
	}
	level := -1 // indentation of the parts
	from := c.at
	if !c.first {
		from++
	}
	for i := from; i < len(c.lines); i++ {
		text, indent := content(c.lines[i], i == c.at && c.first, c.indent)
		if skippable(text) {
			continue
		}
		dash := strings.HasPrefix(text, "-")
		if indent < c.indent || indent == c.indent && !(isIndex && dash) && !(i == c.at && c.first) && c.indent >= 0 && !c.first {
			return false
		}
		if level < 0 {
			level = indent
		}
		if indent < level {
			return false
		}
		if indent != level {
			continue
		}
		switch {
		case isIndex && dash:
			if index--; index < 0 {
				rest := strings.TrimLeft(text[1:], " ")
				*c = cursor{lines: c.lines, at: i, indent: indent + len(text) - len(rest), first: true}
				return true
			}
		case !isIndex && keyed(text, step):
			*c = cursor{lines: c.lines, at: i, indent: indent}
			return true
		case isIndex:
			return false
		}
	}
	return false
}

// content gives a line's text and indentation; on the line of a list's dash,
// what stands behind the dash, at indent.
func content(line string, afterDash bool, indent int) (string, int) {
	text := strings.TrimLeft(line, " ")
	if afterDash && indent >= 0 && indent <= len(line) {
		return line[indent:], indent
	}
	return text, len(line) - len(text)
}

func keyed(text, key string) bool {
	for _, q := range []string{"", `"`, "'"} {
		if rest, ok := strings.CutPrefix(text, q+key+q); ok && strings.HasPrefix(strings.TrimLeft(rest, " "), ":") {
			return true
		}
	}
	return false
}
