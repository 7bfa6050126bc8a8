package intercept

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

var probe4 = netip.AddrPortFrom(redirect.ProbeV4, redirect.ProbePort)

// wired gives a probe whose dials go where route says instead of the kernel.
func wired(route func(dst netip.AddrPort, server net.Conn) error, onChange func(*wire.CaptureState)) *Probe {
	p := NewProbe(ProbeConfig{OnChange: onChange})
	p.dial = func(_ context.Context, dst netip.AddrPort) (net.Conn, error) {
		client, server := net.Pipe()
		if err := route(dst, server); err != nil {
			client.Close()
			server.Close()
			return nil, err
		}
		return client, nil
	}
	return p
}

func TestProbeVerdicts(t *testing.T) {
	for name, tc := range map[string]struct {
		route func(p *Probe, dst netip.AddrPort, c net.Conn) error
		want  verdict
	}{
		"redirected": {func(p *Probe, dst netip.AddrPort, c net.Conn) error { go p.Handle(c, dst); return nil }, proven},
		"nobody listens": {func(*Probe, netip.AddrPort, net.Conn) error {
			return &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}
		}, lost},
		"no such family": {func(*Probe, netip.AddrPort, net.Conn) error {
			return &net.OpError{Op: "dial", Err: unix.EADDRNOTAVAIL}
		}, absent},
		"an echo server listens there": {func(_ *Probe, _ netip.AddrPort, c net.Conn) error {
			go func() {
				defer c.Close()
				b := make([]byte, nonceSize)
				io.ReadFull(c, b)
				c.Write(b)
			}()
			return nil
		}, lost},
		"a server that closes": {func(_ *Probe, _ netip.AddrPort, c net.Conn) error { c.Close(); return nil }, lost},
		"a silent server": {func(_ *Probe, _ netip.AddrPort, c net.Conn) error {
			go func() { defer c.Close(); io.Copy(io.Discard, c) }()
			return nil
		}, lost},
		"another sidecar": {func(_ *Probe, dst netip.AddrPort, c net.Conn) error {
			go NewProbe(ProbeConfig{}).Handle(c, dst)
			return nil
		}, lost},
		"the answer of another family": {func(p *Probe, dst netip.AddrPort, c net.Conn) error {
			if dst == probe4 {
				dst = netip.AddrPortFrom(redirect.ProbeV6, redirect.ProbePort)
			} else {
				dst = probe4
			}
			go p.Handle(c, dst)
			return nil
		}, lost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p *Probe
				p = wired(func(dst netip.AddrPort, c net.Conn) error { return tc.route(p, dst, c) }, nil)
				begin := time.Now()
				s := p.Check(t.Context())
				if s.OutboundIpv4 != tc.want || s.OutboundIpv6 != tc.want {
					t.Errorf("%v; want %v", s, tc.want)
				}
				if took := time.Since(begin); took > probeTimeout {
					t.Errorf("took %v", took)
				}
				if ok, why := p.Ready(); ok != (tc.want == proven) || !ok && why == "" {
					t.Errorf("ready %v, %q", ok, why)
				}
				if len(p.pending) != 0 {
					t.Errorf("%d nonces left", len(p.pending))
				}
			})
		})
	}
}

func TestHandleLeavesOthersAlone(t *testing.T) {
	p := NewProbe(ProbeConfig{})
	for _, dst := range []string{"192.0.2.1:80", "127.6.6.6:80", "[::1]:16001", "192.0.2.1:16009"} {
		if p.Handle(nil, netip.MustParseAddrPort(dst)) {
			t.Errorf("%s is taken for the probe", dst)
		}
	}
	// A program of the pod dials the probe address while no test is under way:
	// closed at once, not read.
	client, server := net.Pipe()
	if !p.Handle(server, probe4) {
		t.Error("not taken for the probe")
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read: %v", err)
	}
}

// A stranger who knows the address but not the nonce learns nothing and keeps
// nobody for longer than the timeout.
func TestHandleRefusesAWrongNonce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProbe(ProbeConfig{})
		p.pending = []pending{{dst: probe4, nonce: [nonceSize]byte{1}, answer: [nonceSize]byte{2}}}
		for _, send := range []int{0, nonceSize - 1, nonceSize} {
			client, server := net.Pipe()
			done := make(chan bool)
			begin := time.Now()
			go func() { done <- p.Handle(server, probe4) }()
			client.Write(make([]byte, send))
			if b, err := io.ReadAll(client); len(b) != 0 || err != nil {
				t.Errorf("after %d bytes: read %x, %v", send, b, err)
			}
			if !<-done || time.Since(begin) > probeTimeout {
				t.Errorf("after %d bytes: took %v", send, time.Since(begin))
			}
		}
	})
}

func TestRunTellsChangesAndRetriesSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		works := func() bool { // comes after 1 s, is lost after 100 s, comes back after 200 s
			d := time.Since(begin)
			return d > time.Second && d < 100*time.Second || d > 200*time.Second
		}
		type change struct {
			at time.Duration
			v4 verdict
		}
		var changes []change
		var p *Probe
		p = wired(func(dst netip.AddrPort, c net.Conn) error {
			if !works() {
				return unix.ECONNREFUSED
			}
			go p.Handle(c, dst)
			return nil
		}, func(s *wire.CaptureState) { changes = append(changes, change{time.Since(begin), s.OutboundIpv4}) })
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Second)
		defer cancel()
		if err := p.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run: %v", err)
		}
		limits := []struct {
			v        verdict
			from, to time.Duration
		}{
			{lost, 0, 0}, {proven, time.Second, 3 * time.Second},
			{lost, 100 * time.Second, 100*time.Second + checkEvery},
			{proven, 200 * time.Second, 200*time.Second + retryMax},
		}
		if len(changes) != len(limits) {
			t.Fatalf("changes: %+v", changes)
		}
		for i, l := range limits {
			if c := changes[i]; c.v4 != l.v || c.at < l.from || c.at > l.to {
				t.Errorf("change %d: %+v; want %v between %v and %v", i, c, l.v, l.from, l.to)
			}
		}
	})
}

func TestStoppingIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := true
		var p *Probe
		p = wired(func(dst netip.AddrPort, c net.Conn) error {
			if good {
				go p.Handle(c, dst)
			} else {
				go func() { defer c.Close(); io.Copy(io.Discard, c) }()
			}
			return nil
		}, nil)
		p.Check(t.Context())
		good = false
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); cancel() }()
		if s := p.Check(ctx); s.OutboundIpv4 != proven {
			t.Errorf("a test cut off by our own end says %v", s.OutboundIpv4)
		}
	})
}

func TestIsOwn(t *testing.T) {
	pod := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}
	for s, want := range map[string]bool{
		"192.0.2.9:16001": true, "192.0.2.9:16006": true, "192.0.2.9:16009": true, "192.0.2.9:16020": true,
		"192.0.2.9:16002": false, "192.0.2.9:80": false, "192.0.2.1:16020": false,
		"127.0.0.1:16020": true, "127.9.9.9:16020": true, "[::1]:16006": true, "0.0.0.0:16001": true, "[::]:16001": true,
		"[2001:db8::9]:16020": true, "[2001:db8::1]:16020": false, "[::ffff:192.0.2.9]:16020": true,
	} {
		if got := IsOwn(netip.MustParseAddrPort(s), pod); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
}

func TestReadyNamesTheFamily(t *testing.T) {
	p := NewProbe(ProbeConfig{})
	for _, tc := range []struct {
		v4, v6 verdict
		ok     bool
		why    string
	}{
		{untried, untried, false, "ipv4 is not proven yet"},
		{proven, untried, false, "ipv6 is not proven yet"},
		{proven, lost, false, "ipv6 is lost"},
		{lost, proven, false, "ipv4 is lost"},
		{proven, proven, true, ""}, {proven, absent, true, ""}, {absent, proven, true, ""},
		{absent, absent, false, "neither"},
	} {
		p.v4.Store(int32(tc.v4))
		p.v6.Store(int32(tc.v6))
		if ok, why := p.Ready(); ok != tc.ok || !strings.Contains(why, tc.why) {
			t.Errorf("%v %v: %v, %q", tc.v4, tc.v6, ok, why)
		}
	}
	if s := p.State(); s.InboundIpv4 != untried {
		t.Errorf("inbound %v", s.InboundIpv4)
	}
	p.SawInbound(netip.MustParseAddrPort("192.0.2.1:80"))
	if s := p.State(); s.InboundIpv4 != proven || s.InboundIpv6 != untried {
		t.Errorf("inbound %v", s)
	}
}
