// Package cluster is the CLI's way to a Kubernetes cluster: it finds the
// cluster by kubeconfig and applies, reads, deletes and awaits objects of any
// kind. Its errors say what to do. It knows nothing of what the objects mean.
// The commands of cmd/heddle call it.
package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// manager owns the fields that we apply (server-side apply).
	manager = "heddle"
	// callTimeout bounds one call. Admission may take the API server 30 s.
	callTimeout = 40 * time.Second
	// poll is how often Wait looks: people read its progress lines.
	poll = 300 * time.Millisecond
	// pageSize bounds one answer of a list.
	pageSize = 500
	// Our own brake on calls per second. client-go's default of 5 makes an
	// installation slow; the API server has its own priorities and fairness.
	callsPerSecond, callsAtOnce = 50, 100
)

// Object is one object of any kind.
type Object = unstructured.Unstructured

// Ref names one object, or with an empty Name all of a kind (in a namespace,
// or everywhere if that is empty too).
type Ref struct{ APIVersion, Kind, Namespace, Name string }

// RefOf gives the name of an object.
func RefOf(o *Object) Ref {
	return Ref{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()}
}

func (r Ref) String() string {
	s := r.Kind
	if r.Namespace != "" {
		return s + " " + r.Namespace + "/" + r.Name
	}
	if r.Name != "" {
		s += " " + r.Name
	}
	return s
}

// Options say which cluster.
type Options struct {
	Kubeconfig string // path; empty: $KUBECONFIG, then ~/.kube/config
	Context    string // empty: the kubeconfig's current one
	// Warn takes the API server's warnings about what we send; nil: dropped.
	Warn func(text string)
}

// Cluster is a connection to one cluster. Its methods may be called from any
// goroutine.
type Cluster struct {
	host      string // of the API server, as people know it
	namespace string // of the context
	dynamic   dynamic.Interface
	discovery *discovery.DiscoveryClient
	kinds     map[schema.GroupVersionKind]kind
	mu        sync.Mutex // guards kinds
}

// kind is how a kind is called in URLs.
type kind struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

// Connect reads the kubeconfig. It calls nobody: that the cluster cannot be
// reached is said by the first call.
func Connect(o Options) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, noConfig(o, loader, err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, noConfig(o, loader, err)
	}
	return connect(cfg, namespace, o.Warn)
}

func connect(cfg *rest.Config, namespace string, warn func(string)) (*Cluster, error) {
	cfg.Timeout, cfg.QPS, cfg.Burst = callTimeout, callsPerSecond, callsAtOnce
	cfg.UserAgent = manager
	cfg.WarningHandler = warnings(warn)
	c := &Cluster{host: cfg.Host, namespace: namespace, kinds: map[schema.GroupVersionKind]kind{}}
	var err error
	if c.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if c.discovery, err = discovery.NewDiscoveryClientForConfig(cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return c, nil
}

// warnings hands the server's warnings on.
type warnings func(string)

func (w warnings) HandleWarningHeader(code int, _, text string) {
	if w != nil && code == 299 && text != "" { // 299: the only code Kubernetes sends
		w(text)
	}
}

// Namespace is the one that the context names, "default" if it names none.
func (c *Cluster) Namespace() string { return c.namespace }

// ServerVersion asks for the version of Kubernetes, such as "v1.36.3".
func (c *Cluster) ServerVersion(ctx context.Context) (string, error) {
	v, err := c.discovery.ServerVersionWithContext(ctx)
	if err != nil {
		return "", c.explain("ask for the version of", Ref{Kind: "Kubernetes"}, err)
	}
	return v.GitVersion, nil
}

// Outcome is what Apply did.
type Outcome string

// The outcomes, in kubectl's words.
const (
	Created    Outcome = "created"
	Configured Outcome = "configured"
	Unchanged  Outcome = "unchanged"
)

// Apply makes the cluster's object say what obj says, and leaves alone what
// obj does not say (server-side apply). Fields that somebody else owns are
// taken over: who calls the CLI means it. A missing namespace of a namespaced
// object becomes the context's.
func (c *Cluster) Apply(ctx context.Context, obj *Object) (Outcome, error) {
	ref := RefOf(obj)
	k, err := c.kind(ctx, ref)
	if err != nil {
		return "", err
	}
	if ref.Name == "" {
		return "", fmt.Errorf("apply %s: metadata.name is empty (give it a name)", ref)
	}
	if k.namespaced && ref.Namespace == "" {
		obj = obj.DeepCopy()
		obj.SetNamespace(c.namespace)
		ref.Namespace = c.namespace
	}
	res := c.at(k, ref.Namespace)
	before, err := res.Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", c.explain("read", ref, err)
	}
	absent := err != nil
	after, err := res.Apply(ctx, ref.Name, obj, metav1.ApplyOptions{FieldManager: manager, Force: true})
	switch {
	case err != nil:
		return "", c.explain("apply", ref, err)
	case absent:
		return Created, nil
	case before.GetResourceVersion() == after.GetResourceVersion():
		return Unchanged, nil
	}
	return Configured, nil
}

