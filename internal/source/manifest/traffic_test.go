package manifest

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
)

func TestTrafficPolicyValidate(t *testing.T) {
	const target = "targetRefs: [{name: a}]\n"
	for _, tt := range []struct{ name, spec, want string }{
		{"all", target + "retry: {attempts: 2, when: [connect, reset, 5xx, gateway], statusCodes: [503], methods: [GET, POST], perTryTimeout: 1s, backoff: {base: 25ms, max: 250ms}, budget: {ratio: 0.2, minPerSecond: 10}, maxBodyBytes: 65536}\ntimeouts: {request: 2s, connect: 1s, idle: 60s}\ncircuitBreaker: {maxConnections: 100, maxPending: 0, maxRequests: 200}\noutlierEjection: {consecutiveFailures: 5, baseEjection: 30s, maxEjection: 300s, maxEjectedPercent: 100}", ""},
		{"defaults", target + "retry: {attempts: 0}\noutlierEjection: {}", ""},
		{"nothing", target, "spec: says nothing"},
		{"no target", "retry: {attempts: 1}", "spec.targetRefs: is empty"},
		{"bad target", "targetRefs: [{name: '', port: 0}]\nretry: {attempts: 1}", "spec.targetRefs[0].name: is empty|spec.targetRefs[0].port: 0 is no port"},
		{"attempts", target + "retry: {attempts: 11}", "spec.retry.attempts: 11 is out of bounds"},
		{"when", target + "retry: {attempts: 1, when: [never]}", `spec.retry.when[0]: "never" is no cause`},
		{"status", target + "retry: {attempts: 1, statusCodes: [200, 600]}", "spec.retry.statusCodes[0]: 200 is no failure|spec.retry.statusCodes[1]: 600 is no failure"},
		{"method", target + "retry: {attempts: 1, methods: [get, '']}", `spec.retry.methods[0]: "get" is no method|spec.retry.methods[1]: "" is no method`},
		{"per try", target + "retry: {attempts: 1, perTryTimeout: 0s}", "spec.retry.perTryTimeout: 0s is out of bounds"},
		{"per try above all", target + "retry: {attempts: 1, perTryTimeout: 3s}\ntimeouts: {request: 2s}", "spec.retry.perTryTimeout: 3s is longer than timeouts.request, 2s"},
		{"backoff", target + "retry: {attempts: 1, backoff: {base: 1s}}", "spec.retry.backoff.max: 250ms is below the base, 1s"},
		{"ratio", target + "retry: {attempts: 1, budget: {ratio: 20}}", "spec.retry.budget.ratio: 20 is no share"},
		{"body", target + "retry: {attempts: 1, maxBodyBytes: 1048577}", "spec.retry.maxBodyBytes: 1048577 is out of bounds"},
		{"timeouts", target + "timeouts: {request: 25h, connect: 1us, idle: 10ms}", "spec.timeouts.request: 25h0m0s is out of bounds|spec.timeouts.connect: 1µs is out of bounds|spec.timeouts.idle: 10ms is below a second"},
		{"empty timeouts", target + "timeouts: {}", "spec.timeouts: says nothing"},
		{"empty breaker", target + "circuitBreaker: {}", "spec.circuitBreaker: says nothing"},
		{"pending alone", target + "circuitBreaker: {maxPending: 1}", "spec.circuitBreaker.maxPending: means nothing by itself"},
		{"pending without connections", target + "circuitBreaker: {maxPending: 1, maxRequests: 1}", "spec.circuitBreaker.maxPending: means nothing without maxConnections"},
		{"breaker of nothing", target + "circuitBreaker: {maxConnections: 0, maxRequests: 0}", "spec.circuitBreaker.maxConnections: 0 is out of bounds|spec.circuitBreaker.maxRequests: 0 is out of bounds"},
		{"ejection", target + "outlierEjection: {consecutiveFailures: 0, baseEjection: 10m, maxEjectedPercent: 101}", "spec.outlierEjection.consecutiveFailures: 0 is out of bounds|spec.outlierEjection.maxEjection: 5m0s is below the base, 10m0s|spec.outlierEjection.maxEjectedPercent: 101 is out of bounds"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p v1alpha1.TrafficPolicy
			if err := yaml.UnmarshalStrict([]byte(tt.spec), &p.Spec); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range p.Validate() {
				if e.Fix == "" {
					t.Errorf("%s: no fix", e)
				}
				got = append(got, e.Field+": "+e.Err)
			}
			if strings.Join(got, "|") != tt.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "|"), tt.want)
			}
		})
	}
}

// Whatever the schema lets through, validation neither panics nor lets a
// duration or count through that has no bound.
func FuzzTrafficPolicyValidate(f *testing.F) {
	f.Add(`{"targetRefs":[{"name":"a"}],"retry":{"attempts":2,"when":["5xx"],"backoff":{"base":"1s","max":"2s"}}}`)
	f.Add(`{"targetRefs":[{"name":"a","port":80}],"circuitBreaker":{"maxConnections":1},"timeouts":{"request":"-1s"}}`)
	f.Add(`{"outlierEjection":{"maxEjectedPercent":4294967295,"baseEjection":"9999h"}}`)
	f.Fuzz(func(t *testing.T, spec string) {
		p := v1alpha1.TrafficPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		if yaml.Unmarshal([]byte(spec), &p.Spec) != nil || len(p.Validate()) > 0 {
			return
		}
		if r := p.Spec.Retry; r != nil && (r.Attempts > 10 || r.PerTryTimeout != nil && r.PerTryTimeout.Duration > 24*time.Hour) {
			t.Errorf("accepted %+v", r)
		}
		if e := p.Spec.OutlierEjection; e != nil && e.MaxEjectedPercent != nil && *e.MaxEjectedPercent > 100 {
			t.Errorf("accepted %+v", e)
		}
	})
}
