package intercept

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// nonceSize is of a nonce and of its answer: too long to guess.
	nonceSize = 16
	// probeTimeout ends one try. Loopback takes microseconds; the rest is for
	// a busy machine.
	probeTimeout = 5 * time.Second
	// checkEvery is how long a loss can go unnoticed.
	checkEvery = 30 * time.Second
	// retryMin and retryMax space the tries while a family is not proven: the
	// pod waits for the first proof, and a repair should be seen soon.
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

// Short names of the verdicts.
const (
	untried = wire.CaptureState_VERDICT_UNSPECIFIED
	proven  = wire.CaptureState_VERDICT_PROVEN
	lost    = wire.CaptureState_VERDICT_LOST
	absent  = wire.CaptureState_VERDICT_ABSENT
)

type verdict = wire.CaptureState_Verdict

// ProbeConfig is what a Probe needs.
type ProbeConfig struct {
	Log      *slog.Logger
	OnChange func(*wire.CaptureState) // called from Run when a verdict changed; may be nil
}

// Probe proves that outbound connections are redirected, per family: it dials
// an address where nobody listens and which the rules redirect even for the
// sidecar's own user. The dial must come back to this very process: it carries
// a nonce, to which only the process that made it knows the answer. A program
// that listens at the address, or echoes, proves nothing.
//
// That inbound connections are redirected can be proven only from outside: each
// one that arrives is a proof (SawInbound).
type Probe struct {
	log      *slog.Logger
	onChange func(*wire.CaptureState)
	dial     func(ctx context.Context, dst netip.AddrPort) (net.Conn, error)

	mu      sync.Mutex
	pending []pending // at most one per family and Check

	v4, v6, in4, in6 atomic.Int32 // verdicts

	proven *prometheus.GaugeVec
	losses *prometheus.CounterVec
}

type pending struct {
	dst           netip.AddrPort
	nonce, answer [nonceSize]byte
}

// NewProbe gives a Probe that has tried nothing yet.
func NewProbe(c ProbeConfig) *Probe {
	d := net.Dialer{KeepAlive: -1}
	p := &Probe{
		log:      telemetry.Discard(c.Log),
		onChange: c.OnChange,
		dial: func(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", dst.String())
		},
		proven: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "heddle_capture_proven", Help: "1 if the last test showed that outbound connections of the family are redirected to the sidecar.",
		}, []string{"family"}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_capture_losses_total", Help: "Times that the redirect of the family was found not to work after it had worked.",
		}, []string{"family"}),
	}
	for _, f := range p.families() {
		p.losses.WithLabelValues(f.name)
	}
	return p
}

type family struct {
	name    string
	dst     netip.AddrPort
	verdict *atomic.Int32
}

func (p *Probe) families() []family {
	return []family{
		{"ipv4", netip.AddrPortFrom(redirect.ProbeV4, redirect.ProbePort), &p.v4},
		{"ipv6", netip.AddrPortFrom(redirect.ProbeV6, redirect.ProbePort), &p.v6},
	}
}

// Collectors are the probe's metrics.
func (p *Probe) Collectors() []prometheus.Collector {
	return []prometheus.Collector{p.proven, p.losses}
}

// Handle answers the probe's own connection. The outbound acceptor calls it
// with each connection's original destination; true: it was for the probe, and
// is dealt with and closed. It takes at most probeTimeout, and no time if this
// process has no test under way.
func (p *Probe) Handle(c net.Conn, origDst netip.AddrPort) bool {
	if !isProbe(origDst) {
		return false
	}
	defer c.Close()
	if !p.underWay(origDst) {
		return true
	}
	c.SetDeadline(time.Now().Add(probeTimeout))
	var nonce [nonceSize]byte
	if _, err := io.ReadFull(c, nonce[:]); err != nil {
		return true // whoever it was gave up
	}
	if answer, ok := p.answer(origDst, nonce); ok {
		c.Write(answer[:]) // an error shows at the other end, which is ours
	}
	return true
}

func isProbe(dst netip.AddrPort) bool {
	a := dst.Addr().Unmap()
	return dst.Port() == redirect.ProbePort && (a == redirect.ProbeV4 || a == redirect.ProbeV6)
}

func (p *Probe) underWay(dst netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.pending {
		if w.dst == dst {
			return true
		}
	}
	return false
}

func (p *Probe) answer(dst netip.AddrPort, nonce [nonceSize]byte) (answer [nonceSize]byte, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.pending {
		if w.dst == dst && subtle.ConstantTimeCompare(w.nonce[:], nonce[:]) == 1 {
			return w.answer, true
		}
	}
	return answer, false
}

