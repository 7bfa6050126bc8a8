package kubelet

import (
	"context"
	"log/slog"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-mesh/heddle/internal/lab/kubelet/probe"
)

// driver is what a worker needs done. Its methods may be called from any
// goroutine of the worker.
type driver interface {
	// Setup makes the pod's network and volumes; it may be called again.
	Setup(ctx context.Context, pod *corev1.Pod) error
	// Keep does what must go on while the pod is there (tokens), until ctx ends.
	Keep(ctx context.Context)
	// Start starts a container and waits until its program runs.
	Start(c *corev1.Container, isInit bool) (process, error)
	// Ask does a probe's or hook's action against a container.
	Ask(ctx context.Context, c *corev1.Container, a probe.Action) error
	// Addresses are the pod's and its node's.
	Addresses(pod *corev1.Pod) ([]corev1.PodIP, []corev1.HostIP)
	// Teardown takes away what Setup made.
	Teardown(pod *corev1.Pod) error
}

// process is a container that runs; container.Process is one.
type process interface {
	PID() int
	Done() <-chan struct{}
	Code() int
	Signal(os.Signal) error
}

// Bounds of a pod's life.
const (
	maxBackOff = 5 * time.Minute  // Kubernetes' own
	calm       = 10 * time.Minute // a run this long forgets earlier crashes
	setupRetry = time.Second      // what fails is mostly something not there yet
	// sidecarGrace is what a sidecar gets between SIGTERM and SIGKILL when the
	// containers before it used up the pod's grace.
	sidecarGrace = 2 * time.Second
)

// worker owns one pod. One goroutine (run) reads and writes its state; others
// tell it what happened by events.
type worker struct {
	uid       types.UID
	first     *corev1.Pod // as applied first; read-only
	drive     driver
	onStatus  func(*corev1.Pod)
	onDeleted func(*corev1.Pod)
	backOff   time.Duration
	log       *slog.Logger

	mu     sync.Mutex
	wanted desire
	asked  chan struct{} // one signal: wanted changed

	events chan event
	wg     sync.WaitGroup

	// Owned by run.
	pod      *corev1.Pod
	ctrs     []*ctr // init containers (sidecars among them) in order, then the others
	setUp    bool
	setUpErr error
	started  time.Time
	deadline time.Time // zero: not to be ended. Then when grace is over
	deleting bool
	status   corev1.PodStatus
}

// desire is what Apply and Delete said since it was last looked at.
type desire struct {
	pod   *corev1.Pod
	grace time.Duration // negative: stays
}

func (d *desire) remove(grace time.Duration) {
	if d.grace < 0 || grace < d.grace {
		d.grace = grace
	}
}

type event struct {
	c    *ctr
	gen  int
	kind eventKind
	err  error
}

type eventKind int

const (
	setUpDone eventKind = iota
	exited
	startupOK
	startupBad
	readyOK
	readyBad
	livenessBad
	hookBad
)

// role of a container in its pod.
type role int

const (
	roleInit    role = iota // runs to its end before the next
	roleSidecar             // init container with restartPolicy Always
	roleApp
)

// ctr is one container and what became of it.
type ctr struct {
	spec *corev1.Container
	role role

	gen        int // of the run; events of earlier runs are void
	proc       process
	stopProbes context.CancelFunc
	startedAt  time.Time
	started    bool // startup probe passed, or none
	wasStarted bool // in this or an earlier run
	ready      bool
	killAt     time.Time // zero: not being stopped
	killed     bool

	runs      int // started so far
	finished  bool
	wait      corev1.ContainerStateWaiting
	last      *corev1.ContainerStateTerminated // of the newest run that ended
	before    *corev1.ContainerStateTerminated // of the one before
	delay     time.Duration
	notBefore time.Time
}

