package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// nearest bounds the suggestions.
const nearest = 3

// Near suggests names for one that there is not: "; near: a, b", or what there
// is, if that is little.
func Near(name string, have []string) string {
	slices.Sort(have)
	have = slices.Compact(have)
	type scored struct {
		name  string
		score int
	}
	var close []scored
	for _, h := range have {
		d := distance(name, h)
		if strings.Contains(h, name) || strings.Contains(name, h) {
			d = 1
		}
		if d <= max(2, len(name)/3) {
			close = append(close, scored{h, d})
		}
	}
	slices.SortStableFunc(close, func(a, b scored) int { return cmp.Compare(a.score, b.score) })
	var out []string
	for _, c := range close[:min(nearest, len(close))] {
		out = append(out, c.name)
	}
	switch {
	case len(out) > 0:
		return "; did you mean " + strings.Join(out, " or ") + "?"
	case len(have) == 0:
		return "; there is none at all"
	}
	return "; there are " + some(have)
}

// distance counts the letters to change, add or take away (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0]++
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, last+1)
		}
	}
	return row[len(b)]
}

// listed bounds what one line lists.
const listed = 5

func some(list []string) string {
	if n := len(list) - listed; n > 0 {
		return strings.Join(list[:listed], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(list, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
