package cluster

import (
	"maps"
	"slices"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-mesh/heddle/internal/lab/manifest"
	"github.com/heddle-mesh/heddle/internal/source"
)

// docs is the wanted world by kind, without documents whose namespace does not
// exist.
type docs struct {
	namespaces map[string]*corev1.Namespace
	accounts   map[source.Key]*corev1.ServiceAccount
	byRef      map[source.Ref]*manifest.Document
	ordered    []*manifest.Document
	webhooks   []*admissionregv1.MutatingWebhookConfiguration
}

// builtinNamespaces exist in every cluster.
var builtinNamespaces = []string{"default", "kube-node-lease", "kube-public", "kube-system"}

// index sorts the documents and adds what every cluster has.
func (c *Cluster) index() docs {
	d := docs{namespaces: map[string]*corev1.Namespace{}, accounts: map[source.Key]*corev1.ServiceAccount{},
		byRef: map[source.Ref]*manifest.Document{}}
	for _, name := range builtinNamespaces {
		d.namespaces[name] = namespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for i := range c.set.Documents {
		if ns, ok := c.set.Documents[i].Object.(*corev1.Namespace); ok {
			d.namespaces[ns.Name] = namespace(ns.DeepCopy())
		}
	}
	for name := range d.namespaces {
		d.addAccount(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}})
	}
	for i := range c.set.Documents {
		doc := &c.set.Documents[i]
		if ns := doc.Ref.Namespace; ns != "" && d.namespaces[ns] == nil {
			c.problem(doc, "metadata.namespace", "there is no namespace "+ns, "add a document of kind Namespace, or name another")
			continue
		}
		switch o := doc.Object.(type) {
		case *corev1.Namespace:
			continue
		case *corev1.ServiceAccount:
			d.addAccount(o.DeepCopy())
			continue
		case *admissionregv1.MutatingWebhookConfiguration:
			d.webhooks = append(d.webhooks, o)
		}
		d.byRef[doc.Ref] = doc
		d.ordered = append(d.ordered, doc)
	}
	return d
}

func namespace(n *corev1.Namespace) *corev1.Namespace {
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}
	n.UID = StableUID("Namespace", "", n.Name)
	n.Labels = maps.Clone(n.Labels)
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
	return n
}

func (d *docs) addAccount(a *corev1.ServiceAccount) {
	a.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}
	a.UID = StableUID("ServiceAccount", a.Namespace, a.Name)
	d.accounts[source.Key{Namespace: a.Namespace, Name: a.Name}] = a
}

// each visits what makes pods, in the order of the documents.
func (d *docs) each(f func(doc *manifest.Document)) {
	for _, doc := range d.ordered {
		switch doc.Object.(type) {
		case *appsv1.Deployment, *batchv1.Job, *corev1.Pod:
			f(doc)
		}
	}
}

// handMade are the EndpointSlices that stand in the manifests.
func (d *docs) handMade() []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, doc := range d.ordered {
		if s, ok := doc.Object.(*discoveryv1.EndpointSlice); ok {
			s = s.DeepCopy()
			s.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
			out = append(out, s)
		}
	}
	return out
}

func (d *docs) sortedNamespaces() []string { return slices.Sorted(maps.Keys(d.namespaces)) }
