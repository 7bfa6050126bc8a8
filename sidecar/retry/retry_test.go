package retry

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
)

func nanos(d time.Duration) *wire.Duration { return &wire.Duration{Nanos: int64(d)} }

func TestRule(t *testing.T) {
	r := Compile(&wire.Retry{Attempts: 2, On: []string{"gateway", "connect", "a word of tomorrow"}, StatusCodes: []uint32{500, 429}})
	all := Compile(&wire.Retry{Attempts: 1, On: []string{"5xx", "reset"}})
	for _, tt := range []struct {
		rule   *Rule
		status int
		want   bool
		cause  string
	}{
		{r, 200, false, ""}, {r, 404, false, ""}, {r, 429, true, "status"}, {r, 500, true, "status"}, {r, 501, false, ""},
		{r, 502, true, "gateway"}, {r, 503, true, "gateway"}, {r, 504, true, "gateway"}, {r, 505, false, ""},
		{all, 500, true, "5xx"}, {all, 503, true, "5xx"}, {all, 599, true, "5xx"}, {all, 499, false, ""}, {all, 600, false, ""},
		{Default, 503, false, ""},
	} {
		cause, ok := tt.rule.Status(tt.status)
		if ok != tt.want || ok && cause.String() != tt.cause {
			t.Errorf("%s: %d: %v %v", tt.rule, tt.status, ok, cause)
		}
	}
	if !r.On(Connect) || r.On(Reset) || !all.On(Reset) || Default.On(Connect) {
		t.Error("causes")
	}
	named := Compile(&wire.Retry{Attempts: 1, Methods: []string{"GET", "POST"}})
	for _, tt := range []struct {
		rule   *Rule
		method string
		want   bool
	}{
		{r, "GET", true}, {r, "HEAD", true}, {r, "PUT", true}, {r, "DELETE", true}, {r, "OPTIONS", true}, {r, "TRACE", true},
		{r, "POST", false}, {r, "PATCH", false}, {r, "get", false}, {r, "", false}, {r, "CONNECT", false},
		{named, "POST", true}, {named, "GET", true}, {named, "PUT", false},
	} {
		if got := tt.rule.Method([]byte(tt.method)); got != tt.want {
			t.Errorf("%s: %s: %v", tt.rule, tt.method, got)
		}
	}
}

func TestBackoff(t *testing.T) {
	r := Compile(&wire.Retry{BackoffBase: nanos(10 * time.Millisecond), BackoffMax: nanos(65 * time.Millisecond)})
	for n, limit := range map[int]time.Duration{1: 10, 2: 20, 3: 40, 4: 65, 5: 65, 40: 65, 1 << 30: 65} {
		limit *= time.Millisecond
		var least, most time.Duration = limit, 0
		for range 2000 {
			d := r.Backoff(n)
			least, most = min(least, d), max(most, d)
		}
		if most > limit || most < limit*9/10 || least > limit/10 {
			t.Errorf("retry %d waits %s to %s, want 0 to %s", n, least, most, limit)
		}
	}
	if d := Default.Backoff(1); d != 0 {
		t.Error(d)
	}
}

func spend(b *Budget, r *Rule, times int) (got int) {
	for range times {
		if b.Spend(time.Now(), r) {
			got++
		}
	}
	return got
}

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget()
		r := &Rule{Ratio: 0.2, Min: 2}
		if n := spend(b, r, 100); n != 20 {
			t.Errorf("without any request: %d, want the minimum of 10 s", n)
		}
		for range 500 {
			b.Request(time.Now())
		}
		if n := spend(b, r, 200); n != 100 {
			t.Errorf("a fifth of 500 requests: %d", n)
		}
		time.Sleep(5 * time.Second)
		if n := spend(b, r, 10); n != 0 {
			t.Errorf("nothing was left: %d", n)
		}
		for range 100 {
			b.Request(time.Now())
		}
		if n := spend(b, r, 50); n != 20 {
			t.Errorf("new requests: %d", n)
		}
		time.Sleep(5 * time.Second) // the first second has left the window
		if n := spend(b, r, 100); n != 20 {
			t.Errorf("100 requests and the minimum, 20 spent: %d", n)
		}
		time.Sleep(11 * time.Hour)
		if n := spend(b, r, 100); n != 20 {
			t.Errorf("long after: %d", n)
		}
		if none := (&Rule{}); spend(b, none, 10) != 0 {
			t.Error("a budget of nothing gave something")
		}
	})
}

// However many spend at once, they never overspend, and requests are not lost.
func TestBudgetTogether(t *testing.T) {
	b := NewBudget()
	r := &Rule{Ratio: 0.5, Min: 0}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				b.Request(time.Now())
			}
		})
	}
	wg.Wait()
	var got atomic.Int64
	for range 8 {
		wg.Go(func() { got.Add(int64(spend(b, r, 2000))) })
	}
	wg.Wait()
	if n := got.Load(); n > 4000 || n < 3900 {
		t.Errorf("%d of 4000", n)
	}
}

func TestNoAllocation(t *testing.T) {
	b := NewBudget()
	if n := testing.AllocsPerRun(100, func() { b.Request(time.Now()); b.Spend(time.Now(), Default) }); n != 0 {
		t.Error(n)
	}
}