func newWorker(pod *corev1.Pod, backOff time.Duration, log *slog.Logger) *worker {
	w := &worker{
		uid: pod.UID, first: pod, pod: pod, backOff: backOff,
		log:    log.With("pod", pod.Namespace+"/"+pod.Name),
		wanted: desire{grace: -1}, asked: make(chan struct{}, 1), events: make(chan event),
	}
	for i := range pod.Spec.InitContainers {
		c := &ctr{spec: &pod.Spec.InitContainers[i], role: roleInit}
		if p := c.spec.RestartPolicy; p != nil && *p == corev1.ContainerRestartPolicyAlways {
			c.role = roleSidecar
		}
		w.ctrs = append(w.ctrs, c)
	}
	for i := range pod.Spec.Containers {
		w.ctrs = append(w.ctrs, &ctr{spec: &pod.Spec.Containers[i], role: roleApp})
	}
	for _, c := range w.ctrs {
		c.wait.Reason = "PodInitializing"
		if len(pod.Spec.InitContainers) == 0 {
			c.wait.Reason = "ContainerCreating"
		}
	}
	return w
}

// ask changes what is wanted; never blocks.
func (w *worker) ask(change func(*desire)) {
	w.mu.Lock()
	change(&w.wanted)
	w.mu.Unlock()
	select {
	case w.asked <- struct{}{}:
	default: // a signal waits already
	}
}

// run lives as long as the pod.
func (w *worker) run(ctx context.Context) {
	inner, cancel := context.WithCancel(ctx)
	w.started = time.Now()
	w.setup(inner, 0)
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	for {
		if w.reconcile(inner) {
			break
		}
		w.publish()
		timer.Reset(w.nextDue())
		select {
		case <-ctx.Done():
			w.killAll()
		case <-timer.C:
		case <-w.asked:
			w.look()
		case e := <-w.events:
			w.handle(inner, e)
		}
		if ctx.Err() != nil {
			break
		}
	}
	cancel()
	w.finish(inner)
}

// finish waits for all that was started, then takes the pod's things away. ctx
// has ended.
func (w *worker) finish(ctx context.Context) {
	drained := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(drained)
	}()
	w.killAll()
	for waiting := true; waiting; {
		select {
		case e := <-w.events:
			w.handle(ctx, e)
		case <-drained:
			waiting = false
		}
	}
	w.publish()
	if err := w.drive.Teardown(w.pod); err != nil {
		w.log.Warn("pod not cleaned up", "error", err)
	}
	if w.deleting && w.onDeleted != nil {
		w.onDeleted(w.statusCopy())
	}
}

// tell brings an event to run. Every goroutine that tells is counted in wg,
// and finish listens until all are gone, so it always returns.
func (w *worker) tell(e event) { w.events <- e }

func (w *worker) setup(ctx context.Context, after time.Duration) {
	pod := w.pod
	w.wg.Go(func() {
		if !pause(ctx, after) {
			return
		}
		w.tell(event{kind: setUpDone, err: w.drive.Setup(ctx, pod)})
	})
}

func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *worker) look() {
	w.mu.Lock()
	d := w.wanted
	w.wanted = desire{grace: -1}
	w.mu.Unlock()
	if d.pod != nil {
		next := w.pod.DeepCopy()
		next.ObjectMeta = d.pod.ObjectMeta
		w.pod = next
	}
	if d.grace >= 0 {
		w.deleting = true
		w.end(time.Now().Add(d.grace))
	}
}

// end says that the pod shall be over by a time; only ever earlier.
func (w *worker) end(at time.Time) {
	if !w.deadline.IsZero() && !at.Before(w.deadline) {
		return
	}
	w.deadline = at
	for _, c := range w.ctrs { // those being stopped hear of it
		if c.proc != nil && !c.killAt.IsZero() && at.Before(c.killAt) {
			c.killAt = at
		}
	}
}

