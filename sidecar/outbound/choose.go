package outbound

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/balance"
	"github.com/heddle-mesh/heddle/sidecar/http1"
)

// tried are the endpoints that a request or connection has met. Those that are
// to be avoided only come again when no other is left; the others never do.
type tried struct {
	list    [2 * maxTries]*balance.Endpoint
	avoided [2 * maxTries]bool
	n       int
}

func (t *tried) all() []*balance.Endpoint { return t.list[:t.n] }

// refused counts those that are not only avoided.
func (t *tried) refused() (n int) {
	for _, avoided := range t.avoided[:t.n] {
		if !avoided {
			n++
		}
	}
	return n
}

func (t *tried) add(ep *balance.Endpoint, avoid bool) {
	if t.n == len(t.list) {
		t.forgive()
	}
	if t.n < len(t.list) {
		t.list[t.n], t.avoided[t.n] = ep, avoid
		t.n++
	}
}

// forgive forgets those that are only avoided; false: there were none.
func (t *tried) forgive() bool {
	n := 0
	for i := range t.n {
		if !t.avoided[i] {
			t.list[n], t.avoided[n] = t.list[i], false
			n++
		}
	}
	some := n < t.n
	t.n = n
	return some
}

// pick chooses among the endpoints of the newest version that were not tried.
func (s *session) pick(ctx context.Context) (*balance.Endpoint, error) {
	s.load()
	if s.port == nil {
		return nil, faultNoSuchPort
	}
	ep, reason := s.choose()
	if ep == nil && reason == telemetry.ReasonConnectFailed && s.awaitNews(ctx) {
		ep, reason = s.choose()
	}
	if ep == nil {
		return nil, faultOf(reason)
	}
	if ep.State.Readmitted() {
		s.p.c.Log.Info("endpoint takes part again after its ejection", "service", serviceName(s.dest), "endpoint", ep.Addr.String(), "pod", ep.Pod)
	}
	return ep, nil
}

// choose prefers what was not tried, then what is to be avoided, before what is
// ejected.
func (s *session) choose() (*balance.Endpoint, telemetry.Reason) {
	ep, reason := s.port.Pick(s.tried.all())
	if s.tried.n > 0 && (ep == nil || s.port.IsEjected(ep)) && s.tried.forgive() {
		return s.port.Pick(s.tried.all())
	}
	return ep, reason
}

// awaitNews waits, once for a request or connection, for endpoints that were
// not tried; false: there is no news. A Service whose last known endpoint has
// just gone often has a successor already, of which we are about to hear, and
// nothing was sent to anybody yet.
func (s *session) awaitNews(ctx context.Context) bool {
	if s.waited || s.dest.Kind != balance.Service {
		return false
	}
	s.waited = true
	end := time.NewTimer(newsWait)
	defer end.Stop()
	for was := s.dest; ; {
		changed := s.entry.Changed()
		if s.load() == was {
			select {
			case <-ctx.Done():
				return false
			case <-end.C:
				return false
			case <-changed:
			}
			continue
		}
		if was = s.dest; s.port == nil {
			return false
		}
		if ep, _ := s.choose(); ep != nil {
			return true
		}
	}
}

// failed notes that an endpoint could not be connected to; the error is for
// when that was the last try.
func (s *session) failed(ctx context.Context, ep *balance.Endpoint, err error, deadline time.Time) error {
	reason := reasonOf(err)
	ep.State.End(0, true)
	s.p.c.Log.Info("endpoint did not take a connection", "service", serviceName(s.dest),
		"endpoint", ep.Addr.String(), "pod", ep.Pod, "reason", string(reason), "err", err)
	if reason != telemetry.ReasonAccessDenied && reason != telemetry.ReasonDraining && ctx.Err() == nil {
		s.report(ep, true)
	}
	s.tried.add(ep, false)
	if s.tried.refused() < maxTries && ctx.Err() == nil && time.Now().Before(deadline) {
		// Who is refused by policy is so at the next endpoint that appears, too.
		if next, _ := s.choose(); next != nil || reason != telemetry.ReasonAccessDenied && s.awaitNews(ctx) {
			return nil
		}
	}
	s.tried.n = 0 // a retry begins anew
	f := *faultOf(reason)
	f.Detail += ": " + err.Error()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		f.Status = 504
	}
	return &f
}

// report tells how an endpoint fared, and of an ejection if that follows.
func (s *session) report(ep *balance.Endpoint, failed bool) {
	if long := s.port.Report(ep.State, failed); long > 0 {
		s.p.c.Metrics.Ejected(serviceName(s.dest))
		s.p.c.Log.Warn("endpoint ejected: it kept failing", "service", serviceName(s.dest), "endpoint", ep.Addr.String(), "pod", ep.Pod, "for", long)
	}
}

// Faults of requests and connections that found no endpoint.
var faults = map[telemetry.Reason]*http1.Fault{
	telemetry.ReasonNoEndpoints:        {Status: 503, Detail: "the Service has no ready endpoint"},
	telemetry.ReasonNoLocalEndpoints:   {Status: 503, Detail: "the Service has no ready endpoint on this node and its traffic policy is Local"},
	telemetry.ReasonConnectFailed:      {Status: 503, Detail: "no endpoint took the connection"},
	telemetry.ReasonTooManyConnections: {Status: 503, Detail: "too many connections"},
	telemetry.ReasonCircuitOpen:        {Status: 503, Detail: "the circuit breaker is open"},
	telemetry.ReasonDraining:           {Status: 503, Detail: "the endpoint is going away"},
	telemetry.ReasonAccessDenied:       {Status: 403, Detail: "the endpoint's policy refuses this workload"},
	telemetry.ReasonIdentityMismatch:   {Status: 502, Detail: "the endpoint is not who it should be"},
	telemetry.ReasonCertificateExpired: {Status: 502, Detail: "a certificate is out of date"},
	telemetry.ReasonCertificateUnknown: {Status: 502, Detail: "a certificate is of no trusted root"},
	telemetry.ReasonNoIdentity:         {Status: 502, Detail: "this workload has no certificate"},
}

var faultNoSuchPort = &http1.Fault{Status: 503, Reason: telemetry.ReasonNoSuchPort, Detail: "the Service has no such port, or is no more"}

func faultOf(r telemetry.Reason) *http1.Fault {
	if f := faults[r]; f != nil {
		return &http1.Fault{Status: f.Status, Reason: r, Detail: f.Detail}
	}
	return &http1.Fault{Status: 502, Reason: r, Detail: "the endpoint could not be reached"}
}
