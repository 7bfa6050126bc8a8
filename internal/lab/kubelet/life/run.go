package life

import (
	"context"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/internal/lab/kubelet/probe"
)

// launch starts a container's next run.
func (w *Worker) launch(ctx context.Context, c *ctr) {
	proc, err := w.cfg.Driver.Start(c.spec, c.role != roleApp)
	if err != nil {
		c.wait = corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: err.Error()}
		w.log.Warn("container does not start", "container", c.spec.Name, "error", err)
		w.postpone(c)
		return
	}
	c.gen++
	c.runs++
	c.proc, c.startedAt, c.killAt, c.killed = proc, time.Now(), time.Time{}, false
	c.started = c.spec.StartupProbe == nil
	c.wasStarted = c.wasStarted || c.started
	c.ready = c.started && c.spec.ReadinessProbe == nil
	gen := c.gen
	w.wg.Go(func() {
		<-proc.Done()
		w.tell(event{c: c, gen: gen, kind: exited})
	})
	var probes context.Context
	probes, c.stopProbes = context.WithCancel(ctx)
	w.watch(probes, c)
}

// watch runs a run's postStart hook and probes: the startup probe first, the
// others once that passed.
func (w *Worker) watch(ctx context.Context, c *ctr) {
	gen, spec := c.gen, c.spec
	tell := func(kind eventKind, err error) { w.tell(event{c: c, gen: gen, kind: kind, err: err}) }
	if l := spec.Lifecycle; l != nil && l.PostStart != nil {
		w.wg.Go(func() {
			if err := w.cfg.Driver.Ask(ctx, spec, hookAction(l.PostStart)); err != nil && ctx.Err() == nil {
				tell(hookBad, err)
			}
		})
	}
	loop := func(p *corev1.Probe, eager bool, report func(bool, error) bool) {
		l := probe.NewLoop(p)
		l.Eager = eager
		l.Run(ctx, func(ctx context.Context) error { return w.cfg.Driver.Ask(ctx, spec, probeAction(p)) }, report)
	}
	others := func() {
		if p := spec.ReadinessProbe; p != nil {
			w.wg.Go(func() {
				loop(p, true, func(ok bool, err error) bool {
					if ok {
						tell(readyOK, nil)
					} else {
						tell(readyBad, err)
					}
					return true
				})
			})
		}
		if p := spec.LivenessProbe; p != nil {
			w.wg.Go(func() {
				loop(p, false, func(ok bool, err error) bool {
					if !ok {
						tell(livenessBad, err)
					}
					return ok
				})
			})
		}
	}
	p := spec.StartupProbe
	if p == nil {
		others()
		return
	}
	w.wg.Go(func() {
		loop(p, true, func(ok bool, err error) bool {
			if ok {
				tell(startupOK, nil)
				others()
			} else {
				tell(startupBad, err)
			}
			return false
		})
	})
}

func probeAction(p *corev1.Probe) probe.Action {
	return probe.Action{HTTP: p.HTTPGet, TCP: p.TCPSocket, Exec: p.Exec, GRPC: p.GRPC}
}

func hookAction(h *corev1.LifecycleHandler) probe.Action {
	return probe.Action{HTTP: h.HTTPGet, TCP: h.TCPSocket, Exec: h.Exec}
}

// stop begins to end a container: its hook, then SIGTERM; SIGKILL when killAt
// has come (reconcile).
func (w *Worker) stop(ctx context.Context, c *ctr, killAt time.Time) {
	if c.proc == nil {
		return
	}
	if !c.killAt.IsZero() { // being stopped already
		if killAt.Before(c.killAt) {
			c.killAt = killAt
		}
		return
	}
	c.killAt = killAt
	proc, spec := c.proc, c.spec
	w.wg.Go(func() {
		if l := spec.Lifecycle; l != nil && l.PreStop != nil {
			w.preStop(ctx, spec, proc, killAt)
		}
		if err := proc.Signal(syscall.SIGTERM); err != nil {
			w.log.Warn("container not stopped", "container", spec.Name, "error", err)
		}
	})
}

func (w *Worker) preStop(ctx context.Context, spec *corev1.Container, proc Process, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	go func() { // a container that is gone needs no hook; ends with ctx
		select {
		case <-proc.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	l := spec.Lifecycle.PreStop
	if l.Sleep != nil {
		pause(ctx, time.Duration(l.Sleep.Seconds)*time.Second)
		return
	}
	if err := w.cfg.Driver.Ask(ctx, spec, hookAction(l)); err != nil && ctx.Err() == nil {
		w.log.Warn("preStop failed", "container", spec.Name, "error", err)
	}
}

func (w *Worker) kill(c *ctr) {
	if c.proc == nil || c.killed {
		return
	}
	c.killed = true
	if c.killAt.IsZero() {
		c.killAt = time.Now()
	}
	if err := c.proc.Signal(syscall.SIGKILL); err != nil {
		w.log.Warn("container not killed", "container", c.spec.Name, "error", err)
	}
}

func (w *Worker) killAll() {
	for _, c := range w.ctrs {
		w.kill(c)
	}
}