// Check tests both families once, each within probeTimeout, and gives the
// verdicts.
func (p *Probe) Check(ctx context.Context) *wire.CaptureState {
	var wg sync.WaitGroup
	for _, f := range p.families() {
		wg.Go(func() { p.judge(f, p.try(ctx, f.dst)) })
	}
	wg.Wait()
	return p.State()
}

// judge turns the outcome of a try into the family's verdict.
func (p *Probe) judge(f family, err error) {
	before := verdict(f.verdict.Load())
	now := proven
	switch {
	case err == nil:
	case noSuchFamily(err):
		now = absent
	case errors.Is(err, context.Canceled):
		return // we are stopping: it says nothing of the redirect
	default:
		now = lost
	}
	f.verdict.Store(int32(now))
	if now == absent {
		p.proven.DeleteLabelValues(f.name)
	} else {
		v := 0.0
		if now == proven {
			v = 1
		}
		p.proven.WithLabelValues(f.name).Set(v)
	}
	if now == before {
		return
	}
	if now == lost {
		if before == proven {
			p.losses.WithLabelValues(f.name).Inc()
		}
		p.log.Warn("outbound connections are not redirected to the sidecar", "family", f.name, "err", err)
		return
	}
	p.log.Info("outbound capture", "family", f.name, "verdict", word(now))
}

// try makes one round: nil if the dial came back to this process.
func (p *Probe) try(ctx context.Context, dst netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	w := pending{dst: dst}
	rand.Read(w.nonce[:])
	rand.Read(w.answer[:])
	p.mu.Lock()
	p.pending = append(p.pending, w)
	p.mu.Unlock()
	defer p.forget(w)

	c, err := p.dial(ctx, dst)
	if err != nil {
		return fmt.Errorf("dial the probe address %s: %w", dst, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	var got [nonceSize]byte
	if _, err := c.Write(w.nonce[:]); err != nil {
		return p.because(ctx, fmt.Errorf("send the nonce to %s: %w", dst, err))
	}
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return p.because(ctx, fmt.Errorf("another program answers at the probe address %s: %w", dst, err))
	}
	if subtle.ConstantTimeCompare(got[:], w.answer[:]) != 1 {
		return fmt.Errorf("another program answers at the probe address %s", dst)
	}
	return nil
}

// because prefers the context's reason to the broken connection it leads to.
func (p *Probe) because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("probe was cut off: %w", ctx.Err())
	}
	return err
}

func (p *Probe) forget(w pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.pending {
		if p.pending[i] == w {
			p.pending = append(p.pending[:i], p.pending[i+1:]...)
			return
		}
	}
}

// Run checks at once, then again and again until ctx ends. The outbound
// acceptor must be calling Handle.
func (p *Probe) Run(ctx context.Context) error {
	wait := retryMin
	var told string
	for {
		state := p.Check(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if now := text(state); now != told {
			told = now
			if p.onChange != nil {
				p.onChange(state)
			}
		}
		next := checkEvery
		if ok, _ := p.Ready(); ok {
			wait = retryMin
		} else {
			next, wait = wait, min(2*wait, retryMax)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// SawInbound takes note that a connection from outside the pod came through the
// redirect: the inbound acceptor calls it with each original destination.
func (p *Probe) SawInbound(origDst netip.AddrPort) {
	v := &p.in6
	if origDst.Addr().Unmap().Is4() {
		v = &p.in4
	}
	if v.Load() != int32(proven) {
		v.Store(int32(proven))
	}
}

// State gives the newest verdicts.
func (p *Probe) State() *wire.CaptureState {
	return &wire.CaptureState{
		OutboundIpv4: verdict(p.v4.Load()), OutboundIpv6: verdict(p.v6.Load()),
		InboundIpv4: verdict(p.in4.Load()), InboundIpv6: verdict(p.in6.Load()),
	}
}

// Ready tells whether outbound capture is proven in every family that the pod
// has, else why not.
func (p *Probe) Ready() (bool, string) {
	anyProven := false
	for _, f := range p.families() {
		switch v := verdict(f.verdict.Load()); v {
		case proven:
			anyProven = true
		case absent:
		default:
			return false, "outbound capture over " + f.name + " is " + word(v)
		}
	}
	if !anyProven {
		return false, "the pod has neither IPv4 nor IPv6"
	}
	return true, ""
}

func word(v verdict) string {
	switch v {
	case proven:
		return "proven"
	case lost:
		return "lost: connections bypass the sidecar or fail"
	case absent:
		return "absent: the pod has no such addresses"
	case untried:
	}
	return "not proven yet"
}

// text is a state to compare: two equal texts are the same verdicts.
func text(s *wire.CaptureState) string {
	return fmt.Sprint(s.GetOutboundIpv4(), s.GetOutboundIpv6(), s.GetInboundIpv4(), s.GetInboundIpv6())
}
