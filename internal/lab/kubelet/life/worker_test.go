package life

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/internal/lab/kubelet/probe"
)

// stage is a driver whose containers do what a test says, in a bubble's time.
type stage struct {
	mu       sync.Mutex
	begin    time.Time
	log      []string
	script   map[string]act
	procs    map[string]*fakeProc
	setupErr error
	asks     map[string]error // by "container kind"; absent: yes
}

// act is how a container behaves.
type act struct {
	after    time.Duration // ends by itself; 0: never
	code     int
	onTerm   time.Duration // ends so long after SIGTERM; negative: never
	startErr error
}

type fakeProc struct {
	s    *stage
	name string
	done chan struct{}
	once sync.Once
	code int
	act  act
}

func (p *fakeProc) PID() int              { return 1 }
func (p *fakeProc) Done() <-chan struct{} { return p.done }
func (p *fakeProc) Code() int             { return p.code }
func (p *fakeProc) OutOfMemory() bool     { return false }

func (p *fakeProc) end(code int) {
	p.once.Do(func() {
		p.code = code
		p.s.say("end %s %d", p.name, code)
		close(p.done)
	})
}

func (p *fakeProc) Signal(sig os.Signal) error {
	switch sig {
	case syscall.SIGKILL:
		p.end(137)
	case syscall.SIGTERM:
		p.s.say("term %s", p.name)
		if p.act.onTerm == 0 {
			p.end(143)
		} else if p.act.onTerm > 0 {
			time.AfterFunc(p.act.onTerm, func() { p.end(143) })
		}
	}
	return nil
}

func (s *stage) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%v ", time.Since(s.begin))+fmt.Sprintf(format, args...))
}

func (s *stage) Setup(context.Context, *corev1.Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setupErr
}
func (s *stage) Keep(ctx context.Context) { <-ctx.Done() }
func (s *stage) Addresses(*corev1.Pod) ([]corev1.PodIP, []corev1.HostIP) {
	return []corev1.PodIP{{IP: "10.0.0.1"}}, nil
}
func (s *stage) Teardown(*corev1.Pod) error { s.say("teardown"); return nil }

func (s *stage) Start(c *corev1.Container, _ bool) (Process, error) {
	s.mu.Lock()
	a := s.script[c.Name]
	s.mu.Unlock()
	if a.startErr != nil {
		s.say("no start %s", c.Name)
		return nil, a.startErr
	}
	p := &fakeProc{s: s, name: c.Name, done: make(chan struct{}), act: a}
	s.say("start %s", c.Name)
	s.mu.Lock()
	s.procs[c.Name] = p
	s.mu.Unlock()
	if a.after > 0 {
		time.AfterFunc(a.after, func() { p.end(a.code) })
	}
	return p, nil
}

// Ask answers by the TCP host of the action, which tests use as the probe's kind.
func (s *stage) Ask(_ context.Context, c *corev1.Container, a probe.Action) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asks[c.Name+" "+a.TCP.Host]
}

func (s *stage) answer(what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks[what] = err
}

var errNo = errors.New("no")

func aProbe(kind string, period, failures int32) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: period, FailureThreshold: failures,
		ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: kind}}}
}

func aPod(policy corev1.RestartPolicy, inits, apps []corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"},
		Spec: corev1.PodSpec{RestartPolicy: policy, InitContainers: inits, Containers: apps}}
}

func sidecar(name string, startup *corev1.Probe) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	return corev1.Container{Name: name, RestartPolicy: &always, StartupProbe: startup}
}

// playPod runs a pod in a bubble while act changes things.
func playPod(t *testing.T, pod *corev1.Pod, script map[string]act, play func(*stage, *Worker, func() *corev1.Pod)) (out *stage) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{begin: time.Now(), script: script, procs: map[string]*fakeProc{}, asks: map[string]error{}}
		out = s
		var mu sync.Mutex
		var last *corev1.Pod
		w := New(Config{Pod: pod, Driver: s, BackOff: time.Second,
			OnStatus:  func(p *corev1.Pod) { mu.Lock(); last = p; mu.Unlock() },
			OnDeleted: func(p *corev1.Pod) { s.say("deleted %s", p.Status.Phase) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		play(s, w, func() *corev1.Pod {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return last
		})
		synctest.Wait()
		cancel()
		<-done
	})
	return out
}

