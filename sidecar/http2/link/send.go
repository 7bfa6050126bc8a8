package link

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
)

// credit is bytes of a stream that are here no more.
type credit struct {
	of *Stream
	n  int
}

func (c *Conn) credit(of *Stream, n int) {
	if of != nil {
		c.todo = append(c.todo, credit{of, n})
	}
}

// unlock does what may not be done under the lock.
func (c *Conn) unlock() {
	todo := c.todo
	c.todo = nil
	c.mu.Unlock()
	for _, t := range todo {
		t.of.Credit(t.n)
		t.of.c.Flush()
	}
}

// past as a deadline ends what waits for the connection, without waiting itself
// as closing TLS would.
var past = time.Unix(1, 0)

// space makes room for n more bytes of out. A peer that lets too much wait is
// cut off.
func (c *Conn) space(n int) []byte {
	need := len(c.out) + n
	if need > maxOut && c.doomed == nil {
		c.doomed = errDeaf
		c.c.Conn.SetDeadline(past)
	}
	if c.doomed != nil || c.ended {
		c.out = c.out[:0] // nobody will read it
		need = n
	}
	if need > cap(c.out) && need <= codec.LargeBuffer {
		larger := append(codec.TakeBuffer(need)[:0], c.out...)
		if c.out != nil {
			codec.GiveBuffer(c.out)
		}
		c.out = larger
	}
	return c.out
}

// headers sends a header block now.
func (s *Stream) headers(b Block, end bool) {
	c := s.c
	at := len(c.space(codec.SmallBuffer / 4))
	c.out = b.AppendTo(c.encoder.Begin(frame.OpenBlock(c.out)), c.encoder)
	c.out = frame.CloseBlock(c.out, frame.Block{At: at, Stream: s.id, End: end, Max: int(min(c.peer.MaxFrameSize, frame.MaxSize))})
	c.space(0)
	if end {
		s.sendEnd = true
		s.close()
	}
}

// Head sends a header block: a head, or trailers if the stream ends with it.
// Those may have to wait for the body: then b is kept until the stream is over.
func (s *Stream) Head(b Block, end bool) (kept bool) {
	c := s.c
	c.mu.Lock()
	switch {
	case s.over || s.sendEnd || s.pendEnd:
	case len(s.pend) > 0 || s.id == 0:
		s.trail, s.pendEnd = b, end
		kept = true
	default:
		s.headers(b, end)
	}
	c.unlock()
	return kept
}

// Data sends a piece of body; each byte is given back to the stream that it is
// from, if there is one, when it was sent or dropped. For Handlers of from's
// connection, in their calls.
func (s *Stream) Data(p []byte, from *Stream, end bool) {
	c := s.c
	c.mu.Lock()
	if s.over || s.sendEnd || s.pendEnd {
		c.unlock()
		if from != nil {
			from.Credit(len(p))
		}
		return
	}
	sent := 0
	if s.id > 0 && len(s.pend) == 0 && c.ready.head == nil {
		sent = s.now(p, end)
	}
	if rest := p[sent:]; len(rest) > 0 {
		s.pend, s.from, s.pendEnd = append(s.pend, rest...), from, end
		if s.id > 0 && s.send > 0 {
			c.ready.push(s)
		}
	} else if end && !s.sendEnd {
		if len(s.pend) > 0 || s.id == 0 {
			s.pendEnd = true
		} else {
			c.out = frame.AppendDataHeader(c.space(frame.HeaderLen), s.id, 0, true)
			s.ends()
		}
	}
	c.unlock()
	if from != nil && sent > 0 {
		from.Credit(sent)
	}
}

func (s *Stream) ends() {
	s.sendEnd = true
	s.close()
}

