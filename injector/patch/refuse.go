package patch

import (
	"fmt"
	"iter"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/internal/redirect"
)

// longRunning yields the containers that live as long as the pod, with where
// they stand: the ordinary ones and native sidecars (init containers that
// always restart, KEP-753). Whoever looks for ports, probes or names of what
// runs goes through here, never through spec.containers alone.
func longRunning(spec *corev1.PodSpec) iter.Seq2[string, *corev1.Container] {
	return func(yield func(string, *corev1.Container) bool) {
		for field, c := range allContainers(spec) {
			if strings.HasPrefix(field, "spec.initContainers") && (c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways) {
				continue
			}
			if !yield(field, c) {
				return
			}
		}
	}
}

// allContainers yields init and ordinary containers in the order they start.
func allContainers(spec *corev1.PodSpec) iter.Seq2[string, *corev1.Container] {
	return func(yield func(string, *corev1.Container) bool) {
		for i := range spec.InitContainers {
			if !yield(fmt.Sprintf("spec.initContainers[%d]", i), &spec.InitContainers[i]) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(fmt.Sprintf("spec.containers[%d]", i), &spec.Containers[i]) {
				return
			}
		}
	}
}

// refused says why a pod that asks for a sidecar cannot have one. The user
// comes last: a pod that stays outside the mesh for another reason may run
// under any.
func refused(pod *corev1.Pod, who subject) (Reason, error) {
	for _, check := range []func(*corev1.Pod, subject) (Reason, error){
		checkPlace, checkNames, checkPorts, checkUser,
	} {
		if reason, err := check(pod, who); reason != Injected {
			return reason, err
		}
	}
	return Injected, nil
}

// mirrorKey marks the API's picture of a static pod (kubelet's
// kubernetes.io/config.mirror); it cannot be changed.
const mirrorKey = "kubernetes.io/config.mirror"

func checkPlace(pod *corev1.Pod, who subject) (Reason, error) {
	spec := &pod.Spec
	if _, mirror := pod.Annotations[mirrorKey]; mirror {
		return StaticPod, who.err("metadata.annotations", "a static pod is read from the node's own file (put the sidecar there with heddle inject)")
	}
	if spec.OS != nil && spec.OS.Name == corev1.Windows || spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows) {
		return Windows, who.err("spec.os.name", "the redirect needs Linux (set the label heddle.dev/inject: disabled)")
	}
	if spec.HostNetwork {
		return HostNetwork, who.err("spec.hostNetwork", "the redirect would hit every program of the node (remove hostNetwork, or set the label heddle.dev/inject: disabled)")
	}
	return Injected, nil
}

func checkNames(pod *corev1.Pod, who subject) (Reason, error) {
	for field, c := range allContainers(&pod.Spec) {
		if c.Name == initName || c.Name == sidecarName {
			return NameClash, who.err(field+".name", "%q is the injector's name (rename the container)", c.Name)
		}
	}
	for i, c := range pod.Spec.EphemeralContainers {
		if c.Name == initName || c.Name == sidecarName {
			return NameClash, who.err(fmt.Sprintf("spec.ephemeralContainers[%d].name", i), "%q is the injector's name (rename the container)", c.Name)
		}
	}
	for i, v := range pod.Spec.Volumes {
		if v.Name == tokenVolume {
			return NameClash, who.err(fmt.Sprintf("spec.volumes[%d].name", i), "%q is the injector's name (rename the volume)", v.Name)
		}
	}
	return Injected, nil
}

// checkPorts looks at containerPort only: a hostPort is the node's, and the
// sidecar takes none there.
func checkPorts(pod *corev1.Pod, who subject) (Reason, error) {
	for field, c := range longRunning(&pod.Spec) {
		for i, p := range c.Ports {
			if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
				continue
			}
			switch p.ContainerPort {
			case redirect.OutboundPort, redirect.InboundPort, redirect.ProbePort, redirect.AdminPort:
				return PortClash, who.err(fmt.Sprintf("%s.ports[%d].containerPort", field, i), "%d belongs to the sidecar (let the application listen on another port)", p.ContainerPort)
			}
		}
	}
	return Injected, nil
}

// checkUser refuses programs that the redirect would take for the sidecar. A
// user that only the image names is not seen here; docs/injection.md says so.
func checkUser(pod *corev1.Pod, who subject) (Reason, error) {
	podUser := int64(-1)
	if sc := pod.Spec.SecurityContext; sc != nil && sc.RunAsUser != nil {
		podUser = *sc.RunAsUser
	}
	for field, c := range allContainers(&pod.Spec) {
		user, from := podUser, "spec.securityContext.runAsUser"
		if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
			user, from = *sc.RunAsUser, field+".securityContext.runAsUser"
		}
		if user == redirect.SidecarUID {
			return SidecarUID, who.err(from, "container %q would run as user %d, which is the sidecar's: its traffic would pass the mesh by (run it as another user, or set the label heddle.dev/inject: disabled)", c.Name, user)
		}
	}
	return Injected, nil
}
