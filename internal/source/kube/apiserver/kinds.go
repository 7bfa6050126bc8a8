package apiserver

import (
	"net/url"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
)

// Kind is one that a snapshot is made of.
type Kind struct {
	Name, Group string
	Versions    []string // that we can read, the best first; only one if not optional
	Plural      string
	Cluster     bool // cluster-scoped
	// Optional kinds come and go with their CRDs, or with the API server's
	// version.
	Optional bool
}

const gateway = "gateway.networking.k8s.io"

// Catalogue is all that a snapshot is made of.
func Catalogue() []Kind {
	return []Kind{
		{Name: "Namespace", Versions: []string{"v1"}, Plural: "namespaces", Cluster: true},
		{Name: "Node", Versions: []string{"v1"}, Plural: "nodes", Cluster: true},
		{Name: "Pod", Versions: []string{"v1"}, Plural: "pods"},
		{Name: "Service", Versions: []string{"v1"}, Plural: "services"},
		{Name: "ServiceAccount", Versions: []string{"v1"}, Plural: "serviceaccounts"},
		{Name: "EndpointSlice", Group: "discovery.k8s.io", Versions: []string{"v1"}, Plural: "endpointslices"},
		{Name: "ServiceCIDR", Group: "networking.k8s.io", Versions: []string{"v1"}, Plural: "servicecidrs", Cluster: true, Optional: true},
		{Name: "MeshConfig", Group: v1alpha1.Group, Versions: []string{"v1alpha1"}, Plural: "meshconfigs", Cluster: true, Optional: true},
		{Name: "AccessPolicy", Group: v1alpha1.Group, Versions: []string{"v1alpha1"}, Plural: "accesspolicies", Optional: true},
		{Name: "TrafficPolicy", Group: v1alpha1.Group, Versions: []string{"v1alpha1"}, Plural: "trafficpolicies", Optional: true},
		{Name: "HTTPRoute", Group: gateway, Versions: []string{"v1", "v1beta1"}, Plural: "httproutes", Optional: true},
		{Name: "GRPCRoute", Group: gateway, Versions: []string{"v1"}, Plural: "grpcroutes", Optional: true},
		{Name: "TCPRoute", Group: gateway, Versions: []string{"v1", "v1alpha2"}, Plural: "tcproutes", Optional: true},
		{Name: "TLSRoute", Group: gateway, Versions: []string{"v1", "v1alpha3", "v1alpha2"}, Plural: "tlsroutes", Optional: true},
	}
}

// Find gives a kind by its name.
func Find(name string) (Kind, bool) {
	for _, k := range Catalogue() {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// APIVersion is the one that is spoken: of Versions the first.
func (k Kind) APIVersion() string {
	if k.Group == "" {
		return k.Versions[0]
	}
	return k.Group + "/" + k.Versions[0]
}

// Path of all objects, or of one.
func (k Kind) Path(namespace, name string) string {
	p := "/apis/" + k.APIVersion()
	if k.Group == "" {
		p = "/api/" + k.APIVersion()
	}
	if !k.Cluster && name != "" {
		p += "/namespaces/" + url.PathEscape(namespace)
	}
	p += "/" + k.Plural
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	return p
}
