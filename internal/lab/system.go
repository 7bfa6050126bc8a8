package lab

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

// Ports of the mesh's programs on the first node.
const (
	controlPort         = 15010
	controlMetricsPort  = 15014
	injectorPort        = 15017
	injectorMetricsPort = 15018
)

const (
	// webhookSeconds bounds one call of the injector.
	webhookSeconds = 10
	// certLife is longer than a lab lives.
	certLife = 30 * 24 * time.Hour
	// injectorName is the injector's pod, Service and service account.
	injectorName = "heddle-injector"
	controlName  = "heddle-controlplane"
)

// writeSystem writes the manifests of the mesh's own programs, as a person
// could, and the certificate of the injector. The lab then reads them like any
// others.
func writeSystem(cfg Config, net fabric.Config) error {
	p := paths(StateDir(cfg.RunDir, cfg.Name))
	certs := p.in("webhook")
	for _, dir := range []string{p.system(), certs, p.ca()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the mesh's folders: %w", err)
		}
	}
	ca, err := writeWebhookCert(certs, []string{injectorName + "." + systemNamespace + ".svc"})
	if err != nil {
		return err
	}
	at := net.Nodes[0].Addresses[0].String()
	m := cfg.Mesh
	control := append([]string{m.ControlPlane,
		"--source=files:" + p.objects(), fmt.Sprintf("--listen=:%d", controlPort), "--ca-dir=" + p.ca(),
		"--trust-domain=" + m.TrustDomain, fmt.Sprintf("--metrics=:%d", controlMetricsPort)}, m.ControlPlaneArgs...)
	injector := append([]string{m.Injector,
		"--source=files:" + p.objects(), fmt.Sprintf("--listen=:%d", injectorPort), fmt.Sprintf("--metrics=:%d", injectorMetricsPort),
		"--cert-dir=" + certs, fmt.Sprintf("--control-plane=%s:%d", at, controlPort), "--trust-domain=" + m.TrustDomain,
		"--trust-bundle=" + filepath.Join(p.ca(), "roots.pem"), "--sidecar-command=" + m.Sidecar}, m.InjectorArgs...)
	objs := []any{
		&corev1.Namespace{TypeMeta: meta("v1", "Namespace"), ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}},
		account(controlName), account(injectorName),
		systemService(controlName, controlPort, controlPort), systemService(injectorName, 443, injectorPort),
		systemPod(program{controlName, net.Nodes[0].Name, control, controlMetricsPort,
			map[string]bool{p.objects(): true, p.ca(): true}}),
		systemPod(program{injectorName, net.Nodes[0].Name, injector, injectorMetricsPort,
			map[string]bool{p.objects(): false, p.ca(): false, certs: false}}),
		webhookConfiguration(ca),
	}
	var out bytes.Buffer
	out.WriteString("# Written by the lab at its start.\n")
	for _, o := range objs {
		b, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("encode the mesh's manifests: %w", err)
		}
		out.WriteString("---\n")
		out.Write(b)
	}
	if err := os.WriteFile(filepath.Join(p.system(), "heddle.yaml"), out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the mesh's manifests: %w", err)
	}
	return nil
}

func meta(apiVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}
}

func account(name string) any {
	return &corev1.ServiceAccount{TypeMeta: meta("v1", "ServiceAccount"), ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name}}
}

func systemService(name string, port, target int32) any {
	return &corev1.Service{TypeMeta: meta("v1", "Service"), ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "main", Port: port, TargetPort: intstr.FromInt32(target)}}}}
}

// program is one of the mesh's programs.
type program struct {
	name, node string
	command    []string
	metrics    int32           // port; /ready there is what the program says of itself
	folders    map[string]bool // of this machine that it sees; true: and writes
}

// systemPod runs a program on a node's own network.
func systemPod(p program) any {
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	for i, path := range slices.Sorted(maps.Keys(p.folders)) {
		name := fmt.Sprintf("folder-%d", i)
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path}}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: !p.folders[path]})
	}
	return &corev1.Pod{TypeMeta: meta("v1", "Pod"),
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: p.name, Labels: map[string]string{"app": p.name}},
		Spec: corev1.PodSpec{
			NodeName: p.node, HostNetwork: true, ServiceAccountName: p.name,
			TerminationGracePeriodSeconds: new(int64(5)),
			Volumes:                       volumes,
			Containers: []corev1.Container{{
				Name: p.name, Image: p.name, Command: p.command[:1], Args: p.command[1:], VolumeMounts: mounts,
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3, ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(p.metrics)}}},
			}},
		}}
}

// webhookConfiguration calls the injector for the pods of namespaces that ask
// for it, and for pods that ask themselves.
func webhookConfiguration(ca []byte) any {
	hook := func(name string, namespaces, pods *metav1.LabelSelector) admissionregv1.MutatingWebhook {
		return admissionregv1.MutatingWebhook{
			Name: name,
			ClientConfig: admissionregv1.WebhookClientConfig{CABundle: ca,
				Service: &admissionregv1.ServiceReference{Namespace: systemNamespace, Name: injectorName, Path: new("/inject"), Port: new(int32(443))}},
			Rules: []admissionregv1.RuleWithOperations{{Operations: []admissionregv1.OperationType{admissionregv1.Create},
				Rule: admissionregv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
			FailurePolicy:           new(admissionregv1.Fail),
			SideEffects:             new(admissionregv1.SideEffectClassNone),
			TimeoutSeconds:          new(int32(webhookSeconds)),
			AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector:       namespaces,
			ObjectSelector:          pods,
		}
	}
	is := func(op metav1.LabelSelectorOperator, value string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: v1alpha1.InjectKey, Operator: op, Values: []string{value}}
	}
	sel := func(rs ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: rs}
	}
	// A namespace is called for once, by one hook or the other.
	return &admissionregv1.MutatingWebhookConfiguration{
		TypeMeta:   meta("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{Name: injectorName},
		Webhooks: []admissionregv1.MutatingWebhook{
			hook("namespace.inject.heddle.dev", sel(is(metav1.LabelSelectorOpIn, "enabled")), sel(is(metav1.LabelSelectorOpNotIn, "disabled"))),
			hook("pod.inject.heddle.dev", sel(is(metav1.LabelSelectorOpNotIn, "enabled")), sel(is(metav1.LabelSelectorOpIn, "enabled"))),
		},
	}
}

// writeWebhookCert makes a CA that signs one certificate and is forgotten, and
// returns the CA's certificate.
func writeWebhookCert(dir string, names []string) ([]byte, error) {
	now := time.Now()
	template := func(cn string) *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: cn}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(certLife)}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the webhook's CA key: %w", err)
	}
	ca := template("heddle lab webhook CA")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("make the webhook's CA: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the webhook's key: %w", err)
	}
	leaf := template(injectorName)
	leaf.DNSNames, leaf.KeyUsage = names, x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("make the webhook's certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the webhook's key: %w", err)
	}
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	for _, f := range []struct {
		name string
		data []byte
		mode os.FileMode
	}{
		{"tls.key", block("PRIVATE KEY", keyDER), 0o600},
		{"tls.crt", block("CERTIFICATE", der), 0o644},
	} {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.data, f.mode); err != nil {
			return nil, fmt.Errorf("write the webhook's certificate: %w", err)
		}
	}
	return block("CERTIFICATE", caDER), nil
}
