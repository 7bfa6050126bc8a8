package manifest

import (
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heddle-mesh/heddle/internal/source"
)

// fault is one thing that is wrong with an object.
type fault struct{ path, err, fix string }

// faults collects them.
type faults []fault

func (f *faults) add(path, err, fix string) { *f = append(*f, fault{path, err, fix}) }

// validate checks what the lab relies on; it is not the API server's whole
// validation.
func validate(ref source.Ref, obj metav1.Object) faults {
	var f faults
	if bad := checkName(ref); bad != nil {
		f = append(f, *bad)
	}
	checkLabels(&f, "metadata.labels", obj.GetLabels())
	switch o := obj.(type) {
	case *corev1.Pod:
		checkPod(&f, "spec", &o.Spec)
	case *corev1.Service:
		checkService(&f, &o.Spec)
	case *discoveryv1.EndpointSlice:
		checkSlice(&f, o)
	case *appsv1.Deployment:
		checkDeployment(&f, o)
	case *batchv1.Job:
		checkTemplate(&f, &o.Spec.Template)
		if o.Spec.Template.Spec.RestartPolicy == corev1.RestartPolicyAlways {
			f.add("spec.template.spec.restartPolicy", "a Job's pods must end", "write Never or OnFailure")
		}
	}
	return f
}

// forgo takes out of a good object what the lab cannot do, and says so; the
// object stays.
func forgo(obj metav1.Object) faults {
	var f faults
	if s, ok := obj.(*corev1.Service); ok && (s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer) {
		f.add("spec.type", fmt.Sprintf("the lab forwards nothing for a %s: it is kept as a ClusterIP Service", s.Spec.Type),
			"write type: ClusterIP, and reach it from a pod of the lab")
		s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeClusterIP, 0
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	return f
}

// checkName holds names to their limits: label form where a DNS name is made of
// them (RFC 1123, 63 bytes), else subdomain form (253).
func checkName(ref source.Ref) *fault {
	check := validation.IsDNS1123Subdomain
	switch ref.Kind {
	case "Namespace":
		check = validation.IsDNS1123Label
	case "Service":
		check = validation.IsDNS1035Label
	}
	if ref.Name == "" {
		return &fault{"metadata.name", "there is no name", "give one"}
	}
	if msgs := check(ref.Name); len(msgs) > 0 {
		return &fault{"metadata.name", fmt.Sprintf("%q: %s", ref.Name, msgs[0]), "choose another name"}
	}
	if ref.Namespace != "" {
		if msgs := validation.IsDNS1123Label(ref.Namespace); len(msgs) > 0 {
			return &fault{"metadata.namespace", fmt.Sprintf("%q: %s", ref.Namespace, msgs[0]), "choose another namespace"}
		}
	}
	return nil
}

var kindForm = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)

// checkKind holds the kind of a document that is only passed on: it names a
// file, and must not be taken for an object that the lab itself writes.
func checkKind(kind string) *fault {
	if !kindForm.MatchString(kind) {
		return &fault{"kind", fmt.Sprintf("%.80q is no kind", kind), "a kind is one word of letters that begins with a capital"}
	}
	switch kind {
	case "Namespace", "Node", "ServiceCIDR", "ServiceAccount", "Service", "Pod", "EndpointSlice", "Deployment", "Job", "MutatingWebhookConfiguration":
		return &fault{"kind", kind + " is of another API", "correct apiVersion"}
	}
	return nil
}

func checkLabels(f *faults, path string, m map[string]string) {
	for k, v := range m {
		if msgs := validation.IsQualifiedName(k); len(msgs) > 0 {
			f.add(path, fmt.Sprintf("label %q: %s", k, msgs[0]), "correct the label's name")
		}
		if msgs := validation.IsValidLabelValue(v); len(msgs) > 0 {
			f.add(path, fmt.Sprintf("label %s, value %q: %s", k, v, msgs[0]), "a value has at most 63 bytes")
		}
	}
}

func checkDeployment(f *faults, d *appsv1.Deployment) {
	if *d.Spec.Replicas < 0 {
		f.add("spec.replicas", "negative", "write 0 or more")
	}
	sel, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	switch {
	case err != nil:
		f.add("spec.selector", err.Error(), "correct the selector")
	case sel.Empty():
		f.add("spec.selector", "selects everything", "give matchLabels that the template carries")
	case !sel.Matches(labels.Set(d.Spec.Template.Labels)):
		f.add("spec.selector", "does not select the template's own labels", "make spec.template.metadata.labels carry what the selector asks for")
	}
	if d.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		f.add("spec.template.spec.restartPolicy", "a Deployment's pods restart always", "remove the field")
	}
	checkTemplate(f, &d.Spec.Template)
}

