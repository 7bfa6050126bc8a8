package sidecar_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/balance"
	"github.com/heddle-mesh/heddle/sidecar/flow"
)

// A Service that is no more while a client's connection is open: its next
// request is refused, and served again once there is one.
func TestServiceVanishes(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{}, newShop(always(200)).serve)
	c := m.client(nil, http1, s.endpoint())
	k := c.keep()
	for i, want := range []int{200, 503, 503, 200} {
		if want == 503 {
			c.entry.d.Store(balance.Compile(c.entry.Load(), &wire.Destination{Kind: &wire.Destination_External{External: &wire.External{}}}, balance.Self{}))
		} else {
			c.entry.set(http1, s.endpoint())
		}
		status, h, err := k.ask("GET", "/", "")
		if err != nil || status != want || want == 503 && h.Get("X-Heddle-Reason") != "no_such_port" {
			t.Fatalf("request %d: %d %v %v", i, status, h, err)
		}
	}
}

// All connections that may be open are idle ones to an endpoint that is not
// asked any more: they make room at once.
func TestBreakerMakesRoom(t *testing.T) {
	for _, tt := range []string{"not ready", "ejected"} {
		t.Run(tt, func(t *testing.T) {
			m := newMesh(t)
			bad, good := newShop(func(id string, _ int) int {
				if id == "/bad" {
					return 503
				}
				return 200
			}), newShop(always(200))
			s1 := m.serve(serverConfig{pod: "10.0.0.2:80"}, bad.serve)
			s2 := m.serve(serverConfig{pod: "10.0.0.3:80"}, good.serve)
			c := m.client(nil, http1)
			rule := &wire.TrafficPolicy{
				CircuitBreaker:  &wire.CircuitBreaker{MaxConnections: 1, MaxPending: 5},
				OutlierEjection: &wire.OutlierEjection{ConsecutiveFailures: 1, BaseEjection: nanos(time.Minute), MaxEjection: nanos(time.Minute), MaxEjectedPercent: 50},
			}
			c.apply(http1, rule, s1.endpoint())
			k := c.keep()
			if status, _, err := k.ask("GET", "/", ""); err != nil || status != 200 {
				t.Fatal(status, err)
			}
			resting := s1.endpoint()
			resting.Ready = tt == "ejected"
			c.apply(http1, rule, resting, s2.endpoint())
			if tt == "ejected" {
				if status, _, err := k.ask("GET", "/bad", ""); err != nil || status != 503 && status != 200 {
					t.Fatal(status, err)
				}
				// Whichever took it: the only connection is to the first endpoint.
				p := c.entry.Load().Port(80)
				p.Report(p.Endpoints()[0].State, true)
				if !p.IsEjected(p.Endpoints()[0]) {
					t.Fatal("not ejected")
				}
			}
			began := time.Now()
			for i := range 5 {
				if status, h, err := k.ask("GET", "/", ""); err != nil || status != 200 {
					t.Fatalf("request %d: %d %v %v", i, status, h, err)
				}
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("waited %s for a place", took)
			}
			if good.total() == 0 {
				t.Error("nothing went to the good one")
			}
			if _, n, w := c.entry.Load().Port(80).Breaker().Load(); n > 1 || w != 0 {
				t.Errorf("%d connections, %d waiting", n, w)
			}
		})
	}
}

// Clients that give up in the middle of what they send eject nobody.
func TestImpatientClientsEjectNobody(t *testing.T) {
	m := newMesh(t)
	app := newShop(always(200))
	s1 := m.serve(serverConfig{pod: "10.0.0.2:80"}, app.serve)
	s2 := m.serve(serverConfig{pod: "10.0.0.3:80"}, app.serve)
	c := m.client(nil, http1)
	c.apply(http1, &wire.TrafficPolicy{
		Retry:           gatewayRetries(2),
		OutlierEjection: &wire.OutlierEjection{ConsecutiveFailures: 1, BaseEjection: nanos(time.Minute), MaxEjection: nanos(time.Minute), MaxEjectedPercent: 50},
	}, s1.endpoint(), s2.endpoint())
	for range 6 {
		conn := c.dial()
		io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: orders\r\nContent-Length: 10\r\n\r\nhalf")
		eventually(t, "it is under way", func() bool {
			p := c.entry.Load().Port(80)
			return p.Endpoints()[0].State.InFlight()+p.Endpoints()[1].State.InFlight() > 0
		})
		conn.Close()
		eventually(t, "it has ended", func() bool {
			p := c.entry.Load().Port(80)
			return p.Endpoints()[0].State.InFlight()+p.Endpoints()[1].State.InFlight() == 0
		})
	}
	if n := c.entry.Load().Port(80).Ejected(); n != 0 {
		t.Errorf("%d ejected", n)
	}
}

// The counters that name a Service have a bound on how many they name.
func TestServicesInMetricsAreBounded(t *testing.T) {
	m := flow.NewMetrics()
	r := telemetry.NewRegistry("test")
	r.Register(m.Collectors()...)
	for i := range 1200 {
		name := fmt.Sprintf("shop/%d", i)
		m.Retried(name, "connect", 1)
		m.RetryDenied(name, "retry_budget_exhausted")
		m.CircuitOpen(name, "pending")
		m.Ejected(name)
	}
	for _, name := range []string{"heddle_retries_total", "heddle_retries_denied_total", "heddle_circuit_open_total", "heddle_ejections_total"} {
		if n := metric(t, r, name, "service=other"); n != 200 {
			t.Errorf("%s: %v are others, want 200", name, n)
		}
		if n := metric(t, r, name, "service=shop/7"); n != 1 {
			t.Errorf("%s: %v", name, n)
		}
	}
}
