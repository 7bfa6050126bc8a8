package manifest

import (
	"fmt"
	"net/netip"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
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
