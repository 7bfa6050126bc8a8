package serve

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// read takes the peer's messages until the stream ends.
func (x *session) read() error {
	for {
		m, err := x.stream.Recv()
		if err != nil {
			return err
		}
		now := time.Now()
		x.heard.Store(now.UnixNano())
		if err := x.handle(m, now); err != nil {
			return err
		}
	}
}

// handle notes what one message wants; an error ends the stream.
func (x *session) handle(m *pb.PeerMessage, now time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if h := m.GetHello(); h != nil {
		return x.greet(h)
	}
	if !x.hello {
		return wire.Refuse(wire.Invalid, "the first message must be Hello")
	}
	switch m := m.GetMessage().(type) {
	case *pb.PeerMessage_Subscribe:
		for _, name := range m.Subscribe.GetNames() {
			if err := x.want(name, nil); err != nil {
				return err
			}
		}
	case *pb.PeerMessage_Unsubscribe:
		for _, name := range m.Unsubscribe.GetNames() {
			if !x.isOwn(name) {
				delete(x.subs, name)
				delete(x.fresh, name)
			}
		}
	case *pb.PeerMessage_Ack:
		x.acked(m.Ack, now)
	case *pb.PeerMessage_Report:
		x.report(m.Report)
	}
	// Heartbeats have done their work by arriving; what we do not know, we skip.
	return nil
}

func (x *session) greet(h *pb.Hello) error {
	if x.hello {
		return wire.Refuse(wire.Invalid, "a second Hello")
	}
	switch k := h.GetKind(); k {
	case pb.PeerKind_PEER_KIND_SIDECAR:
	case pb.PeerKind_PEER_KIND_NODE:
		if x.who.Namespace != state.NodeAgentNamespace || x.who.ServiceAccount != state.NodeAgentAccount {
			return wire.Refuse(wire.Denied, "service account %s/%s is not the node agent's (%s/%s)",
				x.who.Namespace, x.who.ServiceAccount, state.NodeAgentNamespace, state.NodeAgentAccount)
		}
	default:
		return wire.Refuse(wire.Unsupported, "peers of kind %s are not served yet", k)
	}
	x.hello, x.who.Kind = true, h.GetKind()
	for _, name := range own[x.who.Kind] {
		if err := x.want(name, nil); err != nil {
			return err
		}
	}
	for _, held := range h.GetHeld() {
		if err := x.want(held.GetName(), held); err != nil {
			return err
		}
	}
	close(x.greeted)
	return nil
}

// want subscribes; asked for a second time, the whole resource is sent again.
// The caller holds mu.
func (x *session) want(name string, held *pb.Held) error {
	if why := x.check(name); why != "" {
		if len(x.refused) >= maxBadNames {
			return wire.Refuse(wire.Exhausted, "more than %d names refused at once", maxBadNames)
		}
		if len(x.refused) == 0 {
			x.log.Warn("refused a subscription", "name", cut(name), "reason", why)
		}
		x.refused[cut(name)] = true
		x.signal()
		return nil
	}
	s := &sub{}
	if old := x.subs[name]; old != nil {
		s.revision = old.revision // an older replica's word stays refused
	}
	if held != nil {
		s.version, s.revision = held.GetVersion(), held.GetRevision()
		if len(s.version) == 0 {
			s.version = nil
		}
	}
	x.subs[name] = s
	x.fresh[name] = true
	x.signal()
	return nil
}

func (x *session) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *session) isOwn(name string) bool { return slices.Contains(own[x.who.Kind], name) }

// check says why a name cannot be subscribed to; empty: it can.
func (x *session) check(name string) string {
	if x.isOwn(name) {
		return ""
	}
	if len(name) > maxName {
		return "name too long"
	}
	ip, ok := strings.CutPrefix(name, "addr/")
	if !ok || x.who.Kind != pb.PeerKind_PEER_KIND_SIDECAR {
		return "no such resource"
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil || addr.Zone() != "" || addr.Is4In6() || addr.String() != ip {
		return "not an address in its canonical form"
	}
	if x.subs[name] == nil && len(x.subs) >= maxNames+len(own[x.who.Kind]) {
		return "too many names"
	}
	return ""
}

// acked takes note of what became of an update.
func (x *session) acked(a *pb.Ack, now time.Time) {
	sub := x.subs[a.GetName()]
	if a.GetRefused() == "" {
		if sub != nil && !sub.changed.IsZero() && bytes.Equal(sub.version, a.GetVersion()) {
			x.s.metrics.latency.Observe(now.Sub(sub.changed).Seconds())
			sub.changed = time.Time{}
		}
		return
	}
	x.s.metrics.refused.Inc()
	if sub != nil && bytes.Equal(sub.version, a.GetVersion()) {
		sub.sent = nil // the peer kept what it had: the next version goes whole
	}
	if now.Sub(x.nacked) >= nackLogEvery {
		x.nacked = now
		x.log.Warn("the peer refused an update", "name", cut(a.GetName()), "reason", cut(a.GetRefused()))
	}
}

// report logs what only the peer can see.
func (x *session) report(r *pb.Report) {
	c := r.GetCapture()
	for _, v := range []pb.CaptureState_Verdict{c.GetOutboundIpv4(), c.GetOutboundIpv6(), c.GetInboundIpv4(), c.GetInboundIpv6()} {
		if v == pb.CaptureState_VERDICT_LOST {
			x.log.Warn("the peer lost the capture of its traffic", "capture", c.String())
			break
		}
	}
}
