package arch

// House is the law of this repository. Edit it on purpose: each row says why,
// and a new row of Doors needs a line in docs/dependencies.md.
func House() Rules {
	return Rules{
		Module:      "github.com/heddle-mesh/heddle",
		Levels:      levels,
		Doors:       doors,
		CrossTests:  crossTests,
		Binaries:    binaries,
		PureForbids: []string{"os", "os/exec", "net", "net/http", "syscall", "log", "log/slog"},
	}
}

var levels = []Level{
	{"api", API, "data only: kinds, and the wire's messages"},

	{"internal/policy", Pure, "who may call what"},
	{"internal/route", Pure, "which rule a request matches"},
	{"internal/endpoint", Pure, "which endpoints a client may reach"},
	{"internal/packet", Pure, "reading packets"},
	{"internal/redirect", Pure, "which connections go through the sidecar"},

	{"internal/identity", Machinery, "certificates at hand, TLS configurations"},
	{"internal/wire", Machinery, "door to grpc and protobuf"},
	{"internal/control", Machinery, "the peer's side of the wire: identity, stream, what is held"},
	{"internal/source", Machinery, "door to Kubernetes, or to a folder"},
	{"internal/netfilter", Machinery, "door to the kernel's packet filter"},
	{"internal/run", Machinery, "start and end of programs"},
	{"internal/telemetry", Machinery, "door to metrics, logs, traces"},

	{"controlplane", Tower, "the control plane"},
	{"controlplane/node", Tower, "the node agent: another program, fed by the wire only"},
	{"sidecar", Tower, "the sidecar"},
	{"injector", Tower, "the injector"},

	{"internal/lab", Bench, "runs our real programs and talks to them as a cluster would, so it imports none"},
	{"internal/meshtest", Bench, "test support"},
	{"internal/arch", Bench, "this law"},

	{"cmd", Program, "flags to Config to Run"},
	{"e2e", Program, "applications, demo, behaviours, benchmarks"},
	{"charts", API, "the chart, embedded"},
}

var doors = []Door{
	{"google.golang.org/grpc", []string{"api/wire", "internal/wire", "internal/telemetry/spans", "internal/meshtest/collector"}, false, "grpc stays off the request path and can be replaced in one room; the SDK's exporter is given dial options"},
	{"google.golang.org/protobuf", []string{"api/wire", "internal/wire"}, false, "marshalling, cloning and comparing messages has one owner"},
	{"github.com/spiffe/go-spiffe", []string{"internal/identity", "controlplane/ca"}, false, "certificates live in our own atomic snapshot; its X509Source races on rotation"},
	{"github.com/spiffe/go-spiffe/v2/spiffeid", nil, true, "a value: an ID that exists is valid"},
	{"github.com/google/nftables", []string{"internal/netfilter"}, false, "one room writes rules"},
	{"github.com/mdlayher/netlink", []string{"internal/netfilter"}, false, "socket options for google/nftables, and ctnetlink to forget redirected connections"},
	{"github.com/vishvananda/netlink", []string{"internal/lab", "internal/meshtest"}, false, "the product never makes links or routes; the lab does"},
	{"github.com/vishvananda/netns", []string{"internal/lab", "internal/meshtest"}, false, "the product never makes namespaces; the lab does"},
	{"github.com/prometheus/client_golang", []string{"internal/telemetry"}, false, "one registry"},
	{"github.com/prometheus/client_golang/prometheus", []string{"internal/telemetry", "internal/control", "controlplane", "sidecar", "injector", "internal/lab", "cmd"}, true, "metric vectors are made where they count"},
	{"github.com/prometheus/client_golang/prometheus/promhttp", []string{"internal/telemetry"}, false, "one registry, one way to serve it"},
	{"github.com/prometheus/client_golang/prometheus/testutil", []string{"internal/telemetry"}, true, "tests read metrics"},
	{"github.com/go-jose/go-jose", []string{"internal/source", "internal/lab"}, true, "tokens are read by the source and signed by the lab"},
	{"k8s.io", []string{"api/v1alpha1", "internal/source", "internal/lab", "injector", "cmd/heddle"}, false, "its types cost megabytes and start-up time; the sidecar must never link them"},
	{"k8s.io/apimachinery/pkg/apis/meta/v1", []string{"api/v1alpha1", "internal/source", "internal/lab", "injector", "cmd/heddle", "controlplane/status"}, true, "our kinds carry its metadata and conditions, so who writes status, and tests that build them, name it; the sidecar never links it"},
	{"k8s.io/client-go", []string{"internal/source", "cmd/heddle"}, false, "one room talks to the API server; the CLI finds it by kubeconfig"},
	{"helm.sh/helm/v4", []string{"cmd/heddle"}, false, "only the CLI renders the chart"},
	{"go.opentelemetry.io/otel", []string{"internal/telemetry"}, false, "the SDK allocates; what the request path holds is ours, and its names come from internal/telemetry/spans/key"},
	{"go.opentelemetry.io/proto/otlp", []string{"internal/meshtest/collector", "e2e"}, true, "OTLP's messages, for collectors of tests; spans leave by the SDK"},
	{"sigs.k8s.io/yaml", []string{"internal/source", "internal/lab", "internal/meshtest", "injector", "cmd/heddle"}, false, "manifests are read where Kubernetes types are"},
	{"github.com/miekg/dns", []string{"internal/lab"}, false, "only the lab serves names; the product leaves DNS alone"},
	{"github.com/spf13/cobra", []string{"cmd/heddle"}, false, "one program has subcommands for people"},
	{"github.com/spf13/pflag", []string{"cmd/heddle"}, false, "comes with cobra"},
	{"github.com/fsnotify/fsnotify", []string{"internal/source", "internal/lab"}, false, "folders of manifests are watched where they are read"},
	{"github.com/google/go-cmp", nil, true, "differences in tests"},
	{"golang.org/x/sys", nil, true, "system calls Go's library leaves out; an extension of it"},
	{"golang.org/x/net", []string{"internal/wire", "internal/lab", "internal/meshtest", "sidecar", "e2e"}, true, "HTTP/2 frames and ICMP"},
	{"golang.org/x/sync", nil, true, "an extension of Go's library"},
}

