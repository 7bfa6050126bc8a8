package v1alpha1

import (
	"math"
	"strings"
	"testing"
)

func TestTracingSettings(t *testing.T) {
	for _, tt := range []struct {
		collector string
		sampling  float64
		want      string // field of the mistake; "": none
	}{
		{"", 0, ""}, {"", 1, ""},
		{"jaeger.observability:4317", 0.01, ""}, {"10.0.0.1:4317", 0, ""}, {"[fd00::1]:4317", 0, ""},
		{"http://jaeger:4317", 0, "traceCollector"}, {"jaeger", 0, "traceCollector"}, {"jaeger:otlp", 0, "traceCollector"},
		{"jaeger:0", 0, "traceCollector"}, {"jaeger:65536", 0, "traceCollector"}, {":4317", 0, "traceCollector"},
		{"fd00::1:4317", 0, "traceCollector"}, {"[10.0.0.1]:4317", 0, "traceCollector"}, {"[fd00::1%eth0]:4317", 0, "traceCollector"},
		{"jaeger:4317/v1/traces", 0, "traceCollector"}, {"two jaegers:4317", 0, "traceCollector"}, {strings.Repeat("a", 254) + ":1", 0, "traceCollector"},
		{"", -0.1, "traceSampling"}, {"", 1.1, "traceSampling"}, {"", math.NaN(), "traceSampling"},
	} {
		m := MeshConfig{Spec: MeshConfigSpec{TraceCollector: tt.collector, TraceSampling: tt.sampling}}
		m.Name = "default"
		got := m.Validate()
		switch {
		case tt.want == "" && len(got) > 0, tt.want != "" && (len(got) != 1 || got[0].Field != "spec."+tt.want || got[0].Fix == ""):
			t.Errorf("%q, %v: mistakes %v, want %q", tt.collector, tt.sampling, got, tt.want)
		}
	}
}
