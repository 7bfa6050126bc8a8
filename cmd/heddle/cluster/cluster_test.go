package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// api is an API server that knows ConfigMaps only.
type api struct {
	mu      sync.Mutex
	objects map[string]map[string]any
	version int
	fail    int // status of every answer, 0: serve
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	name := strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/shop/configmaps/")
	switch {
	case a.fail != 0:
		status(w, a.fail)
	case r.URL.Path == "/version":
		answer(w, map[string]any{"gitVersion": "v1.36.3"})
	case r.URL.Path == "/api/v1":
		answer(w, map[string]any{"kind": "APIResourceList", "resources": []any{
			map[string]any{"name": "configmaps", "kind": "ConfigMap", "namespaced": true},
			map[string]any{"name": "configmaps/status", "kind": "ConfigMap", "namespaced": true},
		}})
	case r.URL.Path == "/api/v1/configmaps":
		a.list(w, r)
	case name == r.URL.Path:
		status(w, http.StatusNotFound)
	case r.Method == http.MethodPatch:
		a.apply(w, r, name)
	case a.objects[name] == nil:
		status(w, http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(a.objects, name)
		answer(w, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	default:
		answer(w, a.objects[name])
	}
}

// list gives one object a page.
func (a *api) list(w http.ResponseWriter, r *http.Request) {
	page, next := "a", "b"
	if r.URL.Query().Get("continue") == "b" {
		page, next = "b", ""
	}
	answer(w, map[string]any{"kind": "ConfigMapList", "apiVersion": "v1", "metadata": map[string]any{"continue": next},
		"items": []any{map[string]any{"metadata": map[string]any{"name": page}}}})
}

func (a *api) apply(w http.ResponseWriter, r *http.Request, name string) {
	body, _ := io.ReadAll(r.Body)
	var obj map[string]any
	if err := json.Unmarshal(body, &obj); err != nil || r.URL.Query().Get("fieldManager") != "heddle" {
		status(w, http.StatusBadRequest)
		return
	}
	old := a.objects[name]
	text := func(o map[string]any) string { b, _ := json.Marshal(o["data"]); return string(b) }
	if old == nil || text(old) != text(obj) {
		a.version++
		obj["metadata"].(map[string]any)["resourceVersion"] = strings.Repeat("1", a.version)
		a.objects[name] = obj
	}
	w.Header().Set("Warning", `299 - "a warning"`)
	answer(w, a.objects[name])
}

func answer(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func status(w http.ResponseWriter, code int) {
	reason := map[int]string{403: "Forbidden", 401: "Unauthorized", 404: "NotFound", 400: "BadRequest"}[code]
	w.WriteHeader(code)
	answer(w, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": "no"})
}

func start(t *testing.T) (*api, *Cluster, *[]string) {
	t.Helper()
	a := &api{objects: map[string]map[string]any{}}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	var said []string
	c, err := connect(&rest.Config{Host: srv.URL}, "shop", func(s string) { said = append(said, s) })
	if err != nil {
		t.Fatal(err)
	}
	return a, c, &said
}

func configMap(value string) *Object {
	return &Object{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "x"}, "data": map[string]any{"k": value}}}
}

func TestApplyGetListDelete(t *testing.T) {
	_, c, said := start(t)
	ctx := t.Context()
	if v, err := c.ServerVersion(ctx); err != nil || v != "v1.36.3" {
		t.Error(v, err)
	}
	for i, want := range []Outcome{Created, Unchanged, Configured} {
		got, err := c.Apply(ctx, configMap([]string{"a", "a", "b"}[i]))
		if err != nil || got != want {
			t.Errorf("apply %d: %s %v, want %s", i, got, err, want)
		}
	}
	if len(*said) != 3 || (*said)[0] != "a warning" {
		t.Errorf("warnings: %q", *said)
	}
	ref := Ref{"v1", "ConfigMap", "shop", "x"}
	if obj, err := c.Get(ctx, ref); err != nil || obj.GetNamespace() != "shop" {
		t.Error(obj, err)
	}
	if all, err := c.List(ctx, Ref{APIVersion: "v1", Kind: "ConfigMap"}, ""); err != nil || len(all) != 2 {
		t.Error(all, err)
	}
	for _, want := range []bool{true, false} {
		if was, err := c.Delete(ctx, ref); err != nil || was != want {
			t.Errorf("delete: %v %v, want %v", was, err, want)
		}
	}
	if _, err := c.Get(ctx, ref); !NotFound(err) {
		t.Errorf("get of nothing: %v", err)
	}
}

func TestWait(t *testing.T) {
	_, c, _ := start(t)
	ref := Ref{"v1", "ConfigMap", "shop", "x"}
	looks := 0
	err := c.Wait(t.Context(), ref, func(o *Object) (bool, error) {
		if looks++; looks == 2 {
			if o != nil {
				t.Error("an object out of nothing")
			}
			if _, err := c.Apply(t.Context(), configMap("a")); err != nil {
				t.Error(err)
			}
		}
		return o != nil, nil
	})
	if err != nil || looks != 3 {
		t.Error(looks, err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("no more time"))
	defer cancel()
	if err := c.Wait(ctx, ref, func(*Object) (bool, error) { return false, nil }); err == nil || !strings.Contains(err.Error(), "ConfigMap shop/x: no more time") {
		t.Error(err)
	}
}

// Each error says what to do.
func TestErrorsSayWhatToDo(t *testing.T) {
	get := func(c *Cluster) error {
		_, err := c.Get(t.Context(), Ref{"v1", "ConfigMap", "shop", "x"})
		return err
	}
	empty := filepath.Join(t.TempDir(), "empty")
	one := filepath.Join(t.TempDir(), "one")
	write(t, empty, "apiVersion: v1\nkind: Config\n")
	write(t, one, "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: here, context: {cluster: c, namespace: shop}}]\ncurrent-context: here\n")
	for _, c := range []struct {
		name string
		do   func() error
		want string
	}{
		{"no such file", func() error { _, err := Connect(Options{Kubeconfig: "/nowhere"}); return err }, "/nowhere"},
		{"empty", func() error { _, err := Connect(Options{Kubeconfig: empty}); return err }, "give --kubeconfig=FILE or set KUBECONFIG"},
		{"no such context", func() error { _, err := Connect(Options{Kubeconfig: one, Context: "there"}); return err }, `has no context "there": give one of here`},
		{"unreachable", func() error {
			c, err := Connect(Options{Kubeconfig: one})
			if err != nil || c.Namespace() != "shop" {
				t.Error(c, err)
			}
			return get(c)
		}, "does not answer; is the cluster up, and is this the right --context?"},
		{"forbidden", func() error { a, c, _ := start(t); a.fail = 403; return get(c) }, "ask the cluster's administrator"},
		{"unauthorized", func() error { a, c, _ := start(t); a.fail = 401; return get(c) }, "log in again"},
		{"no kind", func() error {
			_, c, _ := start(t)
			_, err := c.Get(t.Context(), Ref{"heddle.dev/v1alpha1", "AccessPolicy", "shop", "x"})
			if !errors.Is(err, ErrNoKind) {
				t.Error(err)
			}
			return err
		}, "AccessPolicy shop/x of heddle.dev/v1alpha1: the cluster does not know this kind (is Heddle installed here? heddle install)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.do(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	objs, err := Read("f", []byte("# only words\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n---\n---\n{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"b\"}}\n"))
	if err != nil || len(objs) != 2 || objs[0].GetName() != "a" || RefOf(objs[1]).String() != "Pod b" {
		t.Error(objs, err)
	}
	for text, want := range map[string]string{
		"kind: Pod\n": "document 1: no Kubernetes object",
		"apiVersion: v1\nkind: A\nmetadata: {name: a}\n---\na: 1\na: 2\n": "document 2:",
	} {
		if _, err := Read("f", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