func checkTemplate(f *faults, t *corev1.PodTemplateSpec) {
	checkLabels(f, "spec.template.metadata.labels", t.Labels)
	checkPod(f, "spec.template.spec", &t.Spec)
}

// checkPod checks the parts of a pod that would otherwise fail late.
func checkPod(f *faults, path string, s *corev1.PodSpec) {
	if len(s.Containers) == 0 {
		f.add(path+".containers", "a pod needs a container", "add one")
	}
	if s.Hostname != "" && len(validation.IsDNS1123Label(s.Hostname)) > 0 {
		f.add(path+".hostname", fmt.Sprintf("%q is not a DNS label", s.Hostname), "at most 63 of a-z, 0-9 and '-'")
	}
	seen := map[string]bool{}
	check := func(list string, cs []corev1.Container) {
		for i := range cs {
			p := fmt.Sprintf("%s.%s[%d]", path, list, i)
			if seen[cs[i].Name] {
				f.add(p+".name", fmt.Sprintf("%q stands twice", cs[i].Name), "name containers differently")
			}
			seen[cs[i].Name] = true
			checkContainer(f, p, &cs[i])
		}
	}
	check("initContainers", s.InitContainers)
	check("containers", s.Containers)
	if g := s.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		f.add(path+".terminationGracePeriodSeconds", "negative", "write 0 or more")
	}
	if sc := s.SecurityContext; sc != nil {
		checkIDs(f, path+".securityContext", sc.RunAsUser, sc.RunAsGroup)
	}
	checkVolumes(f, path, s)
}

// checkVolumes holds volumes to names, because each becomes a folder, and
// mounts to volumes that are there.
func checkVolumes(f *faults, path string, s *corev1.PodSpec) {
	there := map[string]bool{}
	for i := range s.Volumes {
		name, p := s.Volumes[i].Name, fmt.Sprintf("%s.volumes[%d].name", path, i)
		if len(validation.IsDNS1123Label(name)) > 0 {
			f.add(p, fmt.Sprintf("%q is not a DNS label", name), "at most 63 of a-z, 0-9 and '-'")
		}
		if there[name] {
			f.add(p, fmt.Sprintf("%q stands twice", name), "name volumes differently")
		}
		there[name] = true
		checkVolumeSource(f, fmt.Sprintf("%s.volumes[%d]", path, i), &s.Volumes[i])
	}
	mounts := func(list string, cs []corev1.Container) {
		for i := range cs {
			for j, m := range cs[i].VolumeMounts {
				p := fmt.Sprintf("%s.%s[%d].volumeMounts[%d]", path, list, i, j)
				if !there[m.Name] {
					f.add(p+".name", fmt.Sprintf("the pod has no volume %q", m.Name), "add it to volumes, or correct the name")
				}
				if !filepath.IsAbs(m.MountPath) {
					f.add(p+".mountPath", fmt.Sprintf("%q does not begin with /", m.MountPath), "write the whole path")
				}
			}
		}
	}
	mounts("initContainers", s.InitContainers)
	mounts("containers", s.Containers)
}

const noData = "the lab has no ConfigMaps and Secrets, so the pod would wait for ever"

// checkVolumeSource finds volumes that could never be made.
func checkVolumeSource(f *faults, path string, v *corev1.Volume) {
	fix := "write optional: true, or give the files by a hostPath volume"
	switch {
	case v.ConfigMap != nil:
		needed(f, fault{path + ".configMap", noData, fix}, v.ConfigMap.Optional)
	case v.Secret != nil:
		needed(f, fault{path + ".secret", noData, fix}, v.Secret.Optional)
	case v.Projected != nil:
		for i, s := range v.Projected.Sources {
			p := fmt.Sprintf("%s.projected.sources[%d]", path, i)
			if s.ConfigMap != nil {
				needed(f, fault{p + ".configMap", noData, fix}, s.ConfigMap.Optional)
			}
			if s.Secret != nil {
				needed(f, fault{p + ".secret", noData, fix}, s.Secret.Optional)
			}
		}
	case v.HostPath == nil && v.EmptyDir == nil && v.DownwardAPI == nil:
		f.add(path, "the lab does not have this sort of volume", "it has emptyDir, hostPath, downwardAPI and projected")
	}
}

