package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The table names its raw file, takes medians over rounds and ratios within
// one; the page keeps what stands around the marks.
func TestTable(t *testing.T) {
	r := &result{Started: time.Unix(0, 0).UTC(), Machine: map[string]string{"haproxy": "HAProxy 9"}}
	for round, us := range []float64{40, 10, 20} {
		for path, factor := range map[string]float64{"two HAProxy hops": 1, "two Heddle sidecars": 1.5} {
			r.Cells = append(r.Cells, cell{Path: path, Load: loads[0].name, Round: round, ProxyMicros: us * factor, Result: loadResult{Requests: 10, Elapsed: time.Second}})
		}
	}
	table := r.table("raw.json")
	for _, want := range []string{"[`raw.json`](bench/raw.json)", "| two Heddle sidecars | 10 | 30.0 |", "1.50 (1.50-1.50)", "| two HAProxy hops | 10 | 20.0 |"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"+tableBegin+"old\n"+tableEnd+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := replaceTable(page, "new\n"); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(page); string(b) != "before\n"+tableBegin+"new\n"+tableEnd+"after\n" {
		t.Errorf("page is %q", b)
	}
}

// The generator's requests are answered by the backend, and counted.
func TestLoadAgainstBackend(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runBackend(ctx, []string{"-listen", address}) }()
	defer func() { cancel(); <-ended }()
	var p part
	for range 100 {
		w := &worker{target: address, from: time.Now(), until: time.Now().Add(50 * time.Millisecond)}
		if p = w.run(ctx, 0); p.err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond) // until it listens
	}
	if p.err != nil || len(p.times) == 0 {
		t.Errorf("%d answers, error %v", len(p.times), p.err)
	}
}
