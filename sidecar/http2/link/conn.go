package link

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
	"github.com/heddle-mesh/heddle/sidecar/http2/hpack"
	"github.com/heddle-mesh/heddle/sidecar/http2/message"
)

// Handler takes what comes. Its calls come from Serve's goroutine, one after
// the other. A Fault of the stream has the stream reset, and Ended called;
// another ends the connection.
type Handler interface {
	// Headers takes a header block; Stream.Owner is nil if it opened the stream.
	// The list is valid during the call, unless it is taken by Conn.TakeList.
	Headers(s *Stream, l *hpack.List, end bool) *frame.Fault
	// Data takes a piece of body. Each byte has to be given back by Stream.Credit
	// or by Stream.Data of another stream, once it is here no more.
	Data(s *Stream, p []byte, end bool) *frame.Fault
	// Ended says that the stream has ended before its time, and not by Reset.
	Ended(s *Stream, e End)
}

// End is how a stream ended before its time.
type End struct {
	Code frame.Code
	// Unseen: no application has seen anything of it (RFC 9113, 8.7).
	Unseen bool
	Conn   bool // the connection ended, not the stream alone
}

// Config of a Conn.
type Config struct {
	// Conn is best plain TCP, or has TryWrite(b []byte) (int, error), which writes
	// what can be written without waiting. What has not, such as TLS by itself, is
	// written by a goroutine of its own each time.
	Conn    net.Conn
	Read    []byte // what was already read of it
	Server  bool   // the peer is a client
	Handler Handler
	Streams uint32 // most that the peer, or to a server we, may have open; zero: DefaultStreams, clientStreams
}

// Conn is one connection.
type Conn struct {
	c       Config
	reader  *frame.Reader
	decoder *hpack.Decoder

	// Of Serve's goroutine.
	list    *hpack.List
	buf     []byte
	r, w    int
	touched []*Conn
	recv    frame.Window // of the connection, under mu

	try     func(b []byte) (int, error) // writes without waiting; nil: cannot
	writers sync.WaitGroup

	mu       sync.Mutex
	encoder  *hpack.Encoder
	peer     frame.Settings
	began    bool // the peer's settings have come
	acked    bool // ours were acknowledged
	streams  map[uint32]*Stream
	closed   [keptClosed]uint32 // ids, with byReset; a ring
	nClosed  int
	lastPeer uint32 // highest stream that the peer opened
	next     uint32 // stream that we open next
	held     int    // bytes that came and wait
	due      uint32 // bytes by which the connection's window may grow
	send     frame.Window
	out      []byte
	rest     []byte        // of a write that could not be done without waiting
	writing  bool          // somebody writes
	quiet    chan struct{} // closed when nobody does; nil: nobody asks
	ended    bool          // nothing is sent any more
	doomed   error         // why the connection is to be closed at once
	ready    queue         // streams with DATA that may be sent
	todo     []credit
	waiting  queue // streams that we open when the peer takes them
	nWaiting int
	gone     bool         // no more streams may be opened, by us
	drain    int          // steps of draining done
	lastSaid uint32       // by the second GOAWAY: it may not rise any more
	quit     *frame.Fault // why Serve shall end
	nuisance int
	age      int // seconds
	idle     int // seconds without streams
	inBlock  int // seconds since a header block began
	blocking bool
}

// New makes a connection of c; Serve begins to talk.
func New(c Config) *Conn {
	switch {
	case c.Streams > 0:
	case c.Server:
		c.Streams = DefaultStreams
	default:
		c.Streams = clientStreams
	}
	lc := &Conn{c: c, reader: frame.NewReader(c.Server), encoder: hpack.NewEncoder(), peer: frame.DefaultSettings(),
		decoder: hpack.NewDecoder(hpack.Limits{Table: hpack.DefaultTable, Size: maxHead, Fields: maxFields}, message.Marks),
		recv:    connWindow, send: frame.DefaultWindow, streams: map[uint32]*Stream{}, next: 1, try: trier(c.Conn)}
	if len(c.Read) > 0 {
		lc.buf = codec.TakeBuffer(len(c.Read))
		lc.w = copy(lc.buf, c.Read)
	}
	return lc
}

var errDeaf = errors.New("the peer does not read what it asked for")

// Serve talks until the connection ends, by the peer, by Close or with ctx. The
// connection is closed then, and all its streams have ended. nil: in order.
func (c *Conn) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.c.Conn.Close() })
	defer stop()
	c.greet()
	fault, err := c.read()
	switch {
	case fault != nil:
		c.farewell(fault)
		if err = fault; fault.Code == frame.NoError {
			err = nil
		}
	case errors.Is(err, io.EOF) && !c.Busy():
		err = nil
	}
	c.end(fault)
	if c.doomed != nil {
		return c.doomed
	}
	return err
}

