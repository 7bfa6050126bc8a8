package sidecar

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/internal/telemetry/spans"
	"github.com/heddle-mesh/heddle/sidecar/trace"
)

// startTracing makes the tracer and what sends its spans; both are off until
// the mesh's settings name a collector.
func (s *sidecar) startTracing(registry *telemetry.Registry) {
	s.spans = spans.New(spans.Config{Resource: resource(s.c), Version: s.c.Version, Dial: s.dialCollector, Log: s.log})
	s.tracer = trace.New(s.spans.Offer)
	registry.Register(s.spans.Collectors()...)
}

// newSettings takes the mesh's settings.
func (s *sidecar) newSettings(m *wire.MeshSettings) {
	collector := m.GetTraceCollector()
	s.spans.SetCollector(collector)
	s.tracer.Set(collector != "", m.GetTraceSampleRatio())
}

// dialCollector goes the way of the pod's own traffic, which a collector's
// Service and its policy expect; the name is the pod's to resolve.
func (s *sidecar) dialCollector(ctx context.Context, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		var c net.Conn
		if c, err = s.out.Dial(ctx, netip.AddrPortFrom(a.Unmap(), uint16(n))); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// resource says whose the spans are.
func resource(c Config) spans.Resource {
	service := c.Service
	if service == "" {
		service = workload(c.Pod)
	}
	return spans.Resource{Service: service, ServiceVersion: c.ServiceVersion,
		Namespace: c.Namespace, Pod: c.Pod, PodUID: c.PodUID, Node: c.Node}
}

// workload takes off a pod's name what Deployments ("-7d9f8b6c5-x2k4q"),
// DaemonSets and Jobs ("-x2k4q") and StatefulSets ("-0") append.
func workload(pod string) string {
	name, last, ok := cutLast(pod)
	switch {
	case !ok:
		return pod
	case isNumber(last):
		return name
	case !isRandom(last, 5, 5):
		return pod
	}
	if owner, hash, ok := cutLast(name); ok && isRandom(hash, 8, 10) {
		return owner
	}
	return name
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '-')
	if i <= 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// isRandom tells the letters of Kubernetes' random suffixes, which make no
// words.
func isRandom(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && strings.Trim(s, "bcdfghjklmnpqrstvwxz2456789") == ""
}
