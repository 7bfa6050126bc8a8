package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const patience = 10 * time.Second // for what takes microseconds

// start serves on a loopback port and gives its base URL and a function that
// ends it and gives Run's error.
func start(t *testing.T, c Config) (string, func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(c).serve(ctx, l) }()
	stop := func() error { cancel(); return <-done }
	t.Cleanup(cancel)
	return "http://" + l.Addr().String(), stop
}

func get(t *testing.T, method, url string, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestPages(t *testing.T) {
	var ready atomic.Bool
	url, stop := start(t, Config{
		Ready: func() (bool, string) { return ready.Load(), "no identity yet" },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
				return
			}
			io.WriteString(w, "metric 1\n")
		}),
		Debug: func() any { return map[string]any{"revision": 7} },
	})
	for _, tc := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/live", "", 200, "live\n"},
		{"GET", "/ready", "", 503, "not ready: no identity yet\n"},
		{"GET", "/metrics", "", 200, "metric 1\n"},
		{"GET", "/metrics", strings.Repeat("x", maxBody+1), 413, "too large"},
		{"HEAD", "/live", "", 200, ""},
		{"GET", "/debug/state", "", 200, "\"revision\": 7"},
		{"POST", "/live", "", 405, ""},
		{"GET", "/", "", 404, ""},
		{"GET", "/debug/pprof/", "", 404, ""},
	} {
		code, body := get(t, tc.method, url+tc.path, strings.NewReader(tc.body))
		if code != tc.code || !strings.Contains(body, tc.want) {
			t.Errorf("%s %s: %d %q; want %d %q", tc.method, tc.path, code, body, tc.code, tc.want)
		}
	}
	ready.Store(true)
	if code, body := get(t, "GET", url+"/ready", nil); code != 200 || body != "ready\n" {
		t.Errorf("ready: %d %q", code, body)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if c, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "http://"), patience); err == nil {
		c.Close()
		t.Error("still listening after the end")
	}
}

func TestNothingConfigured(t *testing.T) {
	url, _ := start(t, Config{})
	for path, want := range map[string]int{"/ready": 200, "/metrics": 404, "/debug/state": 404} {
		if code, _ := get(t, "GET", url+path, nil); code != want {
			t.Errorf("%s: %d; want %d", path, code, want)
		}
	}
}

func TestStateThatIsNotJSON(t *testing.T) {
	url, _ := start(t, Config{Debug: func() any { return make(chan int) }})
	if code, body := get(t, "GET", url+"/debug/state", nil); code != 500 || !strings.Contains(body, "encode the state") {
		t.Errorf("%d %q", code, body)
	}
}

// Connections beyond the bound are closed, not kept waiting, and a closed one
// makes room.
func TestConnectionsAreBounded(t *testing.T) {
	url, _ := start(t, Config{})
	addr := strings.TrimPrefix(url, "http://")
	dial := func() net.Conn {
		c, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		return c
	}
	// An answer shows that the connection has its slot.
	ask := func(c net.Conn) error {
		io.WriteString(c, "GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err := c.Read(make([]byte, 1000))
		return err
	}
	var open []net.Conn
	for range maxConns {
		c := dial()
		defer c.Close()
		if err := ask(c); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	more := dial()
	defer more.Close()
	if err := ask(more); err == nil {
		t.Error("one connection too many was served")
	}
	open[0].Close()
	for deadline := time.Now().Add(patience); ; { // the server sees the end when it sees it
		c := dial()
		err := ask(c)
		c.Close()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a closed connection makes no room")
		}
	}
}

// The end waits for an answer under way, but not for ever.
func TestEndWithAnAnswerUnderWay(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	url, stop := start(t, Config{Metrics: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-leave
		io.WriteString(w, "late")
	})})
	got := make(chan string)
	go func() {
		resp, err := http.Get(url + "/metrics")
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		got <- string(b)
	}()
	<-entered
	ended := make(chan error)
	go func() { ended <- stop() }()
	close(leave)
	if s := <-got; s != "late" {
		t.Errorf("answer %q", s)
	}
	<-ended
}

func TestListenFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = New(Config{Addr: l.Addr().String()}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "admin port") {
		t.Errorf("Run: %v", err)
	}
}
