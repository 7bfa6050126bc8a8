package serve

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// TestEncodingsKeepNoResources holds that the cache keeps bytes, which it
// counts, and not the resources that they were made of, which are far larger.
func TestEncodingsKeepNoResources(t *testing.T) {
	c := newEncodings(prometheus.NewCounter(prometheus.CounterOpts{Name: "made"}))
	form := func(i int) *state.Resource {
		svc := &pb.Service{}
		for e := range 500 {
			svc.Endpoints = append(svc.Endpoints, &pb.Endpoint{Key: []byte(fmt.Sprint(e)), Ready: e != i%500})
		}
		u := &pb.Update{Content: &pb.Update_Destination{Destination: &pb.Destination{Kind: &pb.Destination_Service{Service: svc}}}}
		return &state.Resource{Name: "addr/10.96.0.1", Version: wire.Hash(u), Revision: uint64(i), Update: u}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	from := form(0)
	before := heap()
	for i := range 400 {
		to := form(i + 1)
		if e := c.get(step{from: from, to: to, revision: to.Revision}); e.err != nil {
			t.Fatal(e.err)
		}
		from = to
	}
	if grown := int64(heap()) - int64(before); grown > cacheBytes {
		t.Errorf("400 small steps keep %d MiB", grown>>20)
	}
	runtime.KeepAlive(c)
}
