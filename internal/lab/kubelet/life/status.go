package life

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// publish reports the pod's status if it changed.
func (w *Worker) publish() {
	next := w.currentStatus(time.Now())
	if equality.Semantic.DeepEqual(w.status, next) {
		return
	}
	w.status = next
	if w.cfg.OnStatus != nil {
		w.cfg.OnStatus(w.statusCopy())
	}
}

func (w *Worker) statusCopy() *corev1.Pod {
	out := w.pod.DeepCopy()
	w.status.DeepCopyInto(&out.Status)
	return out
}

func (w *Worker) currentStatus(now time.Time) corev1.PodStatus {
	start := metav1.NewTime(w.started)
	st := corev1.PodStatus{StartTime: &start, QOSClass: w.pod.Status.QOSClass}
	st.PodIPs, st.HostIPs = w.cfg.Driver.Addresses(w.pod)
	if len(st.PodIPs) > 0 {
		st.PodIP = st.PodIPs[0].IP
	}
	if len(st.HostIPs) > 0 {
		st.HostIP = st.HostIPs[0].IP
	}
	for _, c := range w.ctrs {
		cs := c.status()
		if c.role == roleApp {
			st.ContainerStatuses = append(st.ContainerStatuses, cs)
		} else {
			st.InitContainerStatuses = append(st.InitContainerStatuses, cs)
		}
	}
	st.Phase = w.phase()
	if w.setUpErr != nil {
		st.Reason, st.Message = "FailedSetUp", w.setUpErr.Error()
	}
	w.conditions(&st, now)
	return st
}

// phase follows the pod lifecycle of Kubernetes' documentation.
func (w *Worker) phase() corev1.PodPhase {
	apps, failed, finished, begun := 0, false, 0, 0
	for _, c := range w.ctrs {
		ended := c.finished || !w.deadline.IsZero() && c.proc == nil && c.runs > 0
		switch {
		case c.role == roleApp:
			apps++
			if c.runs > 0 {
				begun++
			}
			if ended {
				finished++
				failed = failed || c.last.ExitCode != 0
			}
		case c.role == roleInit && c.finished && c.last.ExitCode != 0:
			return corev1.PodFailed
		}
	}
	stopped := w.deleting && w.nothingRuns()
	switch {
	case finished == apps && failed, stopped && begun < apps:
		return corev1.PodFailed
	case finished == apps:
		return corev1.PodSucceeded
	case begun == apps:
		return corev1.PodRunning
	}
	return corev1.PodPending
}

func (w *Worker) nothingRuns() bool {
	for _, c := range w.ctrs {
		if c.proc != nil {
			return false
		}
	}
	return true
}

func (w *Worker) conditions(st *corev1.PodStatus, now time.Time) {
	initialised, ready := w.setUp, w.setUp
	notReady := ""
	for _, c := range w.ctrs {
		if c.role != roleApp && !c.passed() {
			initialised = false
		}
		if c.role != roleInit && !c.ready {
			ready = false
			notReady += " " + c.spec.Name
		}
	}
	ended := st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed
	set := func(kind corev1.PodConditionType, ok bool, reason, message string) {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}
		if !ok {
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, message
		}
		for _, old := range w.status.Conditions {
			if old.Type == kind && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		st.Conditions = append(st.Conditions, c)
	}
	reason, message := "ContainersNotReady", "containers with unready status:"+notReady
	if ended {
		reason, message = "PodCompleted", ""
	}
	set(corev1.PodScheduled, true, "", "")
	set(corev1.PodInitialized, initialised || ended && st.Phase == corev1.PodSucceeded, "ContainersNotInitialized", "")
	set(corev1.ContainersReady, ready && initialised, reason, message)
	set(corev1.PodReady, ready && initialised, reason, message)
}

func (c *ctr) status() corev1.ContainerStatus {
	started := c.started
	st := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, Ready: c.ready, Started: &started,
		RestartCount: int32(max(0, c.runs-1)),
	}
	switch {
	case c.proc != nil:
		st.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.startedAt)}
		st.ContainerID = fmt.Sprintf("heddle-lab://%d", c.proc.PID())
		if c.last != nil {
			st.LastTerminationState.Terminated = c.last.DeepCopy()
		}
	case c.finished && c.last != nil, c.last != nil && c.notBeforeNow():
		st.State.Terminated = c.last.DeepCopy()
		if c.before != nil {
			st.LastTerminationState.Terminated = c.before.DeepCopy()
		}
		st.Ready = c.role == roleInit && c.finished && c.last.ExitCode == 0
	default:
		st.State.Waiting = c.wait.DeepCopy()
		if c.last != nil {
			st.LastTerminationState.Terminated = c.last.DeepCopy()
		}
	}
	return st
}

// notBeforeNow: ended and about to start again without a wait.
func (c *ctr) notBeforeNow() bool {
	return c.wait.Reason != "CrashLoopBackOff" && c.wait.Reason != "CreateContainerError"
}

func terminated(c *ctr, code int, now time.Time) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: "Error",
		StartedAt: metav1.NewTime(c.startedAt), FinishedAt: metav1.NewTime(now),
		ContainerID: fmt.Sprintf("heddle-lab://%d", c.proc.PID()),
	}
	switch {
	case code == 0:
		t.Reason = "Completed"
	case c.proc.OutOfMemory():
		t.Reason = "OOMKilled"
	}
	if code > 128 && code < 160 {
		t.Signal = int32(code - 128)
	}
	return t
}
