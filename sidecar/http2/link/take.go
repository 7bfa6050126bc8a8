package link

import (
	"errors"

	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
)

func connFault(c frame.Code, detail string) *frame.Fault {
	return &frame.Fault{Code: c, Detail: detail}
}

func streamFault(c frame.Code, detail string) *frame.Fault {
	return &frame.Fault{Code: c, Stream: true, Detail: detail}
}

var (
	faultIdle    = connFault(frame.ProtocolError, "frame on a stream that was never opened (RFC 9113, 5.1)")
	faultLower   = connFault(frame.ProtocolError, "a stream is opened with a lower number than one before (RFC 9113, 5.1.1)")
	faultClosed  = connFault(frame.StreamClosed, "header block on a closed stream (RFC 9113, 5.1)")
	faultAfter   = streamFault(frame.StreamClosed, "frame after the stream's end (RFC 9113, 5.1)")
	faultBlock   = connFault(frame.CompressionError, "header block cannot be unpacked (RFC 9113, 4.3)")
	faultExcess  = connFault(frame.EnhanceYourCalm, "header block unpacks to more than four times what may be")
	faultRefused = streamFault(frame.RefusedStream, "more streams than were announced (RFC 9113, 5.1.2)")
	faultFlood   = connFault(frame.EnhanceYourCalm, "too many frames that move nothing")
)

// take handles a frame; of is the fault that came with it, of its stream. What
// it gives ends the connection.
func (c *Conn) take(f *frame.Frame, of *frame.Fault) (fault *frame.Fault) {
	switch f.Type {
	case frame.Data:
		fault = c.takeData(f)
	case frame.Headers:
		fault = c.takeHeaders(f, of)
	case frame.Priority:
		c.mu.Lock()
		c.nuisance++
		idle := c.isIdle(f.Stream)
		c.mu.Unlock()
		if of != nil && idle { // which cannot be reset
			return connFault(of.Code, of.Detail)
		}
		c.reset(f.Stream, of)
	case frame.RSTStream:
		fault = c.takeRST(f)
	case frame.SettingsType:
		fault = c.takeSettings(f)
	case frame.Ping:
		if !f.Ack {
			c.mu.Lock()
			c.out = frame.AppendPong(c.space(2*frame.HeaderLen), f.Payload)
			c.unlock()
		}
		c.costs(1)
	case frame.GoAway:
		c.takeGoAway(f)
	case frame.WindowUpdate:
		fault = c.takeWindow(f, of)
	}
	if fault == nil {
		c.mu.Lock()
		if c.nuisance > maxNuisance {
			fault = faultFlood
		}
		c.mu.Unlock()
	}
	return fault
}

// costs takes note of what moves nothing, pays of what does (under mu).
func (c *Conn) costs(n int) {
	c.mu.Lock()
	c.nuisance += n
	c.mu.Unlock()
}

func (c *Conn) pays(n int) { c.nuisance = max(c.nuisance-n, -maxCredit) }

// isIdle tells whether nobody has opened the stream yet.
func (c *Conn) isIdle(id uint32) bool {
	if c.c.Server {
		return id > c.lastPeer
	}
	return id >= c.next
}

// reset ends a stream because the peer broke a rule on it.
func (c *Conn) reset(id uint32, fault *frame.Fault) {
	if fault == nil {
		return
	}
	c.mu.Lock()
	s := c.streams[id]
	c.nuisance += costReset
	if s != nil || !c.isIdle(id) {
		c.out = frame.AppendRST(c.space(frame.HeaderLen+4), id, fault.Code)
	}
	if s != nil {
		s.remove(byReset)
	}
	c.unlock()
	if s != nil {
		c.c.Handler.Ended(s, End{Code: fault.Code})
	}
}

func (c *Conn) takeData(f *frame.Frame) *frame.Fault {
	c.mu.Lock()
	s := c.streams[f.Stream]
	if fault := c.recv.Receive(f.Flow, 0); fault != nil {
		c.unlock()
		return fault
	}
	c.due += f.Flow
	if len(f.Payload) > 0 {
		c.pays(1)
	} else if !f.EndStream {
		c.nuisance++
	}
	var fault *frame.Fault
	switch {
	case s == nil && c.isIdle(f.Stream):
		c.unlock()
		return faultIdle
	case s == nil:
		c.grant()
		mark, _ := c.how(f.Stream)
		c.unlock()
		if mark != byReset {
			c.reset(f.Stream, faultAfter)
		}
		return nil
	case s.recvEnd:
		fault = faultAfter
	default:
		fault = s.recv.Receive(f.Flow, f.Stream)
	}
	if fault == nil {
		c.held += len(f.Payload)
		s.held += len(f.Payload)
		s.due += f.Flow - uint32(len(f.Payload))
		if f.EndStream {
			s.recvEnd = true
		}
	}
	c.grant()
	c.unlock()
	if fault == nil && (len(f.Payload) > 0 || f.EndStream) {
		fault = c.c.Handler.Data(s, f.Payload, f.EndStream)
	}
	return c.judged(s, fault)
}

// judged does what follows from what the Handler said; whether the stream has
// come to its end is seen only now, so that what the Handler sent is in order.
func (c *Conn) judged(s *Stream, fault *frame.Fault) *frame.Fault {
	switch {
	case fault != nil && !fault.Stream:
		return fault
	case fault != nil:
		c.reset(s.id, fault)
	default:
		c.mu.Lock()
		s.close()
		c.unlock()
	}
	return nil
}