func (c *Conn) greet() {
	c.mu.Lock()
	if c.c.Server {
		c.out = frame.AppendSettings(c.out, frame.Setting{ID: frame.MaxConcurrentStreams, Value: c.c.Streams},
			frame.Setting{ID: frame.InitialWindowSize, Value: StreamWindow}, frame.Setting{ID: frame.MaxHeaderListSize, Value: maxHead})
	} else {
		c.out = frame.AppendSettings(append(c.out, frame.Preface...), frame.Setting{ID: frame.EnablePush},
			frame.Setting{ID: frame.InitialWindowSize, Value: StreamWindow}, frame.Setting{ID: frame.MaxHeaderListSize, Value: maxHead})
	}
	c.out = frame.AppendWindowUpdate(c.out, 0, connWindow-frame.DefaultWindow)
	c.unlock()
	c.Flush()
}

// read handles frames until there are no more.
func (c *Conn) read() (*frame.Fault, error) {
	var f frame.Frame
	for {
		for c.r < c.w {
			n, ok, fault := c.reader.Next(c.buf[c.r:c.w], &f)
			c.r += n
			if fault != nil && !fault.Stream {
				return fault, nil
			}
			if !ok {
				break
			}
			if fault = c.take(&f, fault); fault != nil {
				return fault, nil
			}
		}
		c.settle()
		if err := c.fill(); err != nil {
			c.mu.Lock()
			quit := c.quit
			c.mu.Unlock()
			return quit, err
		}
	}
}

// Touch has other flushed when all that was read has been handled. For Handlers
// in their calls.
func (c *Conn) Touch(other *Conn) {
	for _, t := range c.touched {
		if t == other {
			return
		}
	}
	c.touched = append(c.touched, other)
}

func (c *Conn) settle() {
	for i, t := range c.touched {
		t.Flush()
		c.touched[i] = nil
	}
	c.touched = c.touched[:0]
	c.mu.Lock()
	if in := c.reader.InBlock(); in != c.blocking {
		c.blocking, c.inBlock = in, 0
	}
	rest := len(c.streams) == 0
	c.unlock()
	if rest && c.r == c.w {
		c.reader.Shrink()
		if c.list != nil {
			GiveList(c.list)
			c.list = nil
		}
	}
	c.Flush()
}

// fill reads once, behind what is there.
func (c *Conn) fill() error {
	switch {
	case c.r == c.w:
		full := c.w == len(c.buf)
		c.r, c.w = 0, 0
		if full || len(c.buf) > codec.SmallBuffer && !c.Busy() {
			size := codec.SmallBuffer
			if c.buf != nil && c.Busy() {
				size = min(len(c.buf)+1, codec.LargeBuffer)
			}
			if c.buf != nil {
				codec.GiveBuffer(c.buf)
			}
			c.buf = codec.TakeBuffer(size)
		}
	case c.w < len(c.buf):
	case c.r > 0:
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	default: // a frame needs more; the largest fits in a large buffer
		larger := codec.TakeBuffer(len(c.buf) + 1)
		copy(larger, c.buf)
		codec.GiveBuffer(c.buf)
		c.buf = larger
	}
	n, err := c.c.Conn.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// farewell tells the peer why the connection ends, and waits for what it still
// sends, which would turn our last words into a reset.
func (c *Conn) farewell(fault *frame.Fault) {
	conn := c.c.Conn
	conn.SetWriteDeadline(time.Now().Add(lastWrite))
	c.mu.Lock()
	last := c.lastPeer
	if c.drain > 1 {
		last = c.lastSaid
	}
	c.out = frame.AppendGoAway(c.out, last, fault.Code, fault.Detail)
	c.unlock()
	c.Flush()
	c.mu.Lock()
	if c.writing {
		quiet := make(chan struct{})
		c.quiet = quiet
		c.unlock()
		<-quiet
		c.mu.Lock()
	}
	c.ended = true
	c.unlock()
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	conn.SetReadDeadline(time.Now().Add(lastWrite))
	for n, err := 0, error(nil); err == nil && n < maxOut; {
		c.r, c.w = 0, 0
		if err = c.fill(); err == nil {
			n += c.w
		}
	}
}

// end closes the connection and all its streams.
func (c *Conn) end(fault *frame.Fault) {
	c.mu.Lock()
	c.ended, c.gone = true, true
	c.mu.Unlock()
	c.c.Conn.Close()
	c.writers.Wait()
	c.mu.Lock()
	all := c.streams
	c.streams = nil
	for _, s := range all {
		s.dropped()
		s.over = true
	}
	unseen := c.turnAway()
	c.out, c.rest = nil, nil
	c.unlock()
	code := frame.InternalError
	if fault != nil && fault.Code == frame.NoError {
		code = frame.Cancel
	}
	for _, s := range all {
		c.c.Handler.Ended(s, End{Code: code, Conn: true})
	}
	for _, s := range unseen {
		c.c.Handler.Ended(s, End{Code: frame.RefusedStream, Conn: true, Unseen: true})
	}
	for _, t := range c.touched {
		t.Flush()
	}
	c.touched = nil
	if c.buf != nil {
		codec.GiveBuffer(c.buf)
		c.buf = nil
	}
}
