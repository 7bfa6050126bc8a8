package state_test

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
)

func ip(b []byte) string {
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

func prefix(b []byte) string {
	return fmt.Sprintf("%s/%d", ip(b[:len(b)-1]), b[len(b)-1])
}

// short gives an enum's word without its prefix.
func short(e fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(e.String(), prefix))
}

// render writes a resource for people.
func render(r *state.Resource) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", r.Name)
	switch c := r.Update.Content.(type) {
	case *wire.Update_Destination:
		renderDestination(&b, c.Destination)
	case *wire.Update_Inbound:
		renderInbound(&b, c.Inbound)
	case *wire.Update_Mesh:
		m := c.Mesh
		fmt.Fprintf(&b, "trust-domain=%s cluster-domain=%s access-log=%v excluded=%v cluster=", m.TrustDomain, m.ClusterDomain, m.AccessLog, m.ExcludedPorts)
		for i, p := range m.ClusterPrefixes {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(prefix(p))
		}
		b.WriteByte('\n')
	case *wire.Update_Bundles:
		for _, t := range c.Bundles.GetBundles() {
			fmt.Fprintf(&b, "%s roots=%d ", t.TrustDomain, len(t.Roots))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func renderDestination(b *strings.Builder, d *wire.Destination) {
	switch k := d.Kind.(type) {
	case *wire.Destination_External:
		b.WriteString("external\n")
	case *wire.Destination_Workload:
		b.WriteString("workload\n")
		renderPorts(b, k.Workload.Ports)
		renderEndpoint(b, k.Workload.Endpoint)
	case *wire.Destination_Service:
		s := k.Service
		fmt.Fprintf(b, "service %s/%s vips=", s.Namespace, s.Name)
		for i, v := range s.Vips {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(ip(v))
		}
		if s.InternalTrafficPolicy == wire.TrafficScope_TRAFFIC_SCOPE_LOCAL {
			b.WriteString(" internal=local")
		}
		if s.ExternalTrafficPolicy == wire.TrafficScope_TRAFFIC_SCOPE_LOCAL {
			b.WriteString(" external=local")
		}
		if s.TrafficDistribution != 0 {
			fmt.Fprintf(b, " distribution=%s", short(s.TrafficDistribution, "TRAFFIC_DISTRIBUTION_"))
		}
		if a := s.SessionAffinity; a != nil {
			fmt.Fprintf(b, " affinity=%ds", a.TimeoutSeconds)
		}
		if s.PublishNotReadyAddresses {
			b.WriteString(" publish-not-ready")
		}
		b.WriteByte('\n')
		renderPorts(b, s.Ports)
		for _, e := range s.Endpoints {
			renderEndpoint(b, e)
		}
	}
}

func renderPorts(b *strings.Builder, ports []*wire.ServicePort) {
	for _, p := range ports {
		fmt.Fprintf(b, "  port %d/%s %q %s", p.Port, short(p.Transport, "TRANSPORT_"), p.Name, short(p.Protocol, "PROTOCOL_"))
		if p.AppProtocol != "" {
			fmt.Fprintf(b, " app=%s", p.AppProtocol)
		}
		if p.NodePort != 0 {
			fmt.Fprintf(b, " node-port=%d", p.NodePort)
		}
		b.WriteByte('\n')
		if t := p.TrafficPolicy; t != nil {
			fmt.Fprintf(b, "    traffic %s\n", t.Source)
			renderTraffic(b, t)
		}
	}
}

func nanos(d *wire.Duration) time.Duration { return time.Duration(d.GetNanos()) }

func renderTraffic(b *strings.Builder, t *wire.TrafficPolicy) {
	if r := t.Retry; r != nil {
		fmt.Fprintf(b, "    retry attempts=%d on=%v codes=%v methods=%v per-try=%s backoff=%s..%s budget=%v+%d/s body=%d\n", r.Attempts, r.On,
			r.StatusCodes, r.Methods, nanos(r.PerTryTimeout), nanos(r.BackoffBase), nanos(r.BackoffMax), r.BudgetRatio, r.BudgetMinPerSecond, r.MaxBodyBytes)
	}
	if o := t.Timeouts; o != nil {
		fmt.Fprintf(b, "    timeouts request=%s connect=%s idle=%s\n", nanos(o.Request), nanos(o.Connect), nanos(o.Idle))
	}
	if c := t.CircuitBreaker; c != nil {
		fmt.Fprintf(b, "    breaker connections=%d pending=%d requests=%d\n", c.MaxConnections, c.MaxPending, c.MaxRequests)
	}
	if e := t.OutlierEjection; e != nil {
		fmt.Fprintf(b, "    ejection failures=%d for=%s..%s percent=%d\n", e.ConsecutiveFailures, nanos(e.BaseEjection), nanos(e.MaxEjection), e.MaxEjectedPercent)
	}
}

func renderEndpoint(b *strings.Builder, e *wire.Endpoint) {
	fmt.Fprintf(b, "  endpoint %s %v", ip(e.Address), e.Ports)
	for _, f := range []struct {
		on   bool
		name string
	}{{e.Ready, "ready"}, {e.Serving, "serving"}, {e.Terminating, "terminating"}} {
		if f.on {
			b.WriteString(" " + f.name)
		}
	}
	for _, f := range []struct{ name, value string }{
		{"node", e.Node}, {"zone", e.Zone}, {"pod", e.Namespace + "/" + e.Pod}, {"workload", e.Workload},
		{"hint-zones", strings.Join(e.HintZones, ",")}, {"hint-nodes", strings.Join(e.HintNodes, ",")},
	} {
		if f.value != "" && f.value != "/" {
			fmt.Fprintf(b, " %s=%s", f.name, f.value)
		}
	}
	if p := e.Peer; p != nil {
		fmt.Fprintf(b, " peer=%s", p.Identity)
		if len(p.BypassPorts) > 0 {
			fmt.Fprintf(b, " bypass=%v", p.BypassPorts)
		}
	}
	if len(e.Key) != len(e.Address) {
		fmt.Fprintf(b, " key=%x", e.Key)
	}
	b.WriteByte('\n')
}

func renderInbound(b *strings.Builder, p *wire.InboundPolicy) {
	fmt.Fprintf(b, "pod=%s/%s node=%s zone=%s mode=%s selected=%v\n", p.Namespace, p.Pod, p.Node, p.Zone, short(p.Mode, "MTLS_MODE_"), p.Selected)
	for _, pp := range p.Ports {
		fmt.Fprintf(b, "  port %d mode=%s\n", pp.Port, short(pp.Mode, "MTLS_MODE_"))
	}
	for _, r := range p.Rules {
		fmt.Fprintf(b, "  rule %s %s identities=%v namespaces=%v ports=%v cidrs=", r.Source, short(r.Action, "ACTION_"), r.Identities, r.Namespaces, r.Ports)
		for _, c := range r.Prefixes {
			b.WriteString(prefix(c) + " ")
		}
		b.WriteByte('\n')
	}
	for _, pr := range p.Probes {
		fmt.Fprintf(b, "  probe %d %s\n", pr.Port, pr.Path)
	}
	for _, a := range p.NodeAddresses {
		fmt.Fprintf(b, "  node-address %s\n", ip(a))
	}
	for _, s := range p.Broken {
		fmt.Fprintf(b, "  broken %s\n", s)
	}
	renderPorts(b, p.Protocols)
}
