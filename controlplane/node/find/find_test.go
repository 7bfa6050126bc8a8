package find

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// finder asks an API server that answers what the test says.
func finder(t *testing.T, answer http.HandlerFunc, change func(*Config, string)) *Finder {
	t.Helper()
	s := httptest.NewTLSServer(answer)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	at := s.Listener.Addr().String()
	cfg := Config{API: at, CAFile: filepath.Join(dir, "ca"), TokenFile: filepath.Join(dir, "token"),
		Namespace: "heddle-system", Service: "heddle-controlplane", Port: "grpc", Bundle: "heddle-trust-bundle", BundleKey: "roots.pem"}
	for name, b := range map[string][]byte{"ca": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), "token": []byte(" secret\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(&cfg, at)
	}
	return New(cfg)
}

func slicesJSON(endpoints string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.Method != http.MethodGet {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"items":[{"ports":[{"name":"http","port":1},{"name":"grpc","port":15010}],"endpoints":[%s]},{"ports":null,"endpoints":null}]}`, endpoints)
	}
}

func TestControlPlane(t *testing.T) {
	for name, tc := range map[string]struct{ endpoints, want string }{
		"the ready ones": {`{"addresses":["10.0.0.1"],"conditions":{"ready":true}},{"addresses":["10.0.0.2"]},{"addresses":["fd00::3"],"conditions":{"ready":false}}`,
			"[10.0.0.1:15010 10.0.0.2:15010]"},
		"without a ready one all": {`{"addresses":["fd00::3"],"conditions":{"ready":false}}`, "[[fd00::3]:15010]"},
		"what does not parse":     {`{"addresses":["here"]},{"addresses":[]},{"addresses":["10.0.0.1"]}`, "[10.0.0.1:15010]"},
	} {
		got, err := finder(t, slicesJSON(tc.endpoints), nil).ControlPlane(t.Context())
		if err != nil || fmt.Sprint(got) != tc.want {
			t.Errorf("%s: %v, %v; want %s", name, got, err, tc.want)
		}
	}
	if _, err := finder(t, slicesJSON(""), nil).ControlPlane(t.Context()); !errors.Is(err, ErrNoPods) || !strings.Contains(err.Error(), "heddle-system/heddle-controlplane") {
		t.Errorf("no pod: %v", err)
	}
}

func TestRoots(t *testing.T) {
	root := httptest.NewTLSServer(nil)
	defer root.Close()
	good := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate().Raw}))
	say := func(data string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"data":{"roots.pem":%q}}`, data) }
	}
	got, err := finder(t, say(good+good), nil).Roots(t.Context())
	if err != nil || len(got) != 2 || !got[0].Equal(root.Certificate()) {
		t.Errorf("%d roots, %v", len(got), err)
	}
	for name, data := range map[string]string{"empty": "", "no certificate": "hello", "malformed": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if _, err := finder(t, say(data), nil).Roots(t.Context()); err == nil || !strings.Contains(err.Error(), "ConfigMap heddle-system/heddle-trust-bundle, key roots.pem") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What can go wrong is said so that somebody can mend it.
func TestErrors(t *testing.T) {
	ok := slicesJSON(`{"addresses":["10.0.0.1"]}`)
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		change func(*Config, string)
		want   string
	}{
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not yours", http.StatusForbidden) }, nil, "403 Forbidden: not yours"},
		"no JSON":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }, nil, "read the answer"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://192.0.2.1/", http.StatusFound)
		}, nil, "302 Found"},
		"too much": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxAnswer+1)) }, nil, "more than"},
		"no token": {ok, func(c *Config, _ string) { c.TokenFile += "x" }, "read the API token"},
		"no CA":    {ok, func(c *Config, _ string) { c.CAFile += "x" }, "read the API server's CA"},
		"empty CA": {ok, func(c *Config, _ string) { c.CAFile = c.TokenFile }, "holds no certificate"},
		"a dead server first": {ok, func(c *Config, _ string) {
			c.Servers = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}
		}, ""},
		"the certificate is another's": {ok, func(c *Config, at string) {
			c.Servers = []netip.AddrPort{netip.MustParseAddrPort(at)}
			c.API = "192.0.2.9:443"
		}, "certificate is valid for"},
	} {
		_, err := finder(t, tc.answer, tc.change).ControlPlane(t.Context())
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// The cluster is named by its CA: one word for each certificate.
func TestCluster(t *testing.T) {
	dir := t.TempDir()
	block := func(s string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(s)}))
	}
	ask := func(content string) ([]string, error) {
		file := filepath.Join(dir, "ca")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return New(Config{CAFile: file}).Cluster()
	}
	one, err := ask(block("a"))
	if err != nil || len(one) != 1 {
		t.Fatal(one, err)
	}
	two, err := ask("# new\n" + block("b") + "# old\n" + block("a"))
	if err != nil || len(two) != 2 || two[1] != one[0] || two[0] == one[0] {
		t.Errorf("%v, %v", two, err)
	}
	if got, err := ask("nothing"); err == nil || got != nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := New(Config{}).Cluster(); got != nil || err != nil {
		t.Errorf("outside of a cluster: %v, %v", got, err)
	}
	if _, err := New(Config{CAFile: dir + "/none"}).Cluster(); err == nil {
		t.Error("no file, no error")
	}
}

// Without the kubelet's environment the reason is said, not a broken URL.
func TestNoEnvironment(t *testing.T) {
	if _, err := New(Config{}).Roots(t.Context()); err == nil || !strings.Contains(err.Error(), "KUBERNETES_SERVICE_HOST") {
		t.Error(err)
	}
}
