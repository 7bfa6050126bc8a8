package patch

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

// The names of what is added.
const (
	initName    = "heddle-init"
	sidecarName = "heddle-sidecar"
	tokenVolume = "heddle-token"
)

// The projected token that the sidecar proves its pod with.
const (
	tokenDir      = "/var/run/secrets/heddle.dev"
	tokenPath     = "token"
	tokenAudience = "heddle.dev/controlplane"
	tokenSeconds  = 3600 // the kubelet renews it at 80 % of this
)

// How long a sidecar may take. The start includes the control plane's being
// away for a while (it restarts, it is upgraded); after that the kubelet tries
// afresh, so that nothing hangs for ever.
const (
	startupPeriod   = 1   // seconds; each is added to the pod's start at worst
	startupFailures = 120 // two minutes
	readyPeriod     = 2   // seconds; a lost capture is noticed within 3 × 2 s
	readyFailures   = 3
	probeTimeout    = 2 // seconds: the answer is a flag in memory
)

// defaultRequests are what a sidecar asks for: an idle one stays below both.
func defaultRequests() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("10m"),
		corev1.ResourceMemory: resource.MustParse("32Mi"),
	}
}

// status is the value of the annotation heddle.dev/status.
type status struct {
	Version    string   `json:"version"`
	Native     bool     `json:"native"`
	Containers []string `json:"containers"`
	// SkipInbound are the ports that the redirect leaves alone on the way in,
	// whoever asked for that: callers must speak plaintext to them. It is there
	// even if empty, since the pod's own annotations may be edited later.
	SkipInbound string `json:"skipInbound"`
}

// statusOf gives the pod's status, nil if it was not injected. The annotation
// alone proves nothing: people copy annotations.
func statusOf(pod *corev1.Pod) *status {
	var s status
	if json.Unmarshal([]byte(pod.Annotations[v1alpha1.StatusKey]), &s) != nil {
		return nil
	}
	for _, c := range allContainers(&pod.Spec) {
		if c.Name == sidecarName {
			return &s
		}
	}
	return nil
}

// additions are the operations. Native: heddle-init, then heddle-sidecar, then
// the pod's own init containers, so that these have network and identity.
// Classic: the sidecar starts after all init containers, so the redirect comes
// after theirs; otherwise they would be redirected to nobody.
func additions(pod *corev1.Pod, cfg Config, s settings) []Operation {
	inits := []corev1.Container{initContainer(cfg, s)}
	sidecar := sidecarContainer(cfg, s)
	sidecar.Env = append(sidecar.Env, serviceEnv(pod)...)
	var ops []Operation
	if !s.classic {
		always := corev1.ContainerRestartPolicyAlways
		sidecar.RestartPolicy = &always
		inits = append(inits, sidecar)
	}
	switch {
	case len(pod.Spec.InitContainers) == 0:
		ops = append(ops, add("/spec/initContainers", inits))
	case s.classic:
		ops = append(ops, add("/spec/initContainers/-", inits[0]))
	default:
		ops = append(ops, add("/spec/initContainers/0", inits[0]), add("/spec/initContainers/1", inits[1]))
	}
	switch {
	case s.classic && len(pod.Spec.Containers) == 0:
		ops = append(ops, add("/spec/containers", []corev1.Container{sidecar}))
	case s.classic:
		ops = append(ops, add("/spec/containers/0", sidecar))
	}
	if len(pod.Spec.Volumes) == 0 {
		ops = append(ops, add("/spec/volumes", []corev1.Volume{tokenSource()}))
	} else {
		ops = append(ops, add("/spec/volumes/-", tokenSource()))
	}
	note := statusText(status{
		Version: cfg.Version, Native: !s.classic, Containers: []string{initName, sidecarName},
		SkipInbound: joined(s.skipInbound, redirect.PortRange.String),
	})
	if len(pod.Annotations) == 0 {
		return append(ops, add("/metadata/annotations", map[string]string{v1alpha1.StatusKey: note}))
	}
	return append(ops, add("/metadata/annotations/"+escape(v1alpha1.StatusKey), note))
}

