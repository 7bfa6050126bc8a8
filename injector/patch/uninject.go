package patch

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
)

// NotInjected is Uninject's reason to do nothing.
const NotInjected Reason = "not_injected"

// Uninject gives the change that takes out of pod exactly what Patch put in.
func Uninject(pod *corev1.Pod) Result {
	if statusOf(pod) == nil {
		return Result{Reason: NotInjected}
	}
	ours := func(name string) bool { return name == initName || name == sidecarName }
	ops := removals("/spec/initContainers", pod.Spec.InitContainers, true, func(c corev1.Container) bool { return ours(c.Name) })
	ops = append(ops, removals("/spec/containers", pod.Spec.Containers, false, func(c corev1.Container) bool { return ours(c.Name) })...)
	ops = append(ops, removals("/spec/volumes", pod.Spec.Volumes, true, func(v corev1.Volume) bool { return v.Name == tokenVolume })...)
	if len(pod.Annotations) == 1 {
		return Result{Patch: append(ops, remove("/metadata/annotations"))}
	}
	return Result{Patch: append(ops, remove("/metadata/annotations/"+escape(v1alpha1.StatusKey)))}
}

// removals take elements out from the back, so that the indexes before them
// stay true; a list that would be left empty goes as a whole if it may.
func removals[T any](path string, list []T, whole bool, out func(T) bool) []Operation {
	var ops []Operation
	for i := len(list) - 1; i >= 0; i-- {
		if out(list[i]) {
			ops = append(ops, remove(fmt.Sprintf("%s/%d", path, i)))
		}
	}
	if whole && len(ops) > 0 && len(ops) == len(list) {
		return []Operation{remove(path)}
	}
	return ops
}
