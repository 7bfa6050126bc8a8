// Package life is the life of one pod: which of its containers starts, is
// restarted or ends, when, in which order, and what its status says of it. One
// goroutine owns the state and hears of everything else as events. How things
// are done is its Driver's matter. internal/lab/kubelet calls it.
package life

import (
	"context"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/internal/lab/kubelet/probe"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Driver does what a Worker needs done. Its methods may be called from any
// goroutine of the Worker.
type Driver interface {
	// Setup makes the pod's network and volumes; it may be called again.
	Setup(ctx context.Context, pod *corev1.Pod) error
	// Keep does what must go on while the pod is there (tokens), until ctx ends.
	Keep(ctx context.Context)
	// Start starts a container and waits until its program runs.
	Start(c *corev1.Container, isInit bool) (Process, error)
	// Ask does a probe's or hook's action against a container.
	Ask(ctx context.Context, c *corev1.Container, a probe.Action) error
	// Addresses are the pod's and its node's.
	Addresses(pod *corev1.Pod) ([]corev1.PodIP, []corev1.HostIP)
	// Teardown takes away what Setup made.
	Teardown(pod *corev1.Pod) error
}

// Process is a container that runs.
type Process interface {
	PID() int
	Done() <-chan struct{}
	Code() int
	OutOfMemory() bool // it was killed for its memory limit; known once it is done
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

// Config is one pod.
type Config struct {
	Pod     *corev1.Pod // read-only from here on
	Driver  Driver
	BackOff time.Duration // before the second restart; doubled by each further one
	// OnStatus and OnDeleted get copies, one after the other.
	OnStatus  func(*corev1.Pod)
	OnDeleted func(*corev1.Pod)
	Log       *slog.Logger
}

// Worker owns one pod. One goroutine (run) reads and writes its state; others
// tell it what happened by events.
type Worker struct {
	cfg Config
	log *slog.Logger

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
	proc       Process
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

// New prepares a pod's life; Run begins it.
func New(cfg Config) *Worker {
	pod := cfg.Pod
	w := &Worker{
		cfg: cfg, pod: pod, log: telemetry.Discard(cfg.Log).With("pod", pod.Namespace+"/"+pod.Name),
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

// Update takes a pod's new metadata; never blocks.
func (w *Worker) Update(pod *corev1.Pod) { w.ask(func(d *desire) { d.pod = pod }) }

// Remove ends the pod within a grace (negative: the pod's own); then Run
// returns. A later call may only shorten it. Never blocks.
func (w *Worker) Remove(grace time.Duration) {
	grace = graceOf(w.cfg.Pod, grace)
	w.ask(func(d *desire) { d.remove(grace) })
}

// defaultGrace is Kubernetes' own.
const defaultGrace = 30 * time.Second

func graceOf(pod *corev1.Pod, grace time.Duration) time.Duration {
	switch {
	case grace >= 0:
		return grace
	case pod.DeletionGracePeriodSeconds != nil:
		return time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return defaultGrace
}

// ask changes what is wanted; never blocks.
func (w *Worker) ask(change func(*desire)) {
	w.mu.Lock()
	change(&w.wanted)
	w.mu.Unlock()
	select {
	case w.asked <- struct{}{}:
	default: // a signal waits already
	}
}

// Run lives as long as the pod. When ctx ends it kills what runs and cleans up,
// but does not call that deleted. It returns when all it started has ended.
func (w *Worker) Run(ctx context.Context) {
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
func (w *Worker) finish(ctx context.Context) {
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
	if err := w.cfg.Driver.Teardown(w.pod); err != nil {
		w.log.Warn("pod not cleaned up", "error", err)
	}
	if w.deleting && w.cfg.OnDeleted != nil {
		w.cfg.OnDeleted(w.statusCopy())
	}
}

// tell brings an event to run. Every goroutine that tells is counted in wg,
// and finish listens until all are gone, so it always returns.
func (w *Worker) tell(e event) { w.events <- e }

func (w *Worker) setup(ctx context.Context, after time.Duration) {
	pod := w.pod
	w.wg.Go(func() {
		if !pause(ctx, after) {
			return
		}
		w.tell(event{kind: setUpDone, err: w.cfg.Driver.Setup(ctx, pod)})
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

func (w *Worker) look() {
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
func (w *Worker) end(at time.Time) {
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

func (w *Worker) handle(ctx context.Context, e event) {
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
		w.wg.Go(func() { w.cfg.Driver.Keep(ctx) })
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

func (w *Worker) probeGrace(c *ctr, kind eventKind) time.Duration {
	p := c.spec.LivenessProbe
	if kind == startupBad {
		p = c.spec.StartupProbe
	}
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		return time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
	}
	return graceOf(w.pod, -1)
}

func (w *Worker) exited(c *ctr) {
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
		c.delay = w.cfg.BackOff / 2 // doubled by the next
		c.notBefore = now
		return
	}
	w.postpone(c)
	c.wait = corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
		Message: "back-off " + c.delay.String() + " restarting failed container " + c.spec.Name}
}

// postpone doubles a container's wait.
func (w *Worker) postpone(c *ctr) {
	c.delay = min(maxBackOff, max(w.cfg.BackOff, 2*c.delay))
	c.notBefore = time.Now().Add(c.delay)
}

// restarts says whether a container that ended shall run again.
func (w *Worker) restarts(c *ctr, code int) bool {
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
