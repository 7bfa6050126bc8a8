package cell

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSpecOf(t *testing.T) {
	for args, want := range map[string]struct {
		file  string
		whole bool
	}{
		"--root /r --log /l create --bundle /b --pid-file /p id":       {"/b/config.json", true},
		"--root /r run -b /b id":                                       {"/b/config.json", true},
		"--root /r exec --process /tmp/p --console-socket /s --tty id": {"/tmp/p", false},
		"--root /r exec -p /tmp/p id":                                  {"/tmp/p", false},
		"--root /r start id":                                           {"", false},
		"delete --force id":                                            {"", false},
		"create --bundle":                                              {"", false},
		"":                                                             {"", false},
	} {
		file, whole := specOf(strings.Fields(args))
		if file != want.file || whole != want.whole && file != "" {
			t.Errorf("runc %s: %q %v, want %q %v", args, file, whole, want.file, want.whole)
		}
	}
}

func TestGrantable(t *testing.T) {
	for name, c := range map[string]struct {
		in, want string
		whole    bool
	}{
		"a container": {
			in:    `{"process":{"capabilities":{"bounding":["CAP_KILL","CAP_SYS_RESOURCE"],"effective":["CAP_SYS_RESOURCE"]},"oomScoreAdj":-500},"linux":{"n":18446744073709551615}}`,
			want:  `{"process":{"capabilities":{"bounding":["CAP_KILL"],"effective":[]},"oomScoreAdj":0},"linux":{"n":18446744073709551615}}`,
			whole: true,
		},
		"a process": {
			in:   `{"args":["sh"],"capabilities":{"permitted":["CAP_SYS_RESOURCE","CAP_CHOWN"]},"oomScoreAdj":100}`,
			want: `{"args":["sh"],"capabilities":{"permitted":["CAP_CHOWN"]},"oomScoreAdj":100}`,
		},
		"nothing to take": {in: `{"args":["sh"]}`, want: `{"args":["sh"]}`},
		"no process":      {in: `{"linux":{}}`, want: `{"linux":{}}`, whole: true},
	} {
		got, err := grantable([]byte(c.in), c.whole)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(canonical(t, c.want), canonical(t, string(got))); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	if _, err := grantable([]byte("{"), true); err == nil {
		t.Error("half a file is no error")
	}
}

// canonical keeps numbers as they are written.
func canonical(t *testing.T, s string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