func statusText(s status) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic("marshal status: " + err.Error()) // strings and a bool always marshal
	}
	return string(b)
}

// initContainer writes the redirect, then ends. It needs the pod's network and
// nothing else; it runs as root because the kernel asks for it.
func initContainer(cfg Config, s settings) corev1.Container {
	args := []string{"init", fmt.Sprintf("--sidecar-uid=%d", redirect.SidecarUID)}
	args = arg(args, "--skip-uids", s.skipUIDs, func(u uint32) string { return fmt.Sprint(u) })
	args = arg(args, "--skip-outbound-ports", s.skipOutbound, redirect.PortRange.String)
	args = arg(args, "--skip-inbound-ports", s.skipInbound, redirect.PortRange.String)
	args = arg(args, "--skip-outbound-cidrs", s.skipCIDRs, netip.Prefix.String)
	return corev1.Container{
		Name:      initName,
		Image:     cfg.SidecarImage,
		Command:   []string{cfg.SidecarCommand},
		Args:      append(args, "--backend="+s.backend),
		Resources: *s.resources.DeepCopy(), // a pod's request is the larger of init and sum: this adds nothing
		SecurityContext: &corev1.SecurityContext{
			RunAsUser:                new(int64(0)),
			RunAsGroup:               new(int64(0)),
			RunAsNonRoot:             new(false), // a pod-wide true would stop it
			AllowPrivilegeEscalation: new(false),
			Capabilities: &corev1.Capabilities{
				Drop: []corev1.Capability{"ALL"},
				Add:  []corev1.Capability{"NET_ADMIN", "NET_RAW"},
			},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, // kubectl describe says why
	}
}

// sidecarContainer is the sidecar, without any capability.
func sidecarContainer(cfg Config, s settings) corev1.Container {
	return corev1.Container{
		Name:    sidecarName,
		Image:   cfg.SidecarImage,
		Command: []string{cfg.SidecarCommand},
		Args: []string{
			"run",
			"--control-plane=" + cfg.ControlPlane,
			"--trust-domain=" + cfg.TrustDomain,
			"--token=" + tokenDir + "/" + tokenPath,
			"--log-level=" + s.logLevel,
		},
		Env: []corev1.EnvVar{
			{Name: "HEDDLE_TRUST_BUNDLE", Value: cfg.TrustBundle},
			fieldEnv("POD_NAME", "metadata.name"),
			fieldEnv("POD_NAMESPACE", "metadata.namespace"),
			fieldEnv("POD_UID", "metadata.uid"),
			fieldEnv("POD_IPS", "status.podIPs"),
			fieldEnv("NODE_NAME", "spec.nodeName"),
			fieldEnv("SERVICE_ACCOUNT", "spec.serviceAccountName"),
		},
		Resources:      *s.resources.DeepCopy(),
		VolumeMounts:   []corev1.VolumeMount{{Name: tokenVolume, MountPath: tokenDir, ReadOnly: true}},
		StartupProbe:   ready(startupPeriod, startupFailures),
		ReadinessProbe: ready(readyPeriod, readyFailures),
		SecurityContext: &corev1.SecurityContext{
			RunAsUser:                new(int64(redirect.SidecarUID)),
			RunAsGroup:               new(int64(redirect.SidecarUID)),
			RunAsNonRoot:             new(true),
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

func ready(period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: "/ready", Port: intstr.FromInt32(redirect.AdminPort),
		}},
		PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: probeTimeout,
	}
}

func tokenSource() corev1.Volume {
	return corev1.Volume{Name: tokenVolume, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: tokenAudience, ExpirationSeconds: new(int64(tokenSeconds)), Path: tokenPath,
			},
		}}},
	}}
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// arg adds flag=a,b,c if there is anything to list.
func arg[T any](args []string, flag string, values []T, text func(T) string) []string {
	if len(values) == 0 {
		return args
	}
	return append(args, flag+"="+joined(values, text))
}

func joined[T any](values []T, text func(T) string) string {
	parts := make([]string, 0, len(values))
	for _, v := range values {
		parts = append(parts, text(v))
	}
	return strings.Join(parts, ",")
}