// Get reads one object; NotFound(err) says that it does not exist.
func (c *Cluster) Get(ctx context.Context, ref Ref) (*Object, error) {
	k, err := c.kind(ctx, ref)
	if err != nil {
		return nil, err
	}
	obj, err := c.at(k, ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, c.explain("read", ref, err)
	}
	return obj, nil
}

// List reads all objects of ref's kind and namespace (empty: all namespaces)
// that have the labels of selector ("a=b,c"; empty: all).
func (c *Cluster) List(ctx context.Context, ref Ref, selector string) ([]Object, error) {
	k, err := c.kind(ctx, ref)
	if err != nil {
		return nil, err
	}
	var out []Object
	for opts := (metav1.ListOptions{LabelSelector: selector, Limit: pageSize}); ; {
		page, err := c.at(k, ref.Namespace).List(ctx, opts)
		if err != nil {
			return nil, c.explain("list", ref, err)
		}
		out = append(out, page.Items...)
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return out, nil
		}
	}
}

// Delete removes one object, and in the background what it owns. It says
// whether there was one.
func (c *Cluster) Delete(ctx context.Context, ref Ref) (bool, error) {
	k, err := c.kind(ctx, ref)
	if err != nil {
		return false, err
	}
	background := metav1.DeletePropagationBackground
	err = c.at(k, ref.Namespace).Delete(ctx, ref.Name, metav1.DeleteOptions{PropagationPolicy: &background})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, c.explain("delete", ref, err)
	}
	return true, nil
}

// Wait looks at an object until done says so or fails, or ctx ends; done gets
// nil while there is none.
func (c *Cluster) Wait(ctx context.Context, ref Ref, done func(*Object) (bool, error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		obj, err := c.Get(ctx, ref)
		if err != nil && !NotFound(err) && ctx.Err() == nil {
			return err
		}
		if err == nil || NotFound(err) {
			if ok, err := done(obj); ok || err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", ref, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Fetch gets a path of the API server as it is, such as that of a Service's
// proxy subresource: /api/v1/namespaces/NS/services/NAME:PORT/proxy/PATH.
func (c *Cluster) Fetch(ctx context.Context, path string, query map[string]string) ([]byte, error) {
	req := c.discovery.RESTClient().Get().AbsPath(path)
	for k, v := range query {
		req = req.Param(k, v)
	}
	body, err := req.DoRaw(ctx)
	if err != nil {
		return body, c.explain("fetch", Ref{Kind: path}, err)
	}
	return body, nil
}

func (c *Cluster) at(k kind, namespace string) dynamic.ResourceInterface {
	if !k.namespaced || namespace == "" {
		return c.dynamic.Resource(k.resource)
	}
	return c.dynamic.Resource(k.resource).Namespace(namespace)
}

// kind finds how the cluster calls a kind. What it does not know is asked
// again each time: a CRD may have come meanwhile.
func (c *Cluster) kind(ctx context.Context, ref Ref) (kind, error) {
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	c.mu.Lock()
	known, ok := c.kinds[gvk]
	c.mu.Unlock()
	if ok {
		return known, nil
	}
	list, err := c.discovery.ServerResourcesForGroupVersionWithContext(ctx, ref.APIVersion)
	if err != nil && !apierrors.IsNotFound(err) {
		return kind{}, c.explain("ask about", ref, err)
	}
	if err == nil {
		for _, r := range list.APIResources {
			if r.Kind == ref.Kind && !subresource(r.Name) {
				k := kind{gvk.GroupVersion().WithResource(r.Name), r.Namespaced}
				c.mu.Lock()
				c.kinds[gvk] = k
				c.mu.Unlock()
				return k, nil
			}
		}
	}
	return kind{}, noKind(ref, gvk)
}