// checkEnv finds variables whose value could never be known.
func checkEnv(f *faults, path string, c *corev1.Container) {
	fix := "write optional: true, or give the value itself"
	for i, e := range c.EnvFrom {
		p := fmt.Sprintf("%s.envFrom[%d]", path, i)
		if e.ConfigMapRef != nil {
			needed(f, fault{p + ".configMapRef", noData, fix}, e.ConfigMapRef.Optional)
		}
		if e.SecretRef != nil {
			needed(f, fault{p + ".secretRef", noData, fix}, e.SecretRef.Optional)
		}
	}
	for i, e := range c.Env {
		p := fmt.Sprintf("%s.env[%d].valueFrom", path, i)
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			needed(f, fault{p + ".configMapKeyRef", noData, fix}, r.Optional)
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			needed(f, fault{p + ".secretKeyRef", noData, fix}, r.Optional)
		}
	}
}

// needed adds a fault about something that is not there, unless that is allowed.
func needed(f *faults, bad fault, optional *bool) {
	if optional == nil || !*optional {
		*f = append(*f, bad)
	}
}

func checkIDs(f *faults, path string, user, group *int64) {
	if user != nil && (*user < 0 || *user > math.MaxInt32) {
		f.add(path+".runAsUser", fmt.Sprintf("%d is no user", *user), "0 to 2147483647")
	}
	if group != nil && (*group < 0 || *group > math.MaxInt32) {
		f.add(path+".runAsGroup", fmt.Sprintf("%d is no group", *group), "0 to 2147483647")
	}
}

// checkProbe wants exactly one action, a port that can be, and no negative times.
func checkProbe(f *faults, path string, p *corev1.Probe) {
	if p == nil {
		return
	}
	actions := 0
	port := func(action string, at intstr.IntOrString) {
		actions++
		if at.Type == intstr.Int && (at.IntVal < 1 || at.IntVal > 65535) {
			f.add(path+"."+action+".port", fmt.Sprintf("%d is not a port", at.IntVal), "1 to 65535, or the name of a container's port")
		}
	}
	if p.HTTPGet != nil {
		port("httpGet", p.HTTPGet.Port)
	}
	if p.TCPSocket != nil {
		port("tcpSocket", p.TCPSocket.Port)
	}
	if p.GRPC != nil {
		port("grpc", intstr.FromInt32(p.GRPC.Port))
	}
	if p.Exec != nil {
		actions++
	}
	if actions != 1 {
		f.add(path, fmt.Sprintf("a probe has one action, this one %d", actions), "write one of httpGet, tcpSocket and exec")
	}
	for _, n := range []struct {
		field string
		value int32
	}{{"initialDelaySeconds", p.InitialDelaySeconds}, {"timeoutSeconds", p.TimeoutSeconds}, {"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold}} {
		if n.value < 0 {
			f.add(path+"."+n.field, "negative", "write 0 or more")
		}
	}
}

func checkContainer(f *faults, path string, c *corev1.Container) {
	if len(validation.IsDNS1123Label(c.Name)) > 0 {
		f.add(path+".name", fmt.Sprintf("%q is not a DNS label", c.Name), "at most 63 of a-z, 0-9 and '-'")
	}
	if len(c.Command) == 0 {
		f.add(path+".command", "the lab runs programs of this machine and ignores images, so it needs a command",
			"write command: [/path/of/program, ...]")
	}
	for i, p := range c.Ports {
		if p.ContainerPort < 1 || p.ContainerPort > 65535 {
			f.add(fmt.Sprintf("%s.ports[%d].containerPort", path, i), fmt.Sprintf("%d is not a port", p.ContainerPort), "1 to 65535")
		}
	}
	checkEnv(f, path, c)
	checkProbe(f, path+".startupProbe", c.StartupProbe)
	checkProbe(f, path+".readinessProbe", c.ReadinessProbe)
	checkProbe(f, path+".livenessProbe", c.LivenessProbe)
	if sc := c.SecurityContext; sc != nil {
		checkIDs(f, path+".securityContext", sc.RunAsUser, sc.RunAsGroup)
	}
	if c.RestartPolicy != nil && *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		f.add(path+".restartPolicy", "the lab knows Always, which makes an init container a sidecar", "write Always or remove it")
	}
}

