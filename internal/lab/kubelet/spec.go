package kubelet

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-mesh/heddle/internal/lab/kubelet/container"
)

// spec makes of a pod's container what package container starts.
func (h *host) spec(c *corev1.Container) (container.Spec, error) {
	if len(c.Command) == 0 {
		return container.Spec{}, fmt.Errorf("command of container %s is empty: the lab has no images (image %q is ignored); set command to a program of this machine", c.Name, c.Image)
	}
	env, err := h.env(c)
	if err != nil {
		return container.Spec{}, err
	}
	s := container.Spec{NetNS: h.netns, Root: filepath.Join(h.dir, "root"), Hostname: h.hostname()}
	for _, a := range slices.Concat(c.Command, c.Args) {
		s.Argv = append(s.Argv, expand(a, env.values))
	}
	s.Env, s.Dir = env.list(), c.WorkingDir
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		s.Mounts = append(s.Mounts, container.Mount{Source: filepath.Join(h.dir, "etc", name), Target: "/etc/" + name})
	}
	for _, m := range c.VolumeMounts {
		src, err := h.vols.Path(m.Name)
		if err != nil {
			return container.Spec{}, fmt.Errorf("volumeMounts of container %s: %w", c.Name, err)
		}
		if m.SubPath != "" {
			if !filepath.IsLocal(m.SubPath) {
				return container.Spec{}, fmt.Errorf("volumeMounts of container %s: subPath %q leaves the volume", c.Name, m.SubPath)
			}
			src = filepath.Join(src, m.SubPath)
		}
		s.Mounts = append(s.Mounts, container.Mount{Source: src, Target: m.MountPath, ReadOnly: m.ReadOnly})
	}
	return s, h.secure(c, &s)
}

// secure applies the security contexts, the container's before the pod's.
func (h *host) secure(c *corev1.Container, s *container.Spec) error {
	own, pod := c.SecurityContext, h.pod.Spec.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	first := func(a, b *int64) uint32 {
		for _, v := range []*int64{a, b} {
			if v != nil {
				return uint32(*v)
			}
		}
		return 0 // without an image there is no other default
	}
	s.UID = first(own.RunAsUser, pod.RunAsUser)
	s.GID = first(own.RunAsGroup, pod.RunAsGroup)
	for _, g := range pod.SupplementalGroups {
		s.Groups = append(s.Groups, uint32(g))
	}
	if pod.FSGroup != nil {
		s.Groups = append(s.Groups, uint32(*pod.FSGroup))
	}
	nonRoot := pod.RunAsNonRoot
	if own.RunAsNonRoot != nil {
		nonRoot = own.RunAsNonRoot
	}
	if nonRoot != nil && *nonRoot && s.UID == 0 {
		return fmt.Errorf("container %s has runAsNonRoot but runs as root: set securityContext.runAsUser", c.Name)
	}
	var add, drop []string
	if own.Capabilities != nil {
		for _, a := range own.Capabilities.Add {
			add = append(add, string(a))
		}
		for _, d := range own.Capabilities.Drop {
			drop = append(drop, string(d))
		}
	}
	s.Privileged = own.Privileged != nil && *own.Privileged
	caps, err := container.Capabilities(s.Privileged, add, drop)
	if err != nil {
		return fmt.Errorf("securityContext.capabilities of container %s: %w", c.Name, err)
	}
	s.Caps = caps
	s.NoNewPrivs = own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation
	s.ReadOnlyRoot = own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem
	return nil
}

// environment keeps the order in which variables were first named.
type environment struct {
	order  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.order = append(e.order, name)
	}
	e.values[name] = value
}

func (e *environment) list() []string {
	out := make([]string, len(e.order))
	for i, n := range e.order {
		out[i] = n + "=" + e.values[n]
	}
	return out
}

// defaultPath is what most images set.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (h *host) env(c *corev1.Container) (*environment, error) {
	e := &environment{values: map[string]string{}}
	e.set("PATH", defaultPath)
	e.set("HOSTNAME", h.hostname())
	e.set("HOME", "/")
	for i, from := range c.EnvFrom {
		if err := h.envFrom(e, from); err != nil {
			return nil, fmt.Errorf("envFrom[%d] of container %s: %w", i, c.Name, err)
		}
	}
	for _, v := range c.Env {
		value := expand(v.Value, e.values)
		if v.ValueFrom != nil {
			var ok bool
			var err error
			if value, ok, err = h.valueFrom(c, v.ValueFrom); err != nil {
				return nil, fmt.Errorf("env %s of container %s: %w", v.Name, c.Name, err)
			}
			if !ok {
				continue
			}
		}
		e.set(v.Name, value)
	}
	return e, nil
}