// crossTests are the tests that need two towers at once.
var crossTests = []CrossTest{
	{"controlplane/node/nft", "internal/lab/fabric", "rules are proven by real packets between the lab's nodes and pods"},
}

var binaries = []Binary{
	{"cmd/heddle-sidecar", "k8s.io", "the sidecar stays small: no Kubernetes types"},
	{"sidecar", "k8s.io", "the sidecar stays small: no Kubernetes types"},
	{"cmd/heddle-node", "k8s.io/client-go", "the node agent is fed by the wire"},
	{"cmd/heddle-controlplane", "github.com/spf13/cobra", "programs that run in the cluster have plain flags"},
	{"cmd/heddle-injector", "google.golang.org/grpc", "the injector does not speak the wire"},
}

// folders that may stand at the top of the repository.
var topFolders = map[string]string{
	"cmd": "programs", "api": "data", "controlplane": "tower", "sidecar": "tower", "injector": "tower",
	"internal": "everything else in Go", "charts": "Helm", "e2e": "applications, demo, behaviours", "docs": "pages",
	"bin": "what make build makes; not in git",
}

// badNames say nothing of what is inside; things gather there.
var badNames = map[string]bool{
	"util": true, "utils": true, "common": true, "helper": true, "helpers": true, "model": true, "models": true,
	"types": true, "manager": true, "managers": true, "base": true, "misc": true, "shared": true,
}

// Limits of size; over one means a talk, and then a row here with its outcome.
const (
	maxFileLines = 500  // one screenful of outline
	maxRoomLines = 1500 // what a person holds in mind
)

// sizeExceptions are files and folders that may be larger.
var sizeExceptions = map[string]string{}

// initExceptions and sleepExceptions are files that may have init functions,
// or call time.Sleep outside tests.
var (
	initExceptions  = map[string]string{}
	sleepExceptions = map[string]string{
		"e2e": "applications play slow servers",
	}
)

// skipFolders may call t.Skip: they probe the host first.
var skipFolders = map[string]string{
	"internal/meshtest": "skips rest on a probe and are counted",
}

// notYet are folders that are not judged, and why.
var notYet = map[string]string{}