func wantLog(t *testing.T, s *stage, want ...string) {
	t.Helper()
	if !slices.Equal(s.log, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(s.log, "\n"), strings.Join(want, "\n"))
	}
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return "absent"
}

func TestOrderOfStartAndStop(t *testing.T) {
	pod := aPod(corev1.RestartPolicyAlways,
		[]corev1.Container{{Name: "init1"}, sidecar("side1", aProbe("startup", 1, 30)), {Name: "init2"}, sidecar("side2", nil)},
		[]corev1.Container{{Name: "app1"}, {Name: "app2", Lifecycle: &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}}})
	s := playPod(t, pod, map[string]act{
		"init1": {after: time.Second}, "init2": {after: time.Second}, "app1": {onTerm: 3 * time.Second}, "side1": {onTerm: time.Second},
	}, func(s *stage, w *Worker, last func() *corev1.Pod) {
		s.answer("side1 startup", errNo)
		time.Sleep(3500 * time.Millisecond)
		if p := last(); p.Status.Phase != corev1.PodPending || condition(p, corev1.PodInitialized) != "False" {
			t.Errorf("before the sidecar started: %s", p.Status.Phase)
		}
		s.answer("side1 startup", nil)
		time.Sleep(2500 * time.Millisecond) // 6 s
		p := last()
		if p.Status.Phase != corev1.PodRunning || condition(p, corev1.PodReady) != "True" || condition(p, corev1.PodInitialized) != "True" {
			t.Errorf("running: %s, %v", p.Status.Phase, p.Status.Conditions)
		}
		if st := p.Status.InitContainerStatuses; !st[0].Ready || st[0].State.Terminated == nil || st[1].State.Running == nil {
			t.Errorf("init containers: %+v", st)
		}
		w.Remove(10 * time.Second)
		time.Sleep(time.Minute)
	})
	wantLog(t, s, "0s start init1", "1s end init1 0", "1s start side1",
		"3.6s start init2", "4.6s end init2 0", "4.6s start side2", "4.6s start app1", "4.6s start app2",
		"6s term app1", "7s term app2", "7s end app2 143", "9s end app1 143",
		"9s term side2", "9s end side2 143", "9s term side1", "10s end side1 143", "10s teardown", "10s deleted Failed")
}

func TestStatusWhileEnding(t *testing.T) {
	app := corev1.Container{Name: "app", ReadinessProbe: aProbe("ready", 1, 1)}
	pod := aPod(corev1.RestartPolicyAlways, []corev1.Container{sidecar("side", nil)}, []corev1.Container{app})
	s := playPod(t, pod, map[string]act{"app": {onTerm: -1}, "side": {onTerm: -1}}, func(s *stage, w *Worker, last func() *corev1.Pod) {
		time.Sleep(1500 * time.Millisecond)
		w.Remove(5 * time.Second)
		time.Sleep(time.Second)
		if p := last(); condition(p, corev1.PodReady) != "True" {
			t.Error("an ending pod whose probes pass must stay Ready: it still serves")
		}
		s.answer("app ready", errNo)
		time.Sleep(time.Second)
		if p := last(); condition(p, corev1.PodReady) != "False" {
			t.Error("Ready does not follow the probe while the pod ends")
		}
		w.Remove(time.Second) // more haste
		time.Sleep(time.Minute)
	})
	wantLog(t, s, "0s start side", "0s start app", "1.5s term app", "4.5s end app 137",
		"4.5s term side", "6.5s end side 137", "6.5s teardown", "6.5s deleted Failed")
}

func TestBackOff(t *testing.T) {
	pod := aPod(corev1.RestartPolicyAlways, nil, []corev1.Container{{Name: "app"}})
	s := playPod(t, pod, map[string]act{"app": {after: 100 * time.Millisecond, code: 3}}, func(s *stage, w *Worker, last func() *corev1.Pod) {
		time.Sleep(5 * time.Second)
		cs := last().Status.ContainerStatuses[0]
		if cs.State.Waiting == nil || cs.State.Waiting.Reason != "CrashLoopBackOff" || cs.RestartCount != 3 ||
			cs.LastTerminationState.Terminated == nil || cs.LastTerminationState.Terminated.ExitCode != 3 {
			t.Errorf("crashing: %+v", cs)
		}
		time.Sleep(time.Hour)
		s.mu.Lock()
		var starts []string
		for _, l := range s.log {
			if strings.HasSuffix(l, "start app") {
				starts = append(starts, strings.Fields(l)[0])
			}
		}
		want := []string{"0s", "100ms", "1.2s", "3.3s", "7.4s", "15.5s", "31.6s", "1m3.7s", "2m7.8s", "4m15.9s", "8m32s", "13m32.1s", "18m32.2s"}
		if len(starts) < len(want) || !slices.Equal(starts[:len(want)], want) {
			t.Errorf("started at %v, want %v", starts, want)
		}
		s.script["app"] = act{after: 11 * time.Minute} // a calm run forgets
		s.log = nil
		s.mu.Unlock()
		time.Sleep(time.Hour)
	})
	if len(s.log) < 4 {
		t.Fatalf("log: %v", s.log)
	}
	end, again := strings.Fields(s.log[1])[0], strings.Fields(s.log[2])[0]
	if end != again {
		t.Errorf("after a calm run it ended at %s and started at %s", end, again)
	}
}

