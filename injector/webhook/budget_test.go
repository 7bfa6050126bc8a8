package webhook

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/injector/patch"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Two dozen of the largest reviews at once: four are in memory at a time, all that
// get a turn are answered, those that wait too long are told so, and ordinary
// pods never notice.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var inside, most int
		w := world()
		h := New(Config{
			Mesh: func() (patch.Config, bool) { return mesh, true },
			Snapshot: func() *source.Snapshot {
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(time.Second) // how long each review takes
				mu.Lock()
				inside--
				mu.Unlock()
				return w
			},
		})
		large := body("shop", `{"metadata":{"name":"big","annotations":{"x":"`+strings.Repeat("a", maxBody-1000)+`"}},"spec":{"containers":[{"name":"app"}]}}`)
		codes := make(chan int, 24)
		for range cap(codes) {
			go func() { codes <- post(h, large).Code }()
		}
		synctest.Wait()
		start := time.Now()
		small := post(h, body("shop", `{"metadata":{"name":"w"},"spec":{"containers":[{"name":"app"}]}}`))
		if a := answer(t, small); !a.Allowed || time.Since(start) > time.Second {
			t.Errorf("an ordinary pod: allowed %v after %s", a.Allowed, time.Since(start))
		}
		got := map[int]int{}
		for range cap(codes) {
			got[<-codes]++
		}
		// Turns begin at 0, 1, 2, 3 and, in a photo finish with the end of the
		// wait, 4 s.
		if most != largeAtOnce+1 || got[http.StatusOK] < 4*largeAtOnce || got[http.StatusOK] > 5*largeAtOnce || got[http.StatusOK]+got[http.StatusServiceUnavailable] != cap(codes) {
			t.Errorf("%d at once, answers %v", most, got)
		}
	})
}

// A length that is not said counts as large.
func TestUnknownLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget()
		for range largeAtOnce {
			b.large <- struct{}{}
		}
		r := httptest.NewRequest(http.MethodPost, "/inject", io.NopCloser(strings.NewReader("{}")))
		if r.ContentLength != -1 {
			t.Fatal(r.ContentLength)
		}
		if _, err := b.take(t.Context(), r.ContentLength); err == nil {
			t.Error("no turn was needed")
		}
		done, err := b.take(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		done()
		if len(b.small) != 0 {
			t.Error("the turn did not end")
		}
	})
}
