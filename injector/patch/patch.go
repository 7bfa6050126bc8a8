// Package patch decides whether a pod gets a sidecar and says what must change
// for it, as a JSON patch (RFC 6902) built from typed values. It is pure: it
// reads no file, asks no cluster and never turns a user's text into structure.
// injector/webhook calls it for pods on their way into a cluster, and cmd/heddle
// for manifests.
package patch

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
)

// Namespace is what injection needs to know of a pod's namespace.
type Namespace struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string // defaults for the annotations of its pods
}

// Config is what all pods of a mesh share.
type Config struct {
	ControlPlane   string // host:port that sidecars dial
	TrustDomain    string // of all identities (SPIFFE ID §2.1)
	TrustBundle    string // roots that vouch for the control plane, PEM
	SidecarImage   string
	SidecarCommand string // path of the program inside the image
	Classic        bool   // ordinary container unless the pod says otherwise
	Version        string // written into the status annotation
	ExcludedPorts  []uint16
	// ClusterPrefixes are the ranges of pods and Services, if known: skipping
	// them takes destinations out of the mesh, which is worth a warning.
	ClusterPrefixes []netip.Prefix
	// Requests and limits of the sidecar; zero: defaultRequests and no limit.
	Resources corev1.ResourceRequirements
}

// Reason says in one word why a pod is not injected; it is a metric label.
type Reason string

// The reasons. Injected is the empty one.
const (
	Injected           Reason = ""
	NotEnabled         Reason = "not_enabled"         // neither the namespace nor the pod asks for it
	Disabled           Reason = "disabled"            // the pod says no
	AlreadyInjected    Reason = "already_injected"    // nothing to do
	ProtectedNamespace Reason = "protected_namespace" // the cluster's or our own
	StaticPod          Reason = "static_pod"          // the kubelet's file decides, not the API
	Windows            Reason = "windows"             // redirects are Linux
	HostNetwork        Reason = "host_network"        // the redirect would hit the node
	NameClash          Reason = "name_clash"          // a container or volume has our name
	PortClash          Reason = "port_clash"          // a container declares a port of the sidecar
	BadValue           Reason = "bad_value"           // a label or annotation that is not as it must be
	SidecarUID         Reason = "sidecar_uid"         // a container runs as the sidecar's user
)

// Result is what is to be done with one pod.
type Result struct {
	Patch  []Operation // empty: nothing
	Reason Reason      // Injected, or why not
	// Err says more where the pod asked for injection and cannot have it:
	// object, field, value and what to do. It is nil for the quiet reasons.
	Err error
	// Warnings are about pods that are injected and may not do what their
	// authors expect.
	Warnings []string
}

// Deny says that the pod must not run: its traffic would pass the redirect by
// while the pod counts as meshed.
func (r Result) Deny() bool { return r.Reason == SidecarUID }

// subject is how messages name what is judged: the object, and where the pod's
// fields stand in it.
type subject struct {
	object string // "Pod shop/web-0", "Deployment shop/web"
	prefix string // "" or "spec.template."
}

func (s subject) err(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s%s: %s", s.object, s.prefix, field, fmt.Sprintf(format, args...))
}

// Patch gives the change that puts the sidecar into pod. Patching a pod twice
// is patching it once.
func Patch(pod *corev1.Pod, ns Namespace, cfg Config) Result {
	return patchPod(pod, ns, cfg, subject{object: podName(pod, ns.Name)})
}

func patchPod(pod *corev1.Pod, ns Namespace, cfg Config, who subject) Result {
	if reason, err := wanted(pod, ns, who); reason != Injected {
		return Result{Reason: reason, Err: err}
	}
	if reason, err := refused(pod, who); reason != Injected {
		return Result{Reason: reason, Err: err}
	}
	set, warnings, err := readSettings(pod, ns, cfg, who)
	if err != nil {
		return Result{Reason: BadValue, Err: err}
	}
	return Result{Patch: additions(pod, cfg, set), Warnings: warnings}
}

