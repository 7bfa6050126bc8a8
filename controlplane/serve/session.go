package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// session is one peer's stream. run sends; one reader goroutine receives and
// notes what the peer wants. What to send is worked out from the newest world
// at the moment of sending, so each resource has one slot and a slow peer
// skips versions; nothing queues.
type session struct {
	s      *Server
	stream wire.Stream
	who    state.Peer // Kind is set by Hello, before anything is sent
	log    *slog.Logger
	until  time.Time // the peer's certificate ends

	greeted  chan struct{} // closed by the reader on Hello
	received chan error    // the reader's end
	wake     chan struct{} // one signal: fresh or refused has something
	heard    atomic.Int64  // unix nanoseconds of the peer's last message

	mu      sync.Mutex
	hello   bool
	subs    map[string]*sub
	fresh   map[string]bool // names to look at although the world did not change
	refused map[string]bool // names to refuse
	nacked  time.Time       // of the last refusal logged
}

// sub is one resource that the peer wants.
type sub struct {
	version  []byte          // that the peer holds or was sent; nil: none
	revision uint64          // that the peer holds or was sent
	sent     *state.Resource // what version is of; nil: not known here, so no delta
	none     bool            // told that there is no such resource
	changed  time.Time       // of the world that made us send version; zero: the peer's own wish
}

// own are the resources that a peer of each kind gets without asking, in the
// order in which it needs them.
var own = map[pb.PeerKind][]string{
	pb.PeerKind_PEER_KIND_SIDECAR: {"bundle", "mesh", "inbound"},
	pb.PeerKind_PEER_KIND_NODE:    {"bundle", "mesh", "node"},
}

var errGone = errors.New("the peer's pod is gone")

func newSession(s *Server, stream wire.Stream, who state.Peer) *session {
	x := &session{s: s, stream: stream, who: who, log: s.log,
		greeted: make(chan struct{}), received: make(chan error, 1), wake: make(chan struct{}, 1),
		subs: map[string]*sub{}, fresh: map[string]bool{}, refused: map[string]bool{}}
	x.heard.Store(time.Now().UnixNano())
	return x
}

func (x *session) run(ctx context.Context) error {
	x.s.readers.Go(func() { x.received <- x.read() })
	late := time.NewTimer(helloWait)
	defer late.Stop()
	select {
	case <-x.greeted:
	case err := <-x.received:
		return x.ended(err)
	case <-late.C:
		return wire.Refuse(wire.Invalid, "no Hello within %s", helloWait)
	case <-x.s.stop:
		return wire.Refuse(wire.Unavailable, "the control plane stops")
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := x.welcome(); err != nil {
		return x.ended(err)
	}
	x.log.Debug("peer connected")
	defer x.log.Debug("peer left")
	return x.ended(x.serve(ctx))
}

// serve pushes until the stream shall end.
func (x *session) serve(ctx context.Context) error {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	age := time.NewTimer(x.lifetime(time.Now()))
	defer age.Stop()
	for all := true; ; {
		world, changed := x.s.cfg.Worlds.Current()
		if world.PodByUID(x.who.PodUID) == nil {
			return errors.Join(errGone, x.goodbye("your pod is gone", 0))
		}
		if err := x.push(all); err != nil {
			return err
		}
		all = false
		select {
		case <-changed:
			all = true
		case <-x.wake:
		case now := <-beat.C:
			if err := x.beat(now); err != nil {
				return err
			}
		case <-age.C:
			return x.goodbye("stream age", rand.N(ageSpread))
		case <-x.s.stop:
			return x.goodbye("the control plane stops", rand.N(stopSpread))
		case err := <-x.received:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lifetime of the stream: jittered, and never past the peer's certificate.
func (x *session) lifetime(now time.Time) time.Duration {
	d := around(streamAge, streamAgeJitter)
	if left := x.until.Sub(now); !x.until.IsZero() && left < d {
		d = max(left, 0)
	}
	return d
}

// ended makes of a stream's end what the peer is told and what is logged.
func (x *session) ended(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, errGone):
		x.log.Info("closed the stream: the pod is gone")
		return wire.Refuse(wire.Denied, "your pod is gone")
	}
	x.log.Info("stream ended", "error", err)
	return err
}

func (x *session) welcome() error {
	world, _ := x.s.cfg.Worlds.Current()
	return x.sendMessage(&pb.ControlMessage{Message: &pb.ControlMessage_Welcome{Welcome: &pb.Welcome{
		Replica: x.s.cfg.Replica, Version: x.s.cfg.Version, Revision: world.Revision(),
		HeartbeatSeconds: uint32(heartbeat / time.Second),
	}}})
}

// beat tells a peer from a dead one, and tells it that we live.
func (x *session) beat(now time.Time) error {
	if silent := now.Sub(time.Unix(0, x.heard.Load())); silent > missedBeats*heartbeat {
		x.s.metrics.dead.Inc()
		x.stream.Abort()
		return wire.Refuse(wire.Unavailable, "nothing heard of the peer for %s", silent.Round(time.Second))
	}
	world, _ := x.s.cfg.Worlds.Current()
	return x.sendMessage(&pb.ControlMessage{Message: &pb.ControlMessage_Heartbeat{Heartbeat: &pb.Heartbeat{
		SentUnixNano: now.UnixNano(), Revision: world.Revision(),
	}}})
}

// goodbye asks the peer to come back after a delay and waits for it to leave.
func (x *session) goodbye(reason string, after time.Duration) error {
	err := x.sendMessage(&pb.ControlMessage{Message: &pb.ControlMessage_Goodbye{Goodbye: &pb.Goodbye{
		Reason: reason, ReconnectAfterMillis: uint32(after.Milliseconds()),
	}}})
	if err != nil {
		return err
	}
	late := time.NewTimer(goodbyeWait)
	defer late.Stop()
	select {
	case <-x.received:
	case <-late.C:
	}
	return nil
}

func (x *session) sendMessage(m *pb.ControlMessage) error {
	e, err := wire.Encode(m)
	if err != nil {
		return err
	}
	return x.send(e)
}

// send cuts the peer off if it does not read for sendBound.
func (x *session) send(e *wire.Encoded) error {
	var slow atomic.Bool
	t := time.AfterFunc(sendBound, func() { slow.Store(true); x.stream.Abort() })
	defer t.Stop()
	err := x.stream.Send(e)
	if err != nil && slow.Load() {
		x.s.metrics.slow.Inc()
		return wire.Refuse(wire.Unavailable, "the peer read nothing for %s", sendBound)
	}
	return err
}
