package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/internal/lab/admit"
	"github.com/heddle-mesh/heddle/internal/lab/cluster"
	"github.com/heddle-mesh/heddle/internal/lab/dns"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet"
	"github.com/heddle-mesh/heddle/internal/lab/manifest"
	"github.com/heddle-mesh/heddle/internal/lab/objects"
	"github.com/heddle-mesh/heddle/internal/lab/token"
	"github.com/heddle-mesh/heddle/internal/run"
)

// retryWrite is when writing objects is tried again after it failed.
const retryWrite = time.Second

// Status is what `heddle lab status` shows; it stands in status.json.
type Status struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Ready bool   `json:"ready"` // as Lab.Ready
	Mesh  bool   `json:"mesh"`
	// Manifests are the files and folders that the lab reads.
	Manifests []string `json:"manifests"`
	cluster.Status
}

// ReadStatus reads the status of a lab that is up, perhaps in another process.
func ReadStatus(runDir, name string) (*Status, error) {
	if !alive(runDir, name) {
		if _, err := os.Stat(StateDir(runDir, name)); err == nil {
			return nil, fmt.Errorf("the process of lab %s is dead: `heddle lab down --name %s` takes away what it left", name, name)
		}
		return nil, fmt.Errorf("%w: %s", ErrNotUp, name)
	}
	b, err := os.ReadFile(paths(StateDir(runDir, name)).status())
	if err != nil {
		return nil, fmt.Errorf("read the lab's status: %w", err)
	}
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read the lab's status: %w", err)
	}
	return &s, nil
}

// brain drives the cluster: one goroutine, loop, owns it.
type brain struct {
	lab      *Lab
	fab      *fabric.Fabric
	key      *token.Key
	out      *objects.Folder
	folder   *manifest.Folder
	cluster  *cluster.Cluster
	kubelets map[string]*kubelet.Kubelet
	zone     atomic.Pointer[dns.Zone]
	read     bool // the manifests were read once
	asking   sync.WaitGroup
}

// run runs all parts. The pods outlive ctx by their grace, so the parts end
// with a context of their own, which the loop ends last.
func (b *brain) run(ctx context.Context) error {
	b.zone.Store(dns.NewZone(dns.Input{Domain: clusterDomain}))
	g := run.NewGroup(context.WithoutCancel(ctx))
	for name, k := range b.kubelets {
		g.Go("kubelet of "+name, k.Run)
	}
	g.Go("dns", b.serveDNS)
	g.Go("manifests", b.folder.Run)
	for _, h := range b.lab.cfg.Hosts {
		g.Go("host "+h.Name, func(ctx context.Context) error { return b.runHost(ctx, h) })
	}
	g.Go("loop", func(parts context.Context) error {
		defer b.asking.Wait()
		return b.loop(ctx, parts)
	})
	return g.Wait()
}

// loop runs until ctx ends and the pods have ended after it, or a part fails.
func (b *brain) loop(ctx, parts context.Context) error {
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return b.drain(parts)
		case <-parts.Done():
			return parts.Err()
		case set := <-b.folder.Sets():
			b.read = true
			b.cluster.SetManifests(set)
			for _, p := range set.Problems {
				b.lab.log.Warn("bad manifest", "err", p.String())
			}
		case <-b.lab.inbox.signal:
		case <-wake.C:
		}
		b.step(parts, wake)
	}
}

// drain ends the users' pods, then the mesh's.
func (b *brain) drain(parts context.Context) error {
	wake := time.NewTimer(0)
	defer wake.Stop()
	for _, keep := range []string{systemNamespace, ""} {
		b.cluster.Drain(keep, stopGrace)
		late := time.NewTimer(stopWait)
		for waiting := true; waiting; {
			b.step(parts, wake)
			if b.cluster.Empty(keep) {
				break
			}
			select {
			case <-b.lab.inbox.signal:
			case <-wake.C:
			case <-late.C:
				b.lab.log.Warn("pods do not end: they will be killed")
				waiting = false
			case <-parts.Done():
				late.Stop()
				return parts.Err()
			}
		}
		late.Stop()
	}
	return nil
}

// step lets the cluster take in what happened and carries out what follows.
func (b *brain) step(parts context.Context, wake *time.Timer) {
	for _, event := range b.lab.inbox.take() {
		event(b.cluster)
	}
	out := b.cluster.Step()
	b.zone.Store(dns.NewZone(out.Zone))
	if err := b.out.Sync(out.Objects); err != nil {
		b.lab.log.Error("write objects", "err", err)
		if at := time.Now().Add(retryWrite); out.Wake.IsZero() || at.Before(out.Wake) {
			out.Wake = at
		}
	}
	for _, p := range out.Apply {
		b.kubelets[p.Spec.NodeName].Apply(p)
	}
	for _, d := range out.Delete {
		b.kubelets[d.Node].Delete(d.UID, d.Grace)
	}
	for _, a := range out.Admit {
		b.asking.Go(func() { b.ask(parts, a) })
	}
	b.publish(out.Status)
	if !out.Wake.IsZero() {
		wake.Reset(time.Until(out.Wake))
	}
}

// ask sends one pod through its webhooks.
func (b *brain) ask(ctx context.Context, a cluster.Admission) {
	pod, warnings, err := admit.Pod(ctx, admit.Config{Dial: b.dial, Endpoint: a.Endpoint}, a.Hooks, a.Pod)
	if err != nil {
		b.lab.log.Warn("admission", "pod", a.Pod.Namespace+"/"+a.Pod.Name, "err", err)
	}
	for _, w := range warnings {
		b.lab.log.Warn("admission", "pod", a.Pod.Namespace+"/"+a.Pod.Name, "warning", w)
	}
	b.lab.inbox.put(func(c *cluster.Cluster) {
		c.Admitted(a.Pod.UID, cluster.Answer{Pod: pod, Warnings: warnings, Err: err})
	})
}

// publish writes status.json and finds out whether the lab is ready.
func (b *brain) publish(cs cluster.Status) {
	s := &Status{Name: b.lab.cfg.Name, PID: os.Getpid(), Mesh: b.lab.cfg.Mesh != nil, Manifests: b.lab.cfg.Manifests, Status: cs}
	s.Ready = b.read && systemReady(cs, s.Mesh)
	b.lab.status.Store(s)
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		tmp := b.lab.paths.status() + ".tmp"
		if err = os.WriteFile(tmp, data, 0o644); err == nil {
			err = os.Rename(tmp, b.lab.paths.status())
		}
	}
	if err != nil {
		b.lab.log.Error("write the status", "err", err)
	}
	if s.Ready {
		select {
		case <-b.lab.ready:
		default:
			close(b.lab.ready)
		}
	}
}

func systemReady(s cluster.Status, mesh bool) bool {
	if !mesh {
		return true
	}
	n := 0
	for _, p := range s.Pods {
		if p.Namespace == systemNamespace {
			if !p.Ready {
				return false
			}
			n++
		}
	}
	return n > 0
}