func TestProbesGateAndRestart(t *testing.T) {
	app := corev1.Container{Name: "app", StartupProbe: aProbe("startup", 1, 3), ReadinessProbe: aProbe("ready", 1, 2), LivenessProbe: aProbe("live", 1, 2)}
	pod := aPod(corev1.RestartPolicyAlways, nil, []corev1.Container{app})
	grace := int64(4)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	s := playPod(t, pod, map[string]act{"app": {onTerm: time.Second}}, func(s *stage, w *Worker, last func() *corev1.Pod) {
		s.answer("app startup", errNo)
		s.answer("app live", errNo) // must not matter yet
		time.Sleep(3500 * time.Millisecond)
		// The startup probe failed at 2 s; the container ended at 3 s and was started again.
		cs := last().Status.ContainerStatuses[0]
		if cs.RestartCount != 1 || *cs.Started || cs.Ready {
			t.Errorf("after failed startup: %+v", cs)
		}
		s.answer("app live", nil)
		s.answer("app ready", errNo)
		s.answer("app startup", nil)
		time.Sleep(time.Second)
		if cs := last().Status.ContainerStatuses[0]; !*cs.Started || cs.Ready {
			t.Errorf("started, not ready: %+v", cs)
		}
		s.answer("app ready", nil)
		time.Sleep(time.Second)
		if !last().Status.ContainerStatuses[0].Ready {
			t.Error("not ready though the probe passes")
		}
		s.answer("app ready", errNo)
		time.Sleep(3 * time.Second)
		if cs := last().Status.ContainerStatuses[0]; cs.Ready || cs.RestartCount != 1 {
			t.Errorf("readiness lost: %+v", cs)
		}
		s.answer("app live", errNo)
		time.Sleep(3200 * time.Millisecond) // two failures, a second to end, back-off of one
		s.answer("app live", nil)
		time.Sleep(time.Second)
		if cs := last().Status.ContainerStatuses[0]; cs.RestartCount != 2 {
			t.Errorf("liveness lost: %+v", cs)
		}
	})
	if !strings.Contains(strings.Join(s.log, "\n"), "term app") {
		t.Errorf("log: %v", s.log)
	}
}

func TestJobsEndWithTheirSidecars(t *testing.T) {
	for _, tc := range []struct {
		policy corev1.RestartPolicy
		code   int
		want   corev1.PodPhase
	}{
		{corev1.RestartPolicyNever, 0, corev1.PodSucceeded},
		{corev1.RestartPolicyNever, 1, corev1.PodFailed},
		{corev1.RestartPolicyOnFailure, 0, corev1.PodSucceeded},
	} {
		pod := aPod(tc.policy, []corev1.Container{sidecar("side", nil)}, []corev1.Container{{Name: "job"}})
		s := playPod(t, pod, map[string]act{"job": {after: time.Second, code: tc.code}}, func(s *stage, w *Worker, last func() *corev1.Pod) {
			time.Sleep(2 * time.Second)
			p := last()
			if p.Status.Phase != tc.want || condition(p, corev1.PodReady) != "False" {
				t.Errorf("%s, exit code %d: %s", tc.policy, tc.code, p.Status.Phase)
			}
			w.Remove(time.Second)
			time.Sleep(time.Second)
		})
		wantLog(t, s, "0s start side", "0s start job", fmt.Sprintf("1s end job %d", tc.code), "1s term side", "1s end side 143",
			"2s teardown", "2s deleted "+string(tc.want))
	}
}