func (w *worker) handle(ctx context.Context, e event) {
	if e.kind == setUpDone {
		if ctx.Err() != nil {
			return // finish counts on nothing new being started
		}
		w.setUp, w.setUpErr = e.err == nil, e.err
		if e.err != nil {
			w.log.Warn("pod not set up yet", "error", e.err)
			w.setup(ctx, setupRetry)
			return
		}
		w.wg.Go(func() { w.drive.Keep(ctx) })
		return
	}
	if e.gen != e.c.gen || e.c.proc == nil {
		return // of a run that is over
	}
	c := e.c
	log := w.log.With("container", c.spec.Name)
	switch e.kind {
	case exited:
		w.exited(c)
	case startupOK:
		c.started, c.wasStarted = true, true
		c.ready = c.spec.ReadinessProbe == nil
	case startupBad, livenessBad:
		log.Warn("probe failed, container is stopped", "error", e.err)
		c.ready = false
		w.stop(ctx, c, time.Now().Add(w.probeGrace(c, e.kind)))
	case readyOK:
		c.ready = true
	case readyBad:
		log.Info("not ready", "error", e.err)
		c.ready = false
	case hookBad:
		log.Warn("postStart failed, container is stopped", "error", e.err)
		w.stop(ctx, c, time.Now().Add(graceOf(w.pod, -1)))
	}
}

func (w *worker) probeGrace(c *ctr, kind eventKind) time.Duration {
	p := c.spec.LivenessProbe
	if kind == startupBad {
		p = c.spec.StartupProbe
	}
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		return time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
	}
	return graceOf(w.pod, -1)
}

// launch starts a container's next run.
func (w *worker) launch(ctx context.Context, c *ctr) {
	proc, err := w.drive.Start(c.spec, c.role != roleApp)
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
func (w *worker) watch(ctx context.Context, c *ctr) {
	gen, spec := c.gen, c.spec
	tell := func(kind eventKind, err error) { w.tell(event{c: c, gen: gen, kind: kind, err: err}) }
	if l := spec.Lifecycle; l != nil && l.PostStart != nil {
		w.wg.Go(func() {
			if err := w.drive.Ask(ctx, spec, hookAction(l.PostStart)); err != nil && ctx.Err() == nil {
				tell(hookBad, err)
			}
		})
	}
	loop := func(p *corev1.Probe, eager bool, report func(bool, error) bool) {
		l := probe.NewLoop(p)
		l.Eager = eager
		l.Run(ctx, func(ctx context.Context) error { return w.drive.Ask(ctx, spec, probeAction(p)) }, report)
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
func (w *worker) stop(ctx context.Context, c *ctr, killAt time.Time) {
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

func (w *worker) preStop(ctx context.Context, spec *corev1.Container, proc process, until time.Time) {
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
	if err := w.drive.Ask(ctx, spec, hookAction(l)); err != nil && ctx.Err() == nil {
		w.log.Warn("preStop failed", "container", spec.Name, "error", err)
	}
}

func (w *worker) kill(c *ctr) {
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

func (w *worker) killAll() {
	for _, c := range w.ctrs {
		w.kill(c)
	}
}

func (w *worker) exited(c *ctr) {
	code := c.proc.Code()
	c.stopProbes()
	now := time.Now()
	c.before = c.last
	c.last = terminated(c, code, now)
	if now.Sub(c.startedAt) >= calm {
		c.delay = 0
	}
	c.proc, c.started, c.ready, c.killAt = nil, false, false, time.Time{}
	w.log.Info("container ended", "container", c.spec.Name, "code", code)
	if !w.restarts(c, code) {
		c.finished = true
		return
	}
	// The first restart comes at once, as with a real kubelet.
	if c.delay == 0 {
		c.delay = w.backOff / 2 // doubled by the next
		c.notBefore = now
		return
	}
	w.postpone(c)
	c.wait = corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
		Message: "back-off " + c.delay.String() + " restarting failed container " + c.spec.Name}
}

// postpone doubles a container's wait.
func (w *worker) postpone(c *ctr) {
	c.delay = min(maxBackOff, max(w.backOff, 2*c.delay))
	c.notBefore = time.Now().Add(c.delay)
}

// restarts says whether a container that ended shall run again.
func (w *worker) restarts(c *ctr, code int) bool {
	policy := w.pod.Spec.RestartPolicy
	switch {
	case !w.deadline.IsZero():
		return false
	case c.role == roleSidecar:
		return true
	case c.role == roleInit:
		return code != 0 && policy != corev1.RestartPolicyNever
	case policy == corev1.RestartPolicyNever:
		return false
	case policy == corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}
