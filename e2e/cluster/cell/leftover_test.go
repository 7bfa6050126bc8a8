package cell

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStayDown(t *testing.T) {
	data := t.TempDir()
	if err := stayDown(data); err != nil {
		t.Errorf("a fresh folder: %v", err)
	}
	for id, content := range map[string]string{
		"a": `{"RestartPolicy":{"Name":"on-failure","MaximumRetryCount":1},"Memory":9007199254740993,"Binds":["/lib/modules:/lib/modules:ro"]}`,
		"b": `{"Restart`,
	} {
		if err := os.MkdirAll(filepath.Join(data, "containers", id), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, "containers", id, "hostconfig.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := stayDown(data); err != nil {
		t.Errorf("half a file of a killed dockerd must not keep the next one from starting: %v", err)
	}
	got, err := os.ReadFile(filepath.Join(data, "containers/a/hostconfig.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := canonical(t, `{"RestartPolicy":{"Name":"no","MaximumRetryCount":0},"Memory":9007199254740993,"Binds":["/lib/modules:/lib/modules:ro"]}`)
	if d := cmp.Diff(want, canonical(t, string(got))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
