package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// goodbye ends a stream in good order.
type goodbye struct {
	reason string
	after  time.Duration
}

func (g *goodbye) Error() string { return "the control plane said goodbye: " + g.reason }

var errSilent = errors.New("nothing heard of the control plane")

// keepStream holds a stream, one after the other, until ctx ends. Each is a
// new connection, so that a name with several addresses may lead to another
// replica.
func (c *Client[T]) keepStream(ctx context.Context) error {
	select {
	case <-c.identified:
	case <-ctx.Done():
		return ctx.Err()
	}
	for failures := 0; ; failures++ {
		began := time.Now()
		err := c.stream(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		lived := c.lost(err)
		if lived && time.Since(began) >= calm {
			failures = 0
		}
		var wait time.Duration // the first attempt comes at once
		if failures > 0 {
			wait = backoff(failures-1, streamFirst, streamLast)
		}
		var bye *goodbye
		if errors.As(err, &bye) {
			wait = max(wait, bye.after)
		}
		var refusal *wire.Error
		if errors.As(err, &refusal) && refusal.Code == wire.Unauthenticated {
			c.renewNow()
		}
		if err := pause(ctx, wait, nil); err != nil {
			return err
		}
	}
}

// lost notes the end of a stream and says whether it had come about at all.
func (c *Client[T]) lost(err error) (lived bool) {
	c.mu.Lock()
	lived = c.state.Connected
	changed := lived || c.state.LastError == ""
	if lived {
		c.state.Connected, c.state.Since = false, time.Now()
	}
	c.state.LastError = err.Error()
	c.mu.Unlock()
	if !lived {
		c.table.reach(false)
	}
	if changed { // not for each attempt of a long outage
		c.log.Warn("lost the control plane; what is held stays in use", "error", err)
	}
	return lived
}

// stream is one stream from dialling to its end; err is never nil.
func (c *Client[T]) stream(ctx context.Context) error {
	conn, err := wire.Dial(wire.DialConfig{Address: c.cfg.Address, Dial: c.cfg.Dial,
		TLS: c.cfg.Identity.ClientConfig(c.controlPlane, "h2")})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	l := &link{out: newOutbox(), end: end}
	l.heard.Store(time.Now().UnixNano())
	l.beat.Store(int64(firstBeat))
	var parts sync.WaitGroup
	defer func() {
		c.table.disconnect()
		end(nil)
		conn.Close()
		parts.Wait()
	}()
	late := time.AfterFunc(welcomeWait, func() { end(fmt.Errorf("no Welcome within %s", welcomeWait)) })
	defer late.Stop()
	s, err := conn.Stream(ctx)
	if err != nil {
		return because(ctx, err)
	}
	if err := s.Send(c.hello(l)); err != nil && err != io.EOF {
		return because(ctx, err)
	}
	parts.Go(func() { c.send(ctx, s, l) })
	for {
		m, err := s.Recv()
		if err != nil {
			return because(ctx, err)
		}
		l.heard.Store(time.Now().UnixNano())
		if w := m.GetWelcome(); w != nil {
			late.Stop()
		}
		if err := c.receive(m, l); err != nil {
			_ = s.CloseSend() // a polite end; the connection is closed anyway
			return err
		}
	}
}

// because prefers our own reason for ending a stream to what came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if err == io.EOF {
		return errors.New("the control plane ended the stream")
	}
	return err
}

// link is what the two sides of one stream share.
type link struct {
	out      *outbox
	end      context.CancelCauseFunc
	heard    atomic.Int64 // unix nanoseconds
	beat     atomic.Int64 // between heartbeats
	welcomed atomic.Bool
}

// hello says what we hold and from here on sends wishes through l.
func (c *Client[T]) hello(l *link) *pb.PeerMessage {
	held := c.table.connect(l.out)
	c.mu.Lock()
	for name, h := range c.has {
		held = append(held, &pb.Held{Name: name, Version: h.version, Revision: h.revision})
	}
	c.mu.Unlock()
	return &pb.PeerMessage{Message: &pb.PeerMessage_Hello{Hello: &pb.Hello{
		Kind: c.cfg.Kind, Version: c.cfg.Version, Held: held,
	}}}
}

// send tells wishes, acknowledgements and heartbeats, and watches that the
// control plane is not silent, until ctx ends.
func (c *Client[T]) send(ctx context.Context, s *wire.ClientStream, l *link) {
	beat := time.NewTimer(time.Duration(l.beat.Load()))
	defer beat.Stop()
	var sequence uint64
	var reported *pb.Report
	for {
		var out []*pb.PeerMessage
		select {
		case <-ctx.Done():
			return
		case <-l.out.signal:
			out = l.out.take()
		case now := <-beat.C:
			every := time.Duration(l.beat.Load())
			beat.Reset(every)
			if now.Sub(time.Unix(0, l.heard.Load())) > missedBeats*every {
				l.end(fmt.Errorf("%w for %d heartbeats", errSilent, missedBeats))
				return
			}
			sequence++
			out = append(out, &pb.PeerMessage{Message: &pb.PeerMessage_Heartbeat{Heartbeat: &pb.Heartbeat{
				Sequence: sequence, SentUnixNano: now.UnixNano(), Revision: c.revision()}}})
			if r := c.report(); r != nil && !wire.Equal(r, reported) {
				reported = r
				out = append(out, &pb.PeerMessage{Message: &pb.PeerMessage_Report{Report: r}})
			}
		}
		for _, m := range out {
			if err := s.Send(m); err != nil {
				return // Recv says why
			}
		}
	}
}

func (c *Client[T]) report() *pb.Report {
	if c.cfg.Report == nil {
		return nil
	}
	return c.cfg.Report()
}

func (c *Client[T]) revision() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Revision
}

// note keeps that something was heard, and of which revision.
func (c *Client[T]) note(revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = time.Now()
	c.state.Revision = max(c.state.Revision, revision)
}

// receive takes one message; an error ends the stream.
func (c *Client[T]) receive(m *pb.ControlMessage, l *link) error {
	switch m := m.GetMessage().(type) {
	case *pb.ControlMessage_Welcome:
		c.welcome(m.Welcome, l)
	case *pb.ControlMessage_Update:
		if !l.welcomed.Load() {
			return errors.New("an update before Welcome")
		}
		c.note(m.Update.GetRevision())
		c.update(m.Update, l.out)
	case *pb.ControlMessage_Heartbeat:
		c.note(m.Heartbeat.GetRevision())
	case *pb.ControlMessage_Goodbye:
		after := time.Duration(m.Goodbye.GetReconnectAfterMillis()) * time.Millisecond
		return &goodbye{reason: m.Goodbye.GetReason(), after: min(after, maxGoodbye)}
	}
	return nil // what we do not know, we skip
}

func (c *Client[T]) welcome(w *pb.Welcome, l *link) {
	if s := w.GetHeartbeatSeconds(); s > 0 {
		l.beat.Store(int64(min(time.Duration(s)*time.Second, maxBeat)))
	}
	l.welcomed.Store(true)
	c.note(w.GetRevision())
	c.mu.Lock()
	c.state.Connected, c.state.Since, c.state.Replica, c.state.LastError = true, time.Now(), w.GetReplica(), ""
	c.mu.Unlock()
	c.table.reach(true)
	c.log.Info("connected to the control plane", "replica", w.GetReplica(), "version", w.GetVersion(), "revision", w.GetRevision())
}
