package place

import (
	"os"
	"path/filepath"
	"testing"
)

// The world is read from the cluster that kubectl would mean.
func TestKubeconfigs(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, name := range []string{a, b} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sep := string(filepath.ListSeparator)
	for _, c := range []struct{ name, flag, env, want string }{
		{"flag", "f", a, "f"},
		{"one", "", a, a},
		{"several", "", a + sep + b, a + sep + b},
		{"some missing", "", dir + "/none" + sep + a + sep + sep + b, a + sep + b},
		{"none", "", dir + "/none", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.env)
			if got := (&inCluster{kubeconfig: c.flag}).kubeconfigs(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