func TestInitFailures(t *testing.T) {
	pod := aPod(corev1.RestartPolicyNever, []corev1.Container{sidecar("side", nil), {Name: "init"}}, []corev1.Container{{Name: "app"}})
	s := playPod(t, pod, map[string]act{"init": {after: time.Second, code: 2}}, func(_ *stage, _ *Worker, last func() *corev1.Pod) {
		time.Sleep(time.Minute)
		if p := last(); p.Status.Phase != corev1.PodFailed {
			t.Errorf("phase %s", p.Status.Phase)
		}
	})
	wantLog(t, s, "0s start side", "0s start init", "1s end init 2", "1s term side", "1s end side 143", "1m0s teardown")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	s = playPod(t, pod, map[string]act{"init": {after: time.Second, code: 2}}, func(s *stage, _ *Worker, last func() *corev1.Pod) {
		time.Sleep(2500 * time.Millisecond)
		s.mu.Lock()
		s.script["init"] = act{after: time.Second}
		s.mu.Unlock()
		time.Sleep(time.Minute)
		if p := last(); p.Status.Phase != corev1.PodRunning {
			t.Errorf("phase %s", p.Status.Phase)
		}
	})
	if got := strings.Join(s.log, "\n"); !strings.Contains(got, "4s end init 0\n4s start app") {
		t.Errorf("log:\n%s", got)
	}
}

func TestSidecarIsRestartedAlone(t *testing.T) {
	pod := aPod(corev1.RestartPolicyAlways, []corev1.Container{sidecar("side", aProbe("startup", 1, 9))}, []corev1.Container{{Name: "app"}})
	s := playPod(t, pod, nil, func(s *stage, w *Worker, last func() *corev1.Pod) {
		time.Sleep(time.Second)
		s.answer("side startup", errNo)
		s.procs["side"].end(1)
		time.Sleep(time.Second)
		p := last()
		if p.Status.Phase != corev1.PodRunning || condition(p, corev1.PodReady) != "False" || condition(p, corev1.PodInitialized) != "True" {
			t.Errorf("while the sidecar starts again: %s %v", p.Status.Phase, p.Status.Conditions)
		}
		if p.Status.ContainerStatuses[0].RestartCount != 0 || p.Status.InitContainerStatuses[0].RestartCount != 1 {
			t.Error("the wrong container was restarted")
		}
	})
	wantLog(t, s, "0s start side", "0s start app", "1s end side 1", "1s start side", "2s end side 137", "2s end app 137", "2s teardown")
}

func TestWhatDoesNotStart(t *testing.T) {
	pod := aPod(corev1.RestartPolicyAlways, nil, []corev1.Container{{Name: "app"}})
	s := playPod(t, pod, map[string]act{"app": {startErr: errNo}}, func(s *stage, w *Worker, last func() *corev1.Pod) {
		s.mu.Lock()
		s.setupErr = errors.New("no token yet")
		s.mu.Unlock()
		time.Sleep(500 * time.Millisecond)
		if p := last(); p.Status.Phase != corev1.PodPending || p.Status.ContainerStatuses[0].State.Waiting.Reason != "ContainerCreating" {
			t.Errorf("before set-up: %+v", p.Status)
		}
		s.mu.Lock()
		s.setupErr = nil
		s.mu.Unlock()
		time.Sleep(3 * time.Second)
		cs := last().Status.ContainerStatuses[0]
		if cs.State.Waiting == nil || cs.State.Waiting.Reason != "CreateContainerError" || cs.State.Waiting.Message != "no" || cs.RestartCount != 0 {
			t.Errorf("cannot start: %+v", cs)
		}
		w.Remove(time.Second)
		time.Sleep(time.Second)
	})
	if last := s.log[len(s.log)-1]; !strings.HasSuffix(last, "deleted Failed") {
		t.Errorf("log: %v", s.log)
	}
}

func TestPreStopComesBeforeSIGTERM(t *testing.T) {
	app := corev1.Container{Name: "app", Lifecycle: &corev1.Lifecycle{
		PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}}
	s := playPod(t, aPod(corev1.RestartPolicyAlways, nil, []corev1.Container{app}), nil, func(s *stage, w *Worker, last func() *corev1.Pod) {
		time.Sleep(time.Second)
		w.Remove(10 * time.Second)
		time.Sleep(time.Minute)
	})
	wantLog(t, s, "0s start app", "4s term app", "4s end app 143", "4s teardown", "4s deleted Failed")
}
