package apiserver

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/rest"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
)

// bubble runs f with a server and a client of it.
func bubble(t *testing.T, f func(t *testing.T, s *kubeapi.Server, c *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := kubeapi.New(t, kubeapi.Heddle()...)
		f(t, s, dial(t, s))
	})
}

func dial(t *testing.T, s *kubeapi.Server) *Client {
	t.Helper()
	c, err := New(Config{Server: &rest.Config{Host: "http://api", Dial: s.Dial}, Namespace: "heddle-system", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// field gives a.b[0].c of an object.
func field(o map[string]any, path string) any {
	var at any = o
	for _, p := range strings.Split(path, ".") {
		switch x := at.(type) {
		case map[string]any:
			at = x[p]
		case []any:
			if p != "0" || len(x) == 0 {
				return nil
			}
			at = x[0]
		default:
			return nil
		}
	}
	return at
}

// tally counts under a lock.
type tally struct {
	mu  sync.Mutex
	now int
	max int
	all int
}

func (y *tally) add(n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.now += n
	y.max = max(y.max, y.now)
	if n > 0 {
		y.all++
	}
}

func (y *tally) read() (now, most, all int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.now, y.max, y.all
}
