package patch

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// What a pod calls its service by itself, in this order; the owner's name
// stands behind them. The annotation is OpenTelemetry's.
const (
	serviceAnnotation = "resource.opentelemetry.io/service.name"
	nameLabel         = "app.kubernetes.io/name"
	appLabel          = "app"
	versionLabel      = "app.kubernetes.io/version"
	hashLabel         = "pod-template-hash"
)

// serviceEnv tells the sidecar what traces are to call the application. What
// is not known here, as in a template without labels, the sidecar makes of the
// pod's name.
func serviceEnv(pod *corev1.Pod) []corev1.EnvVar {
	var env []corev1.EnvVar
	for _, name := range []string{pod.Annotations[serviceAnnotation], pod.Labels[nameLabel], pod.Labels[appLabel], ownerName(pod)} {
		// The kubelet would expand $(...), and labels cannot hold it.
		if name != "" && !strings.Contains(name, "$") {
			env = append(env, corev1.EnvVar{Name: "HEDDLE_SERVICE_NAME", Value: name})
			break
		}
	}
	if v := pod.Labels[versionLabel]; v != "" {
		env = append(env, corev1.EnvVar{Name: "HEDDLE_SERVICE_VERSION", Value: v})
	}
	return env
}

// ownerName is the name of what made the pod: of a ReplicaSet that a
// Deployment made, the Deployment's.
func ownerName(pod *corev1.Pod) string {
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			if hash := pod.Labels[hashLabel]; o.Kind == "ReplicaSet" && hash != "" {
				return strings.TrimSuffix(o.Name, "-"+hash)
			}
			if o.Kind == "Job" || o.Kind == "Node" {
				return "" // a CronJob's has a date in it, a static pod's is the machine's
			}
			return o.Name
		}
	}
	return ""
}