// wanted says whether anybody asks for injection. Order: what protects, what
// is done already, the pod's label, its annotation, the namespace's label. The
// label goes before the annotation because the API server can select on it
// (objectSelector) and so saw it before we did.
func wanted(pod *corev1.Pod, ns Namespace, who subject) (Reason, error) {
	if protected[ns.Name] {
		return ProtectedNamespace, nil
	}
	if statusOf(pod) != nil {
		return AlreadyInjected, nil
	}
	for _, at := range []struct {
		value string
		set   bool
		field string
	}{
		ask(pod.Labels, "metadata.labels"),
		ask(pod.Annotations, "metadata.annotations"),
	} {
		if !at.set {
			continue
		}
		switch at.value {
		case "enabled":
			return Injected, nil
		case "disabled":
			return Disabled, nil
		}
		return BadValue, who.err(fmt.Sprintf("%s[%q]", at.field, v1alpha1.InjectKey), "%s is not a choice (write enabled or disabled)", quote(at.value))
	}
	switch v, ok := ns.Labels[v1alpha1.InjectKey]; {
	case v == "enabled":
		return Injected, nil
	case !ok || v == "disabled":
		return NotEnabled, nil
	default:
		ns := subject{object: "Namespace " + ns.Name}
		return BadValue, ns.err(fmt.Sprintf("metadata.labels[%q]", v1alpha1.InjectKey), "%s is not a choice (write enabled or disabled)", quote(v))
	}
}

func ask(m map[string]string, field string) (at struct {
	value string
	set   bool
	field string
}) {
	at.value, at.set = m[v1alpha1.InjectKey]
	at.field = field
	return at
}

// protected namespaces are never injected: the cluster would not come up
// without them, nor the mesh without its own.
var protected = map[string]bool{
	"kube-system": true, "kube-public": true, "kube-node-lease": true, "heddle-system": true,
}

// Validate says what is wrong with the settings of the mesh. Patch takes a
// valid Config only.
func (c Config) Validate() error {
	if err := c.ValidateFlags(); err != nil {
		return err
	}
	return checkBundle(c.TrustBundle)
}

// ValidateFlags is Validate without the trust bundle, which may come later.
func (c Config) ValidateFlags() error {
	host, port, err := net.SplitHostPort(c.ControlPlane)
	if err != nil || host == "" || strings.ContainsAny(host, " \t$") {
		return fmt.Errorf("control plane %q: want host:port", c.ControlPlane)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("control plane %q: port is not a number from 1 to 65535", c.ControlPlane)
	}
	if _, err := spiffeid.TrustDomainFromString(c.TrustDomain); err != nil {
		return fmt.Errorf("trust domain %q: %w", c.TrustDomain, err)
	}
	if c.SidecarCommand == "" || c.SidecarImage == "" {
		return errors.New("sidecar's image or command is empty")
	}
	return nil
}

// checkBundle says whether text is a trust bundle: one or more PEM blocks,
// certificates all. Anything else, a private key above all, must not travel
// into every pod.
func checkBundle(text string) error {
	rest, n := []byte(text), 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("trust bundle: block %d is %s, want CERTIFICATE", n+1, block.Type)
		}
		n++
	}
	switch {
	case n == 0:
		return errors.New("trust bundle: no PEM certificate in it")
	case strings.TrimSpace(string(rest)) != "":
		return fmt.Errorf("trust bundle: text that is no PEM after block %d", n)
	case strings.Contains(text, "$("):
		return errors.New("trust bundle: holds $(, which the kubelet would expand")
	}
	return nil
}

// podName says which pod is meant, also for one whose name the API server has
// yet to make.
func podName(pod *corev1.Pod, namespace string) string {
	switch {
	case pod.Name != "":
		return "Pod " + namespace + "/" + pod.Name
	case pod.GenerateName != "":
		return "Pod " + namespace + "/" + pod.GenerateName + "*"
	}
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return fmt.Sprintf("Pod of %s %s/%s", o.Kind, namespace, o.Name)
		}
	}
	return "unnamed Pod in " + namespace
}

// quotedBytes bounds how much of a user's value a message repeats: the API
// server cuts warnings at 256 bytes.
const quotedBytes = 60

func quote(v string) string {
	if len(v) > quotedBytes {
		return strconv.Quote(v[:quotedBytes]) + "..."
	}
	return strconv.Quote(v)
}
