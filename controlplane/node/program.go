package node

import (
	"context"
	"slices"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/keep"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
)

const (
	// settle is the pause after a write: changes that come meanwhile are
	// written together. A rolling update makes tens of them in a second.
	settle = 50 * time.Millisecond
	// look is how often we ask whether somebody wrote rules; thorough is how
	// often our table is compared although nobody did.
	look     = time.Second
	thorough = 30 * time.Second
	// lookShare: looking takes at most one part in so many of the time. A table of
	// 5,000 Services takes a second to list, and where others write rules all
	// the time, each look lists it.
	lookShare = 20
	// firstRetry and lastRetry bound the pauses between attempts to write.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	// keepAfter is how long a change waits to be written to disk: a disk is
	// not worn by a rolling update, and a crash loses no more than this.
	keepAfter = time.Second
)

// programmer writes what is told. One goroutine has it.
type programmer struct {
	*agent
	services map[string]compiled // by namespace/name
	zone     string
	rules    *plan.Rules // written last; nil: none yet
	failures int
	rest     time.Time  // no look before
	kept     *pb.Update // on disk
	keptFor  keep.Owner
}

// program keeps the kernel at what was told last, until ctx ends.
func (a *agent) program(ctx context.Context) error {
	p := &programmer{agent: a, services: map[string]compiled{}, kept: a.told.Load()}
	var (
		retry = stopped()
		save  = stopped()
		looks = time.NewTicker(look)
		since = time.Now() // of the last thorough look
	)
	defer looks.Stop()
	defer retry.Stop()
	defer save.Stop()
	p.write(retry)
	for {
		select {
		case <-ctx.Done():
			p.save()
			return ctx.Err()
		case <-a.changed:
			p.write(retry)
			save.Reset(keepAfter)
			pause(ctx, settle)
		case <-retry.C:
			p.write(retry)
		case <-save.C:
			p.save()
		case now := <-looks.C:
			if now.Before(p.rest) {
				p.looked()
				continue
			}
			deep := now.Sub(since) >= thorough
			if deep {
				since = now
				p.save() // if it failed before
			}
			p.look(deep, retry)
		}
	}
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// write brings the kernel to what was told, or starts the timer for another
// attempt.
func (p *programmer) write(retry *time.Timer) {
	told := p.told.Load()
	rules := p.compile(told)
	began := time.Now()
	apply := p.backend.Apply
	if told == nil && !p.foreign {
		apply = p.backend.Add // what an earlier run of ours left is better than nothing
	}
	rep, err := apply(rules)
	took := time.Since(began)
	p.metrics.applied(rep, took, err)
	if err != nil {
		wait := min(firstRetry<<min(p.failures, 10), lastRetry)
		p.failures++
		p.log.Error("cannot write the rules; the last ones stay", "again_in", wait.String(), "error", err)
		p.wrote(rules, told, err)
		retry.Reset(wait)
		return
	}
	p.failures = 0
	retry.Stop()
	p.rules = rules
	p.wrote(rules, told, nil)
	if rep.FlowsErr != nil {
		p.log.Warn("UDP flows to endpoints that are gone may hang on", "again_in", lastRetry.String(), "error", rep.FlowsErr)
		retry.Reset(lastRetry)
	}
	if rep.Keys > 0 || rep.Flows.Deleted > 0 || rep.Full {
		p.log.Info("wrote rules", "revision", told.GetRevision(), "services", len(rules.Services), "keys", rep.Keys, "whole", rep.Full,
			"transactions", rep.Transactions, "took", took.Round(time.Microsecond).String(), "udp_flows_deleted", rep.Flows.Deleted)
	}
}

// compile plans what is told. A Service that did not change is not planned
// again.
func (p *programmer) compile(told *pb.Update) *plan.Rules {
	n := told.GetNode()
	if n.GetZone() != p.zone {
		p.zone, p.services = n.GetZone(), map[string]compiled{}
	}
	here := plan.Node{Name: p.cfg.Node, Zone: p.zone}
	next := make(map[string]compiled, len(n.GetServices()))
	add := func(s *pb.NodeService) {
		name := s.GetService().GetNamespace() + "/" + s.GetService().GetName()
		c := p.services[name]
		if c.from != s {
			var errs []error
			c.from = s
			if c.rules, errs = plan.Compile(s, here); len(errs) > 0 {
				p.log.Warn("left out what cannot be understood", "errors", errs)
			}
		}
		next[name] = c
	}
	for _, s := range n.GetServices() {
		add(s)
	}
	p.services = next
	rules := &plan.Rules{Services: make(map[string]plan.Service, len(next))}
	for name, c := range next {
		rules.Services[name] = c.rules
	}
	if s := p.bootstrap(); s != nil {
		servers, bad := plan.Compile(s, here)
		p.warn(bad)
		rules.Services[apiService] = reachable(rules.Services[apiService], servers, p.met.Load())
	}
	var bad []error
	rules.Pods, bad = plan.ParsePrefixes(n.GetPodPrefixes())
	p.warn(bad)
	rules.Ranges, bad = plan.ParsePrefixes(n.GetServicePrefixes())
	p.warn(bad)
	return rules
}

func (p *programmer) warn(errs []error) {
	if len(errs) > 0 {
		p.log.Warn("left out what cannot be understood", "errors", errs)
	}
}

// look mends what somebody else did to our rules.
func (p *programmer) look(deep bool, retry *time.Timer) {
	if p.failures > 0 {
		return // the next attempt compares with the kernel anyhow
	}
	if p.told.Load() == nil && !p.foreign { // of most of the table we do not know what it should hold
		if deep {
			p.write(retry)
		}
		return
	}
	began := time.Now()
	meddled, err := p.backend.Meddled(deep)
	p.rest = began.Add(lookShare * time.Since(began))
	if err != nil {
		p.log.Warn("cannot look at the rules in the kernel", "error", err)
		return
	}
	p.looked()
	if meddled {
		p.metrics.meddled.Inc()
		p.write(retry)
	}
}

// save keeps what is told on disk, also when only the cluster's CA is another.
func (p *programmer) save() {
	told := p.told.Load()
	if p.cfg.StateDir == "" || told == nil {
		return
	}
	owner, err := p.owner()
	if err != nil {
		owner.Cluster = p.keptFor.Cluster // it has not changed by that
	}
	if told == p.kept && slices.Equal(owner.Cluster, p.keptFor.Cluster) {
		return
	}
	if err := keep.Save(p.cfg.StateDir, owner, told); err != nil {
		p.log.Error("a restart of this node without the control plane would forward by older state", "error", err)
		return
	}
	p.kept, p.keptFor = told, owner
}
