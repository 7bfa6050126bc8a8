package desk

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/e2e/ledger"
)

// ask gives status and body; 0: no answer.
func ask(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(strings.Repeat("x", len(method)-3)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(IDField, "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestDesk(t *testing.T) {
	book, err := ledger.Open("")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(New(book).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })))
	defer s.Close()
	steps := []struct {
		path string
		want int
	}{
		{"/x", 200},
		{"/-/fault?status=503&n=2", 200},
		{"/x", 503}, {"/x", 503}, {"/x", 200},
		{"/-/fault?abort=1&n=1", 200},
		{"/x", 0}, {"/x", 200},
		{"/-/fault?status=500", 200},
		{"/x", 500}, {"/healthz", 200},
		{"/-/fault", 200},
		{"/x", 200},
		{"/-/fault?status=20", 400}, {"/-/fault?delay=no", 400}, {"/-/fault?n=x", 400},
		{"/x", 200},
	}
	for i, step := range steps {
		// POST, so that the client does not ask again by itself.
		if got, body := ask(t, http.MethodPost, s.URL+step.path); got != step.want {
			t.Fatalf("step %d, %s: %d %s, want %d", i, step.path, got, body, step.want)
		}
	}
	var seen Seen
	_, body := ask(t, http.MethodGet, s.URL+"/-/seen")
	if err := json.Unmarshal([]byte(body), &seen); err != nil {
		t.Fatal(err)
	}
	if seen.Requests != 9 || seen.Failed != 4 || seen.Statuses["503"] != 2 || seen.Last.IsZero() {
		t.Errorf("%+v", seen)
	}
}
