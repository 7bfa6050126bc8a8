package apiserver

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
)

// replica competes until it is stopped.
func replica(t *testing.T, c *Client, y *tally) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Lead(ctx, "l", func(ctx context.Context) {
			y.add(1)
			defer y.add(-1)
			<-ctx.Done()
		})
	}()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	t.Cleanup(stop)
	return stop
}

// One of three leads; when it ends, another does soon.
func TestLead(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		var y tally
		stops := []func(){replica(t, c, &y), replica(t, dial(t, s), &y), replica(t, dial(t, s), &y)}
		time.Sleep(10 * time.Minute)
		if now, most, all := y.read(); now != 1 || most != 1 || all != 1 {
			t.Fatalf("%d lead, %d at once at most, %d in all", now, most, all)
		}
		for i, stop := range stops {
			stop()
			time.Sleep(2 * retryLead)
			now, most, _ := y.read()
			if want := min(1, len(stops)-1-i); now != want || most != 1 {
				t.Fatalf("%d of %d lead, %d at once at most", now, len(stops)-1-i, most)
			}
		}
		if h := field(s.Get("leases", "heddle-system", "l"), "spec.holderIdentity"); h != "" {
			t.Errorf("the lease is still %v's", h)
		}
	})
}

// A leader that the API server no longer hears stops before anybody else
// begins, and one that was away leads again.
func TestLeadAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		var y tally
		replica(t, c, &y)
		time.Sleep(time.Minute)
		s.Down()
		time.Sleep(giveUpAfter + renewEvery + time.Second)
		if now, _, _ := y.read(); now != 0 {
			t.Error("leads though it cannot renew")
		}
		s.Up()
		time.Sleep(2 * retryLead)
		if now, _, all := y.read(); now != 1 || all != 2 {
			t.Errorf("%d lead, %d in all", now, all)
		}
	})
}

// A leader that died without a word is replaced after leaseFor, not before.
func TestLeadDied(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		s.Apply(t, "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: l, namespace: heddle-system}\nspec: {holderIdentity: dead, leaseDurationSeconds: 15, renewTime: \"1990-01-01T00:00:00.000000Z\", leaseTransitions: 4}\n")
		var y tally
		replica(t, c, &y)
		time.Sleep(leaseFor - time.Second) // whatever its clock said
		if now, _, _ := y.read(); now != 0 {
			t.Error("took a lease that may be held")
		}
		time.Sleep(retryLead + time.Second)
		if now, _, _ := y.read(); now != 1 {
			t.Error("does not take a dead one's lease")
		}
		if n := field(s.Get("leases", "heddle-system", "l"), "spec.leaseTransitions"); n != 5.0 {
			t.Errorf("%v transitions", n)
		}
	})
}

// Somebody takes the lease by force: we stop at the next renewal.
func TestLeadTaken(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		var y tally
		replica(t, c, &y)
		time.Sleep(time.Minute)
		s.Apply(t, "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: l, namespace: heddle-system}\nspec: {holderIdentity: other, leaseDurationSeconds: 15}\n")
		time.Sleep(renewEvery + time.Second)
		if now, _, _ := y.read(); now != 0 {
			t.Error("still leads")
		}
		if h := field(s.Get("leases", "heddle-system", "l"), "spec.holderIdentity"); h != "other" {
			t.Errorf("the lease is %v's", h)
		}
	})
}

// lead that returns by itself gives the lease back.
func TestLeadReturns(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := 0
		c.Lead(ctx, "l", func(context.Context) { n++ })
		if n < 10 || n > 60 {
			t.Errorf("led %d times in a minute", n)
		}
		if h := field(s.Get("leases", "heddle-system", "l"), "spec.holderIdentity"); h != "" {
			t.Errorf("the lease is still %v's", h)
		}
	})
}
