package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sort"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
)

// ErrNoKind says that the cluster has no such kind (no CRD).
var ErrNoKind = errors.New("the cluster does not know this kind")

// NotFound says whether err means that the object does not exist.
func NotFound(err error) bool { return apierrors.IsNotFound(err) }

// noConfig explains why there is no cluster to talk to.
func noConfig(o Options, loader clientcmd.ClientConfig, err error) error {
	where := o.Kubeconfig
	if where == "" {
		where = "$KUBECONFIG or ~/.kube/config"
	}
	if clientcmd.IsEmptyConfig(err) {
		return fmt.Errorf("no cluster is named in %s: give --kubeconfig=FILE or set KUBECONFIG", where)
	}
	raw, rawErr := loader.RawConfig()
	if rawErr == nil && o.Context != "" && raw.Contexts[o.Context] == nil {
		var names []string
		for name := range raw.Contexts {
			names = append(names, name)
		}
		sort.Strings(names)
		return fmt.Errorf("%s has no context %q: give one of %s", where, o.Context, strings.Join(names, ", "))
	}
	return fmt.Errorf("read kubeconfig (%s): %w", where, err)
}

func noKind(ref Ref, gvk schema.GroupVersionKind) error {
	fix := "install its CustomResourceDefinition, or mend apiVersion and kind"
	if gvk.Group == v1alpha1.Group {
		fix = "is Heddle installed here? heddle install"
	}
	return fmt.Errorf("%s of %s: %w (%s)", ref, ref.APIVersion, ErrNoKind, fix)
}

// explain adds what to do about a failed call.
func (c *Cluster) explain(verb string, ref Ref, err error) error {
	fix := ""
	var dial net.Error
	var dns *net.DNSError
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	switch {
	case apierrors.IsForbidden(err):
		fix = "this user of the kubeconfig may not; use another --context, or ask the cluster's administrator for that right"
	case apierrors.IsUnauthorized(err):
		fix = "the cluster does not know this user; log in again, or use another --context"
	case errors.As(err, &authority), errors.As(err, &hostname):
		fix = fmt.Sprintf("who answers at %s is not the API server that the kubeconfig names; use another --context, or fetch the kubeconfig anew", c.host)
	case errors.As(err, &dns):
		fix = fmt.Sprintf("the name of the API server %s is not known here; is this the right --context?", c.host)
	case errors.Is(err, context.Canceled):
	case errors.As(err, &dial), isURL(err):
		fix = fmt.Sprintf("the API server %s does not answer; is the cluster up, and is this the right --context?", c.host)
	}
	if fix != "" {
		fix = " (" + fix + ")"
	}
	return fmt.Errorf("%s %s: %w%s", verb, ref, err, fix)
}

func isURL(err error) bool {
	var u *url.Error
	return errors.As(err, &u)
}

func subresource(name string) bool { return strings.Contains(name, "/") }
