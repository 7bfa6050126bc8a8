package programs

// Versions of everything that is not ours. A change of one makes what depends
// on it anew, and nothing else.
const (
	Kubernetes = "1.36.3"
	etcd       = "3.6.16"
	containerd = "2.4.2"
	coreDNS    = "1.14.7"
	criTools   = "1.34.0"
	kind       = "0.33.0"
	Jaeger     = "1.76.0"
	// debian is the suite of the nodes' root file system.
	debian = "bookworm"

	// CoreDNSTag, EtcdTag and PauseTag are the image tags that kubeadm and
	// kind's containerd configuration of these versions ask for; the programs
	// inside are ours to choose. (`kubeadm config images list` tells.)
	CoreDNSTag = "v1.14.2"
	EtcdTag    = "3.6.8-0"
	PauseTag   = "3.10"

	// StockNode is the node image that this kind was released with
	// (kind, pkg/apis/config/defaults/image.go).
	StockNode = "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
)

// nodePackages are Debian's packages in a node: what kubelet, kind's entry
// script and the pod network call, and what a person wants when looking around.
var nodePackages = []string{
	"systemd", "systemd-sysv", "mount", "kmod", "procps", "bash", "ca-certificates", "hostname", "libseccomp2", "runc",
	"iproute2", "iptables", "nftables", "ebtables", "conntrack", "ethtool", "socat", "ipset", "containernetworking-plugins",
	"jq", "curl", "wget", "tcpdump", "netcat-openbsd", "dnsutils",
}

// staging are the libraries that Kubernetes' go.mod names with version v0.0.0,
// because they are in its own tree; each is replaced by the release of the same
// number. It is the list of k8s.io/kubernetes/staging/src/k8s.io.
var staging = []string{
	"api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go", "cloud-provider",
	"cluster-bootstrap", "code-generator", "component-base", "component-helpers", "controller-manager", "cri-api",
	"cri-client", "cri-streaming", "csi-translation-lib", "dynamic-resource-allocation", "endpointslice", "externaljwt",
	"kms", "kube-aggregator", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet", "metrics",
	"mount-utils", "pod-security-admission", "sample-apiserver", "sample-cli-plugin", "sample-controller", "streaming",
}
