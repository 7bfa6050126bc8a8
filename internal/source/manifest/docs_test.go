package manifest

import (
	"os"
	"strings"
	"testing"
)

// fenced gives the fenced blocks of a Markdown text: what stands behind the
// fence, and the text.
func fenced(text string) (out [][2]string) {
	var info string
	var b strings.Builder
	inside := false
	for row := range strings.Lines(text) {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(row), "```")
		switch {
		case isFence && inside:
			out = append(out, [2]string{info, b.String()})
			inside = false
		case isFence:
			info, inside = fence, true
			b.Reset()
		case inside:
			b.WriteString(row)
		}
	}
	return out
}

// What docs/policy.md shows can be used as it stands; what it shows as bad
// gives just the problem quoted below it, and an AccessPolicy then denies.
func TestPolicyPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	good, bad := 0, 0
	blocks := fenced(string(page))
	for i, b := range blocks {
		got := Read("example", []byte(b[1]))
		switch b[0] {
		case "yaml":
			good++
			if len(got.Problems) > 0 || len(got.Objects) == 0 {
				t.Errorf("%d objects, problems %v in\n%s", len(got.Objects), got.Problems, b[1])
			}
		case "yaml bad":
			bad++
			if i+1 == len(blocks) || blocks[i+1][0] != "problem" {
				t.Errorf("no problem is quoted below\n%s", b[1])
				continue
			}
			if want := strings.TrimSpace(blocks[i+1][1]); len(got.Problems) != 1 || got.Problems[0].String() != want {
				t.Errorf("problems %v, want %s", got.Problems, want)
			}
			if strings.Contains(b[1], "kind: AccessPolicy") != (len(got.Broken) == 1) || len(got.Objects) > 0 {
				t.Errorf("%d objects, broken %v in\n%s", len(got.Objects), got.Broken, b[1])
			}
		case "problem":
		default:
			t.Errorf("a block marked %q is not tested", b[0])
		}
	}
	if good < 4 || bad < 3 {
		t.Errorf("only %d good and %d bad examples were found", good, bad)
	}
}
