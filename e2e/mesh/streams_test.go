package mesh

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// eventually waits for something that the mesh learns by itself.
func eventually(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not so in 30 s: %s", what)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Whoever closes first, and whichever way, both ends see just that.
func TestClosing(t *testing.T) {
	must(t, "client", "close-first", "servers:7003")
	must(t, "client", "half-close", "servers:7002")
	must(t, "client", "echo", "servers:7000", "-bytes", "5000000")
	must(t, "client", "connect", "servers:7000") // the client closes first
}

// A server that speaks first is heard at once.
func TestServerFirst(t *testing.T) {
	must(t, "client", "banner", "servers:7001")
	for range 3 {
		if s := must(t, "client", "banner", "servers:7001"); s.Millis > 500 {
			t.Errorf("the banner took %d ms", s.Millis)
		}
	}
}

// A head of 64 KiB is refused cleanly, with the status for it; one of 32 KiB passes.
func TestLargeHead(t *testing.T) {
	if s := probe(t, "client", "get", "http://servers/who", "-head-bytes", "66000"); s.Status != 431 || s.Reason != "header_too_large" {
		t.Errorf("64 KiB: %+v", s)
	}
	must(t, "client", "get", "http://servers/who", "-head-bytes", "32000")
}

// A body of 1 GiB streams both ways while the sidecars' memory stays flat.
func TestLargeBody(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() {
		size = 128 << 20 // still more than the memory that may be used
	}
	before := map[string]float64{}
	for _, name := range []string{"client", "server-a"} {
		before[name] = sum(metrics(t, name), "process_resident_memory_bytes")
	}
	url := "http://" + ip(t, "mesh", "server-a", false) + ":8080"
	if s := must(t, "client", "get", fmt.Sprintf("%s/bytes/%d", url, size)); s.Bytes != size {
		t.Errorf("got %d bytes", s.Bytes)
	}
	must(t, "client", "upload", url+"/count", "-bytes", fmt.Sprint(size))
	must(t, "client", "upload", url+"/count", "-bytes", "104857600", "-chunked")
	for name, was := range before {
		if now := sum(metrics(t, name), "process_resident_memory_bytes"); now-was > 24<<20 {
			t.Errorf("memory of %s's sidecar grew from %.1f to %.1f MB", name, was/1e6, now/1e6)
		}
	}
}

// 10,000 connections, one after the other, leave no socket and no goroutine.
func TestManyConnections(t *testing.T) {
	n := "10000"
	if testing.Short() {
		n = "500"
	}
	must(t, "client", "connect", "servers:7000", "-n", "200") // warm: pools, code paths
	count := func() map[string]float64 {
		out := map[string]float64{}
		for _, name := range []string{"client", "server-a", "server-b"} {
			m := metrics(t, name)
			out[name+" goroutines"] = sum(m, "go_goroutines")
			out[name+" descriptors"] = sum(m, "process_open_fds")
		}
		return out
	}
	before := count()
	must(t, "client", "connect", "servers:7000", "-n", n)
	must(t, "client", "get", "http://servers/who", "-fresh", "-n", "1000")
	ctx, _ := mesh(t)
	var after map[string]float64
	eventually(ctx, t, "goroutines and descriptors are back where they were", func() bool {
		after = count()
		for k, was := range before {
			if after[k] > was+10 {
				return false
			}
		}
		return true
	})
}