// PodFaults checks a pod as a webhook left it.
func PodFaults(p *corev1.Pod) error {
	var f faults
	checkLabels(&f, "metadata.labels", p.Labels)
	checkPod(&f, "spec", &p.Spec)
	if len(f) == 0 {
		return nil
	}
	msgs := make([]string, len(f))
	for i, x := range f {
		msgs[i] = x.path + ": " + x.err
	}
	return fmt.Errorf("the pod is not valid: %s", strings.Join(msgs, "; "))
}

func checkService(f *faults, s *corev1.ServiceSpec) {
	if s.Type == corev1.ServiceTypeExternalName {
		if len(validation.IsDNS1123Subdomain(strings.TrimSuffix(s.ExternalName, "."))) > 0 {
			f.add("spec.externalName", fmt.Sprintf("%q is not a DNS name", s.ExternalName), "give the name that the Service stands for")
		}
		return
	}
	headless := s.ClusterIP == corev1.ClusterIPNone
	if len(s.Ports) == 0 && !headless {
		f.add("spec.ports", "a Service needs a port", "add one")
	}
	names := map[string]bool{}
	numbers := map[string]bool{}
	for i, p := range s.Ports {
		path := fmt.Sprintf("spec.ports[%d]", i)
		if p.Port < 1 || p.Port > 65535 {
			f.add(path+".port", fmt.Sprintf("%d is not a port", p.Port), "1 to 65535")
		}
		if p.Protocol != corev1.ProtocolTCP && p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP {
			f.add(path+".protocol", fmt.Sprintf("%q is no protocol", p.Protocol), "TCP, UDP or SCTP")
		}
		if p.Name == "" && len(s.Ports) > 1 {
			f.add(path+".name", "a Service of several ports names them", "give each port a name")
		}
		if p.Name != "" && (names[p.Name] || len(validation.IsDNS1123Label(p.Name)) > 0) {
			f.add(path+".name", fmt.Sprintf("%q stands twice or is not a DNS label", p.Name), "choose another name")
		}
		key := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if numbers[key] {
			f.add(path+".port", key+" stands twice", "remove one")
		}
		names[p.Name], numbers[key] = true, true
		if p.TargetPort.Type == intstr.Int && (p.TargetPort.IntVal < 1 || p.TargetPort.IntVal > 65535) {
			f.add(path+".targetPort", fmt.Sprintf("%d is not a port", p.TargetPort.IntVal), "1 to 65535, or the name of a container's port")
		}
	}
	for i, ip := range append([]string{s.ClusterIP}, s.ClusterIPs...) {
		if ip == "" || ip == corev1.ClusterIPNone {
			continue
		}
		if _, err := netip.ParseAddr(ip); err != nil {
			path := "spec.clusterIP"
			if i > 0 {
				path = fmt.Sprintf("spec.clusterIPs[%d]", i-1)
			}
			f.add(path, fmt.Sprintf("%q is not an address", ip), "remove it: the lab chooses one")
		}
	}
}

// checkSlice checks a slice written by hand: an address that is none would be
// counted as an endpoint that nobody can reach.
func checkSlice(f *faults, s *discoveryv1.EndpointSlice) {
	if s.AddressType != discoveryv1.AddressTypeIPv4 && s.AddressType != discoveryv1.AddressTypeIPv6 {
		f.add("addressType", fmt.Sprintf("%q cannot be used", s.AddressType), "IPv4 or IPv6")
		return
	}
	for i, e := range s.Endpoints {
		path := fmt.Sprintf("endpoints[%d].addresses", i)
		if len(e.Addresses) == 0 {
			f.add(path, "an endpoint needs an address", "give one, or remove the endpoint")
		}
		for _, a := range e.Addresses {
			ip, err := netip.ParseAddr(a)
			switch {
			case err != nil || ip.Is4() != (s.AddressType == discoveryv1.AddressTypeIPv4):
				f.add(path, fmt.Sprintf("%.80q is no %s address", a, s.AddressType), "correct it; each family has slices of its own")
			case ip.IsUnspecified() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast():
				f.add(path, a+" is no endpoint's address", "an endpoint is reached by others: no loopback, link-local, multicast or unspecified address")
			}
		}
	}
	for i, p := range s.Ports {
		if p.Port != nil && (*p.Port < 1 || *p.Port > 65535) {
			f.add(fmt.Sprintf("ports[%d].port", i), fmt.Sprintf("%d is not a port", *p.Port), "1 to 65535")
		}
	}
}