// now sends what windows and out let of p.
func (s *Stream) now(p []byte, end bool) (sent int) {
	c := s.c
	for len(p) > sent && len(c.out) < fullOut {
		n := int(min(int64(len(p)-sent), int64(s.send), int64(c.send), quantum))
		if n <= 0 {
			break
		}
		last := end && sent+n == len(p)
		c.out = frame.AppendDataHeader(c.space(frame.HeaderLen+n), s.id, n, last)
		c.out = append(c.out, p[sent:sent+n]...)
		s.send -= frame.Window(n)
		c.send -= frame.Window(n)
		sent += n
		c.pays(2 + n>>10)
		if last {
			s.ends()
		}
	}
	return sent
}

// turn lets the streams that wait send, one quantum each.
func (c *Conn) turn() {
	for c.ready.head != nil && len(c.out) < fullOut && c.send > 0 && !c.ended {
		s := c.ready.pop()
		if s.over || len(s.pend) == 0 {
			continue
		}
		from, all := s.from, s.pend
		k := min(len(all), quantum)
		s.pend = all[k:] // the stream may be over after this
		n := s.now(all[:k], k == len(all) && s.pendEnd && s.trail == nil)
		c.credit(from, n)
		if s.over {
			continue
		}
		if s.pend = all[n:]; len(s.pend) > 0 {
			if s.send > 0 {
				c.ready.push(s)
			}
			continue
		}
		s.pend, s.from = nil, nil
		if s.trail != nil {
			b, end := s.trail, s.pendEnd
			s.trail, s.pendEnd = nil, false
			s.headers(b, end)
		}
	}
}

// maxRounds is how often one goroutine, which has its own work, writes what
// others append meanwhile.
const maxRounds = 4

// Flush writes what there is, unless somebody does already. It does not wait
// for the peer: what the kernel does not take at once a goroutine of the
// connection writes.
func (c *Conn) Flush() {
	c.mu.Lock()
	if c.writing || c.ended || c.doomed != nil {
		c.unlock()
		return
	}
	c.writing = true
	for round := 0; ; round++ {
		c.turn()
		if len(c.out) == 0 || c.ended {
			c.wrote()
			c.unlock()
			return
		}
		if c.try == nil || round == maxRounds {
			break
		}
		b := c.out
		c.out = nil
		c.unlock()
		n, err := c.try(b)
		c.mu.Lock()
		if err == nil && n < len(b) {
			c.rest = b[n:]
			break
		}
		codec.GiveBuffer(b)
		if err != nil {
			c.broken()
			return
		}
	}
	c.writers.Add(1)
	go c.write()
	c.unlock()
}

// wrote says that nobody writes any more.
func (c *Conn) wrote() {
	if c.writing = false; c.quiet != nil {
		close(c.quiet)
		c.quiet = nil
	}
}

// broken gives up writing: reading will show why, or is made to end.
func (c *Conn) broken() {
	c.wrote()
	c.out, c.gone = nil, true
	c.c.Conn.SetDeadline(past)
	c.unlock()
}

// write writes and waits for the peer, until there is nothing left.
func (c *Conn) write() {
	defer c.writers.Done()
	for {
		c.mu.Lock()
		b := c.rest
		if c.rest = nil; b == nil {
			c.turn()
			b, c.out = c.out, nil
		}
		if len(b) == 0 {
			c.wrote()
			c.unlock()
			return
		}
		c.unlock()
		_, err := c.c.Conn.Write(b)
		codec.GiveBuffer(b)
		if err != nil {
			c.mu.Lock()
			c.broken()
			return
		}
	}
}

// trier gives what writes without waiting; nil: nothing can.
func trier(conn net.Conn) func(b []byte) (int, error) {
	if w, ok := conn.(interface {
		TryWrite(b []byte) (int, error)
	}); ok {
		return w.TryWrite
	}
	t, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	var b []byte // of the one who writes
	var n int
	var failed error
	on := func(fd uintptr) bool {
		n, failed = unix.Write(int(fd), b)
		return true
	}
	return func(p []byte) (int, error) {
		b = p
		err := raw.Write(on)
		b = nil
		switch {
		case err != nil:
			return 0, err
		case failed == unix.EAGAIN || failed == unix.EINTR:
			return 0, nil
		}
		return max(n, 0), failed
	}
}
