package manifest

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// setDefaults fills in what an API server would and what the lab reads.
func setDefaults(obj metav1.Object) {
	switch o := obj.(type) {
	case *corev1.Pod:
		DefaultPod(o)
	case *corev1.Service:
		defaultService(o)
	case *appsv1.Deployment:
		if o.Spec.Replicas == nil {
			o.Spec.Replicas = new(int32(1))
		}
		if o.Spec.Selector == nil {
			o.Spec.Selector = &metav1.LabelSelector{MatchLabels: o.Spec.Template.Labels}
		}
		defaultTemplate(&o.Spec.Template)
	case *batchv1.Job:
		if o.Spec.Parallelism == nil {
			o.Spec.Parallelism = new(int32(1))
		}
		if o.Spec.Completions == nil {
			o.Spec.Completions = new(int32(1))
		}
		if o.Spec.BackoffLimit == nil {
			o.Spec.BackoffLimit = new(int32(6))
		}
		defaultTemplate(&o.Spec.Template)
	}
}

func defaultTemplate(t *corev1.PodTemplateSpec) {
	pod := corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	DefaultPod(&pod)
	t.Spec = pod.Spec
}

// DefaultPod fills in a pod's defaults; once more after a webhook added to it.
func DefaultPod(p *corev1.Pod) {
	s := &p.Spec
	setIfZero(&s.RestartPolicy, corev1.RestartPolicyAlways)
	setIfZero(&s.DNSPolicy, corev1.DNSClusterFirst)
	setIfZero(&s.ServiceAccountName, "default")
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = new(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	for i := range s.Volumes {
		if s.Volumes[i].VolumeSource == (corev1.VolumeSource{}) {
			s.Volumes[i].EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
	}
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i])
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i])
	}
}

func defaultContainer(c *corev1.Container) {
	for i := range c.Ports {
		setIfZero(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p == nil {
			continue
		}
		setIfZero(&p.TimeoutSeconds, 1)
		setIfZero(&p.PeriodSeconds, 10)
		setIfZero(&p.SuccessThreshold, 1)
		setIfZero(&p.FailureThreshold, 3)
		if p.HTTPGet != nil {
			setIfZero(&p.HTTPGet.Path, "/")
			setIfZero(&p.HTTPGet.Scheme, corev1.URISchemeHTTP)
		}
	}
}

func defaultService(s *corev1.Service) {
	setIfZero(&s.Spec.Type, corev1.ServiceTypeClusterIP)
	setIfZero(&s.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		setIfZero(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == (intstr.IntOrString{}) {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
}

func setIfZero[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}