func (c *Conn) takeHeaders(f *frame.Frame, of *frame.Fault) *frame.Fault {
	if c.list == nil {
		c.list = lists.Get().(*hpack.List)
	}
	if err := c.decoder.Decode(f.Payload, c.list); err != nil {
		if errors.Is(err, hpack.ErrExcess) {
			return faultExcess
		}
		return faultBlock
	}
	c.mu.Lock()
	s := c.streams[f.Stream]
	var fault *frame.Fault
	switch {
	case s != nil && s.recvEnd:
		of = faultAfter
	case s != nil:
	case !c.isIdle(f.Stream):
		mark, known := c.how(f.Stream)
		switch {
		case known && mark == 0:
			fault = faultClosed
		case !known && c.c.Server:
			fault = faultLower
		}
		c.unlock()
		return fault
	case !c.c.Server:
		fault = faultIdle
	default:
		s, of = c.opened(f.Stream, of)
	}
	if s != nil && f.EndStream {
		s.recvEnd = true
	}
	c.unlock()
	switch {
	case fault != nil:
		return fault
	case of != nil:
		c.reset(f.Stream, of)
		return nil
	case s == nil:
		return nil
	}
	return c.judged(s, c.c.Handler.Headers(s, c.list, f.EndStream))
}

// opened takes a stream that a client opens. None: it is not served.
func (c *Conn) opened(id uint32, of *frame.Fault) (*Stream, *frame.Fault) {
	c.lastPeer = id
	switch {
	case of != nil:
		c.remember(id | byReset)
		return nil, of
	case c.drain > 1: // above what the last GOAWAY said: the client knows
		c.nuisance++
		c.remember(id | byReset)
		return nil, nil
	case uint32(len(c.streams)) >= c.c.Streams:
		c.remember(id | byReset)
		return nil, faultRefused
	}
	s := &Stream{c: c}
	c.add(s, id)
	return s, nil
}

func (c *Conn) takeRST(f *frame.Frame) *frame.Fault {
	c.mu.Lock()
	s := c.streams[f.Stream]
	if s == nil && c.isIdle(f.Stream) {
		c.unlock()
		return faultIdle
	}
	if s == nil {
		c.excuseNone(f.Stream)
	}
	if c.nuisance++; s != nil {
		if c.c.Server {
			c.nuisance += costReset
		}
		s.remove(0)
	}
	c.unlock()
	if s != nil {
		c.c.Handler.Ended(s, End{Code: f.Code, Unseen: f.Code == frame.RefusedStream && !c.c.Server})
	}
	return nil
}

func (c *Conn) takeSettings(f *frame.Frame) *frame.Fault {
	c.mu.Lock()
	defer c.unlock()
	if f.Ack {
		c.acked = true
		c.nuisance++
		return nil
	}
	before := c.peer.InitialWindowSize
	if fault := c.peer.Apply(f.Payload, !c.c.Server); fault != nil {
		return fault
	}
	c.encoder.SetLimit(c.peer.HeaderTableSize)
	if after := c.peer.InitialWindowSize; after != before {
		for _, s := range c.streams {
			if fault := s.send.Resize(before, after); fault != nil {
				return fault
			}
			if s.send > 0 && len(s.pend) > 0 {
				c.ready.push(s)
			}
		}
	}
	if c.began {
		c.nuisance += costSettings
	}
	c.began = true
	c.admit()
	c.out = frame.AppendSettingsAck(c.space(frame.HeaderLen))
	return nil
}

func (c *Conn) takeGoAway(f *frame.Frame) {
	c.costs(1)
	if c.c.Server {
		return // it would speak of streams that we had opened
	}
	c.mu.Lock()
	c.gone = true
	unseen := c.turnAway()
	for id, s := range c.streams {
		if id > f.LastStream {
			unseen = append(unseen, s)
			s.remove(byReset)
		}
	}
	c.unlock()
	for _, s := range unseen {
		c.c.Handler.Ended(s, End{Code: frame.RefusedStream, Unseen: true})
	}
}

func (c *Conn) takeWindow(f *frame.Frame, of *frame.Fault) *frame.Fault {
	c.mu.Lock()
	c.nuisance++
	if f.Stream == 0 {
		fault := c.send.Grow(f.Increment, 0)
		c.unlock()
		return fault
	}
	s := c.streams[f.Stream]
	if s == nil {
		idle := c.isIdle(f.Stream)
		c.unlock()
		if idle {
			return faultIdle
		}
		return nil
	}
	if of == nil {
		of = s.send.Grow(f.Increment, f.Stream)
	}
	if of == nil && s.send > 0 && len(s.pend) > 0 {
		c.ready.push(s)
	}
	c.unlock()
	c.reset(f.Stream, of)
	return nil
}

// grant gives the connection's window back, a part of it at once.
func (c *Conn) grant() {
	if c.held <= maxHeld && c.due >= connWindow/4 {
		c.out = frame.AppendWindowUpdate(c.space(frame.HeaderLen+4), 0, c.due)
		c.recv += frame.Window(c.due)
		c.due = 0
	}
}

// Credit says that n bytes that came on the stream are here no more: the peer
// may send so many others. Whoever is not in a Handler's call of this connection
// has to Flush it.
func (s *Stream) Credit(n int) {
	c := s.c
	c.mu.Lock()
	c.held -= n
	s.held -= n
	c.grant()
	s.due += uint32(n)
	if s.over || s.recvEnd || s.due < s.window/2 {
		c.unlock()
		return
	}
	if s.held == 0 && s.window < growTo { // nothing had to wait: the window is what slows it
		s.due += s.window
		s.window *= 2
	}
	c.out = frame.AppendWindowUpdate(c.space(frame.HeaderLen+4), s.id, s.due)
	s.recv += frame.Window(s.due)
	s.due = 0
	c.unlock()
}
