package link

import (
	"errors"
	"sync"

	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
)

// Stream is one stream of a connection. It is not to be copied or used again.
type Stream struct {
	// Owner belongs to the Handler. It is set before Open, or in the call that
	// shows the stream.
	Owner any

	c  *Conn
	id uint32

	// Under c.mu.
	send     frame.Window
	recv     frame.Window
	window   uint32 // that the peer is to have
	due      uint32 // by which recv may grow
	held     int    // bytes that came and wait
	recvEnd  bool   // the peer has said its last
	sendEnd  bool   // we have
	over     bool   // it is in the table no more
	pend     []byte // to be sent when it may be
	from     *Stream
	pendEnd  bool // the stream ends with pend, trail or head, whichever is last
	trail    Block
	head     Block // while it waits to be opened
	queued   bool
	nextDown *Stream // in the queue
}

// Block is a header block that is to be sent: it is encoded when it is its turn.
type Block interface {
	AppendTo(dst []byte, e *hpack.Encoder) []byte
}

// Why a stream cannot be opened.
var (
	ErrFull = errors.New("the peer takes no more streams now")
	ErrGone = errors.New("the connection takes no more streams")
)

// byReset marks the id of a stream that we reset: what is still under way on it
// is no fault of the peer's.
const byReset = 1 << 31

const maxID = 1<<31 - 1

// Conn is the stream's connection.
func (s *Stream) Conn() *Conn { return s.c }

// Open opens a stream to a server with a head, at once or when the server takes
// more: head has to be kept until the stream is over. ErrFull: too many wait
// already. ErrGone: this connection opens no more.
func (c *Conn) Open(s *Stream, head Block, end bool) error {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case c.gone || c.ended || c.doomed != nil || c.next > maxID:
		return ErrGone
	case c.nWaiting >= maxWaiting:
		return ErrFull
	}
	s.c, s.head, s.pendEnd = c, head, end
	c.waiting.push(s)
	c.nWaiting++
	c.admit()
	return nil
}

// admit opens streams that wait.
func (c *Conn) admit() {
	for c.began && !c.gone && c.waiting.head != nil && uint32(len(c.streams)) < min(c.peer.MaxConcurrentStreams, c.c.Streams) {
		s := c.waiting.pop()
		if s.over {
			continue
		}
		c.nWaiting--
		if c.next > maxID {
			c.gone = true
		}
		c.add(s, c.next)
		c.next += 2
		head, trail := s.head, s.trail
		s.head = nil
		switch {
		case len(s.pend) > 0:
			s.headers(head, false)
			if s.send > 0 {
				c.ready.push(s)
			}
		case trail != nil:
			s.trail = nil
			s.headers(head, false)
			s.headers(trail, s.pendEnd)
		default:
			s.headers(head, s.pendEnd)
		}
	}
}

// turnAway ends the streams that wait.
func (c *Conn) turnAway() (all []*Stream) {
	for c.waiting.head != nil {
		s := c.waiting.pop()
		if !s.over {
			s.dropped()
			s.over = true
			all = append(all, s)
		}
	}
	c.nWaiting = 0
	return all
}

func (c *Conn) add(s *Stream, id uint32) {
	s.id, s.send = id, frame.Window(c.peer.InitialWindowSize)
	s.recv, s.window = StreamWindow, StreamWindow
	c.streams[id] = s
	c.idle = 0
}

// Count tells how many streams are open or wait to be.
func (c *Conn) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) + c.nWaiting
}

// Busy tells whether streams are open.
func (c *Conn) Busy() bool { return c.Count() > 0 }

// Usable tells whether streams may be opened, now or when others have ended.
func (c *Conn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone && !c.ended && c.doomed == nil && c.next <= maxID
}

// Each calls f for every open stream, without a lock.
func (c *Conn) Each(f func(s *Stream)) {
	c.mu.Lock()
	all := make([]*Stream, 0, len(c.streams))
	for _, s := range c.streams {
		all = append(all, s)
	}
	c.mu.Unlock()
	for _, s := range all {
		f(s)
	}
}

// remove takes the stream out of the table.
func (s *Stream) remove(mark uint32) {
	c := s.c
	if s.over {
		return
	}
	s.over = true
	s.dropped()
	if s.id == 0 {
		c.nWaiting-- // admit passes it over
		return
	}
	delete(c.streams, s.id)
	c.remember(s.id | mark)
	c.admit()
}

func (c *Conn) remember(mark uint32) {
	c.closed[c.nClosed%keptClosed] = mark
	c.nClosed++
}

// dropped gives back what will not be sent.
func (s *Stream) dropped() {
	if len(s.pend) > 0 {
		s.c.credit(s.from, len(s.pend))
	}
	s.pend, s.from, s.trail, s.pendEnd = nil, nil, nil, false
}

// close takes the stream out once both sides have said their last.
func (s *Stream) close() {
	if s.recvEnd && s.sendEnd {
		s.c.pays(costReset)
		s.remove(0)
	}
}

// how tells how a closed stream closed: its mark, and whether that is known.
func (c *Conn) how(id uint32) (mark uint32, known bool) {
	for i := range min(c.nClosed, keptClosed) {
		if v := c.closed[(c.nClosed-1-i)%keptClosed]; v&maxID == id {
			return v & byReset, true
		}
	}
	return 0, false
}

// excuseNone forgets that we reset a stream: its client has, too, and nothing can
// be under way any more.
func (c *Conn) excuseNone(id uint32) {
	for i := range min(c.nClosed, keptClosed) {
		if v := &c.closed[(c.nClosed-1-i)%keptClosed]; *v&maxID == id {
			*v = id
			return
		}
	}
}

// Reset ends the stream at once, if it has not ended.
func (s *Stream) Reset(code frame.Code) {
	c := s.c
	c.mu.Lock()
	if !s.over {
		if s.id > 0 {
			c.out = frame.AppendRST(c.space(frame.HeaderLen+4), s.id, code)
		}
		s.remove(byReset)
	}
	c.unlock()
}

// Over tells whether the stream has ended, in whatever way.
func (s *Stream) Over() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.over
}

var lists = sync.Pool{New: func() any { return new(hpack.List) }}

// TakeList gives the list of the present call of Handler.Headers to the caller,
// who has to give it back by GiveList.
func (c *Conn) TakeList() *hpack.List {
	l := c.list
	c.list = nil
	return l
}

// keepList is up to which size a list's memory is kept for others.
const keepList = 8 << 10

// GiveList takes a list back.
func GiveList(l *hpack.List) {
	l.Shrink(keepList)
	lists.Put(l)
}

// queue is of streams, first in, first out.
type queue struct{ head, tail *Stream }

func (q *queue) push(s *Stream) {
	if s.queued {
		return
	}
	s.queued = true
	if q.tail == nil {
		q.head = s
	} else {
		q.tail.nextDown = s
	}
	q.tail = s
}

func (q *queue) pop() *Stream {
	s := q.head
	q.head, s.nextDown, s.queued = s.nextDown, nil, false
	if q.head == nil {
		q.tail = nil
	}
	return s
}
