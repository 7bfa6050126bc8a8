package sidecar

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-mesh/heddle/sidecar/balance"
)

// inForce is one destination as /debug/config shows it.
type inForce struct {
	Address netip.Addr
	Service string // namespace/name, of a pod's own address the pod's
	Ports   []portInForce
}

// portInForce is one port, with what a TrafficPolicy says of it and what counts
// against it now.
type portInForce struct {
	Port, Endpoints, Ejected       int
	Protocol                       string
	Requests, Connections, Waiting int64
	Source                         string `json:",omitempty"` // of the policy; empty: nothing says anything
	Retry                          string // "2 on connect, reset, gateway; ..."
	Request, Connect, Idle         string `json:",omitempty"`
	MaxConnections, MaxPending     int64  `json:",omitempty"`
	MaxRequests                    int64  `json:",omitempty"`
	EjectAfter                     int32  `json:",omitempty"` // failures in a row
	BaseEjection, MaxEjection      string `json:",omitempty"`
	MaxEjectedPercent              int    `json:",omitempty"`
}

// config is what is in force for each Service that the pod's programs have
// called lately.
func (s *sidecar) config() any {
	out := []inForce{}
	s.control.Each(func(addr netip.Addr, d *balance.Destination) {
		if d.Kind != balance.Service {
			return
		}
		f := inForce{Address: addr, Service: d.Namespace + "/" + d.Name}
		d.Ports(func(p *balance.Port) { f.Ports = append(f.Ports, describe(p)) })
		slices.SortFunc(f.Ports, func(a, b portInForce) int { return cmp.Compare(a.Port, b.Port) })
		out = append(out, f)
	})
	slices.SortFunc(out, func(a, b inForce) int { return a.Address.Compare(b.Address) })
	return out
}

func describe(p *balance.Port) portInForce {
	o := p.Policy
	out := portInForce{
		Port: int(p.Number), Endpoints: len(p.Endpoints()), Ejected: p.Ejected(), Protocol: p.Protocol.String(),
		Source: o.Source, Retry: o.Retry.String(), MaxConnections: o.Limits.Connections, MaxPending: o.Limits.Pending, MaxRequests: o.Limits.Requests,
	}
	out.Requests, out.Connections, out.Waiting = p.Breaker().Load()
	if o.Request > 0 {
		out.Request = o.Request.String()
	}
	if o.Connect > 0 {
		out.Connect = o.Connect.String()
	}
	if o.Idle > 0 {
		out.Idle = o.Idle.String()
	}
	if e := o.Ejection; e.Failures > 0 {
		out.EjectAfter, out.MaxEjectedPercent = e.Failures, e.Percent
		out.BaseEjection, out.MaxEjection = e.Base.String(), e.Max.String()
	}
	return out
}

// ejected shows, at each scrape, how many endpoints are ejected.
type ejected struct {
	s    *sidecar
	desc *prometheus.Desc
}

func newEjected(s *sidecar) *ejected {
	return &ejected{s, prometheus.NewDesc("heddle_ejected_endpoints", "Endpoints left out now because they kept failing.", []string{"service", "address", "port"}, nil)}
}

// Describe gives the one metric.
func (e *ejected) Describe(out chan<- *prometheus.Desc) { out <- e.desc }

// Collect counts, where a policy ejects.
func (e *ejected) Collect(out chan<- prometheus.Metric) {
	e.s.control.Each(func(addr netip.Addr, d *balance.Destination) {
		d.Ports(func(p *balance.Port) {
			if p.Policy.Ejection.Failures > 0 {
				out <- prometheus.MustNewConstMetric(e.desc, prometheus.GaugeValue, float64(p.Ejected()),
					d.Namespace+"/"+d.Name, addr.String(), strconv.Itoa(int(p.Number)))
			}
		})
	})
}