func (h *host) envFrom(e *environment, from corev1.EnvFromSource) error {
	kind, name, optional := "ConfigMap", "", (*bool)(nil)
	switch {
	case from.ConfigMapRef != nil:
		name, optional = from.ConfigMapRef.Name, from.ConfigMapRef.Optional
	case from.SecretRef != nil:
		kind, name, optional = "Secret", from.SecretRef.Name, from.SecretRef.Optional
	}
	data, err := h.data(kind, name)
	if err != nil {
		return err
	}
	if data == nil && (optional == nil || !*optional) {
		return fmt.Errorf("%s %q not found", kind, name)
	}
	for _, k := range slices.Sorted(maps.Keys(data)) {
		e.set(from.Prefix+k, string(data[k]))
	}
	return nil
}

// valueFrom gives a variable's value; not ok: optional and absent.
func (h *host) valueFrom(c *corev1.Container, from *corev1.EnvVarSource) (value string, ok bool, err error) {
	key := func(kind, name, key string, optional *bool) (string, bool, error) {
		data, err := h.data(kind, name)
		if err != nil {
			return "", false, err
		}
		v, ok := data[key]
		if !ok && (optional == nil || !*optional) {
			return "", false, fmt.Errorf("%s %q has no key %q", kind, name, key)
		}
		return string(v), ok, nil
	}
	switch {
	case from.FieldRef != nil:
		value, err = fieldValue(h.pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err = resourceValue(c, from.ResourceFieldRef)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		return key("ConfigMap", from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional)
	case from.SecretKeyRef != nil:
		return key("Secret", from.SecretKeyRef.Name, from.SecretKeyRef.Key, from.SecretKeyRef.Optional)
	}
	return "", false, errors.New("valueFrom is empty or of a kind the lab does not have")
}

// fieldValue reads a downward API field of a pod.
func fieldValue(pod *corev1.Pod, path string) (string, error) {
	if name, key, ok := strings.Cut(path, "['"); ok && strings.HasSuffix(key, "']") {
		key = strings.TrimSuffix(key, "']")
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return lines(pod.Labels), nil
	case "metadata.annotations":
		return lines(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		if pod.Spec.ServiceAccountName == "" {
			return "default", nil
		}
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP", "status.hostIP":
		ips := ipList(pod, path+"s")
		if len(ips) == 0 {
			return "", nil
		}
		return ips[0], nil
	case "status.podIPs", "status.hostIPs":
		return strings.Join(ipList(pod, path), ","), nil
	}
	return "", fmt.Errorf("fieldRef %q is unknown", path)
}

func ipList(pod *corev1.Pod, path string) (out []string) {
	if path == "status.podIPs" {
		for _, ip := range pod.Status.PodIPs {
			out = append(out, ip.IP)
		}
		return out
	}
	for _, ip := range pod.Status.HostIPs {
		out = append(out, ip.IP)
	}
	return out
}

func lines(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strconv.Quote(m[k]))
	}
	return b.String()
}

// resourceValue gives a container's own request or limit, rounded up to the
// divisor; a limit that is not set is the machine's CPUs, or no bound.
func resourceValue(c *corev1.Container, ref *corev1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != c.Name {
		return "", errors.New("resourceFieldRef: the lab knows only the container's own resources")
	}
	list, name := c.Resources.Limits, strings.TrimPrefix(ref.Resource, "limits.")
	if n, ok := strings.CutPrefix(ref.Resource, "requests."); ok {
		list, name = c.Resources.Requests, n
	}
	q, ok := list[corev1.ResourceName(name)]
	switch {
	case ok:
	case name == "cpu":
		q = *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI)
	case name == "memory", name == "ephemeral-storage":
		q = *resource.NewQuantity(math.MaxInt64/1000, resource.BinarySI)
	default:
		return "", fmt.Errorf("resourceFieldRef %q is unknown", ref.Resource)
	}
	div := ref.Divisor
	if div.IsZero() {
		div = *resource.NewQuantity(1, resource.DecimalSI)
	}
	if name == "cpu" {
		return strconv.FormatInt(int64(math.Ceil(float64(q.MilliValue())/float64(div.MilliValue()))), 10), nil
	}
	return strconv.FormatInt(int64(math.Ceil(float64(q.Value())/float64(div.Value()))), 10), nil
}

// expand replaces $(NAME) as Kubernetes does: $$ is one $, a name that is not
// known stays as it stands.
func expand(s string, values map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		switch s[0] {
		case '$':
			b.WriteByte('$')
			s = s[1:]
		case '(':
			end := strings.IndexByte(s, ')')
			if end < 0 {
				b.WriteByte('$')
				continue
			}
			if v, ok := values[s[1:end]]; ok {
				b.WriteString(v)
			} else {
				b.WriteString("$" + s[:end+1])
			}
			s = s[end+1:]
		default:
			b.WriteByte('$')
		}
	}
}
