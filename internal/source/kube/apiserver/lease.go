package apiserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

// Times of a lease. Holder and waiters judge by their own clocks how long
// nothing was written, never by the times that are written.
const (
	// leaseFor is how long nobody else takes a lease that was renewed: a
	// leader that died without a word is replaced after that.
	leaseFor = 15 * time.Second
	// renewEvery leaves a leader several tries.
	renewEvery = 3 * time.Second
	// giveUpAfter without a renewal the leader stops, well before anybody else
	// begins: lead has the rest of leaseFor to end.
	giveUpAfter = 9 * time.Second
	// retryLead is how often others look.
	retryLead = 2 * time.Second
	// letGo bounds giving a lease back when we end.
	letGo = 3 * time.Second
)

// lease is coordination.k8s.io/v1 Lease, as far as we use it.
type lease struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   meta      `json:"metadata"`
	Spec       leaseSpec `json:"spec"`
}

type leaseSpec struct {
	Holder      string `json:"holderIdentity"`
	Seconds     int    `json:"leaseDurationSeconds"`
	Acquired    string `json:"acquireTime,omitempty"`
	Renewed     string `json:"renewTime,omitempty"`
	Transitions int    `json:"leaseTransitions"`
}

// microTime is metav1.MicroTime's form.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

// candidate is one who wants to lead.
type candidate struct {
	client *Client
	name   string // of the lease
	me     string
	last   lease     // as read or written last
	since  time.Time // when last was first seen like that
}

// Lead holds a Lease in Config.Namespace and runs lead meanwhile, until ctx
// ends (source.Source).
func (client *Client) Lead(ctx context.Context, name string, lead func(context.Context)) {
	host, _ := os.Hostname()
	c := &candidate{client: client, name: name, me: host + "_" + rand.Text()}
	failing := false
	for {
		got, err := c.try(ctx)
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			failing = true
			client.log.Warn("cannot compete for a lease", "lease", name, "error", err)
		case err == nil:
			failing = false
		}
		if got {
			client.log.Info("leading", "lease", name)
			c.hold(ctx, lead)
			client.log.Info("no longer leading", "lease", name)
		}
		if !pause(ctx, retryLead) {
			return
		}
	}
}

// hold runs lead and renews the lease until either ends.
func (c *candidate) hold(ctx context.Context, lead func(context.Context)) {
	leading, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	ended := make(chan struct{})
	all.Go(func() { defer close(ended); lead(leading) })
	renewed := time.Now()
	for held := true; held; {
		select {
		case <-ended:
			held = false
		case <-ctx.Done():
			held = false
		case <-time.After(renewEvery):
			began := time.Now()
			renewing, cancel := context.WithDeadline(ctx, renewed.Add(giveUpAfter))
			got, err := c.try(renewing)
			cancel()
			switch {
			case got:
				renewed = began
			case err == nil, time.Since(renewed) >= giveUpAfter:
				c.client.log.Warn("lost a lease", "lease", c.name, "holder", c.last.Spec.Holder, "error", err)
				held = false
			}
		}
	}
	stop()
	all.Wait()
	c.release(ctx)
}

func (c *candidate) path(name string) string {
	p := "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(c.client.namespace) + "/leases"
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	return p
}

// try takes or renews the lease; false without an error: another holds it.
func (c *candidate) try(ctx context.Context) (bool, error) {
	var now lease
	err := said(c.client.Get(ctx, c.path(c.name), &now))
	if errors.Is(err, source.ErrNotFound) {
		now, err = lease{}, nil
	}
	if err != nil {
		return false, fmt.Errorf("read lease %s: %w", c.name, err)
	}
	if now.Metadata.ResourceVersion != c.last.Metadata.ResourceVersion || c.since.IsZero() {
		c.last, c.since = now, time.Now()
	}
	held := now.Spec.Holder != "" && now.Spec.Holder != c.me
	if held && time.Since(c.since) < time.Duration(max(now.Spec.Seconds, 1))*time.Second {
		return false, nil
	}
	err = c.write(ctx, c.me, now)
	if errors.Is(err, source.ErrConflict) {
		return false, nil // somebody was faster; the next look tells who
	}
	return err == nil, err
}

// write puts a holder into the lease as it was read.
func (c *candidate) write(ctx context.Context, holder string, was lease) error {
	at := time.Now().UTC().Format(microTime)
	next := lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease",
		Metadata: meta{c.name, c.client.namespace, was.Metadata.ResourceVersion},
		Spec:     leaseSpec{Holder: holder, Seconds: int(leaseFor / time.Second), Acquired: was.Spec.Acquired, Renewed: at, Transitions: was.Spec.Transitions}}
	if holder != was.Spec.Holder {
		next.Spec.Acquired = at
		next.Spec.Transitions++
	}
	q := call{method: http.MethodPut, path: c.path(c.name), body: next}
	if was.Metadata.ResourceVersion == "" {
		q.method, q.path = http.MethodPost, c.path("")
	}
	var written lease
	if err := c.client.do(ctx, q, &written); err != nil {
		return fmt.Errorf("write lease %s: %w", c.name, said(err))
	}
	c.last, c.since = written, time.Now()
	return nil
}

// release gives the lease back, so that the next one need not wait.
func (c *candidate) release(ctx context.Context) {
	if c.last.Spec.Holder != c.me {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), letGo)
	defer cancel()
	if err := c.write(ctx, "", c.last); err != nil {
		c.client.log.Debug("cannot give a lease back", "lease", c.name, "error", err)
	}
}

// pause waits, or until ctx ends; false: it ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
