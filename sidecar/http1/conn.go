package http1

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/sidecar/http1/codec"
	"github.com/heddle-mesh/heddle/sidecar/tunnel"
)

// Conn is a connection, to a client or to an endpoint, with what was read of it
// and not used yet. It holds no buffer while it is idle, if it is plain TCP.
// One goroutine reads and one writes.
type Conn struct {
	net.Conn
	// IdleSince belongs to the pool: when the connection became idle.
	IdleSince time.Time
	// Reused tells that it has already carried an exchange.
	Reused bool
	// Sidecar tells that a verified sidecar is at the other end: its
	// x-heddle-reason is believed.
	Sidecar bool
	// Owner belongs to whoever opened it.
	Owner any
	// Fields are whole field lines, with CRLF, that Open wants this attempt's
	// request to carry; fields of the same names in the request give way to them.
	// Open sets them each time, or leaves them nil.
	Fields []byte

	buf    []byte
	r, w   int
	filled bool // the last read filled the buffer: larger ones pay

	raw   syscall.RawConn // plain TCP only
	onRaw func(fd uintptr) bool
	rawN  int
	rawE  error

	// The TCP connection underneath, asked by Alive without allocating.
	under  syscall.RawConn
	onPoll func(fd uintptr)
	poll   [1]unix.PollFd
}

var errBufferFull = errors.New("read buffer is full")

// NewConn wraps c; read holds bytes that were already read from it.
func NewConn(c net.Conn, read []byte) *Conn {
	hc := &Conn{Conn: c}
	if t := tunnel.TCP(c); t != nil {
		if raw, err := t.SyscallConn(); err == nil {
			hc.under, hc.onPoll = raw, hc.pollIdle
			if net.Conn(t) == c {
				hc.raw, hc.onRaw = raw, hc.readRaw
			}
		}
	}
	if len(read) > 0 {
		hc.buf = codec.TakeBuffer(len(read))
		hc.w = copy(hc.buf, read)
	}
	return hc
}

func (c *Conn) buffered() []byte { return c.buf[c.r:c.w] }

func (c *Conn) consume(n int) {
	if c.r += n; c.r == c.w {
		c.r, c.w = 0, 0
	}
}

// release gives an empty buffer back.
func (c *Conn) release() {
	if c.buf != nil && c.r == c.w {
		codec.GiveBuffer(c.buf)
		c.buf, c.r, c.w, c.filled = nil, 0, 0, false
	}
}

// Park gives the buffer of an idle connection back.
func (c *Conn) Park() { c.release() }

// fill reads once. It makes room first: by moving what is there to the front,
// by a larger buffer if that is full.
func (c *Conn) fill() error {
	if c.buf == nil && c.raw != nil {
		return c.fillRaw()
	}
	if err := c.room(); err != nil {
		return err
	}
	n, err := c.Conn.Read(c.buf[c.w:])
	return c.took(n, err)
}

func (c *Conn) took(n int, err error) error {
	c.w += n
	c.filled = c.w == len(c.buf)
	if n > 0 {
		return nil // an error will come again
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

func (c *Conn) room() error {
	switch {
	case c.buf == nil:
		c.buf = codec.TakeBuffer(codec.SmallBuffer)
	case c.r == c.w:
		c.r, c.w = 0, 0
		if c.filled && len(c.buf) < codec.LargeBuffer {
			size := len(c.buf) + 1
			codec.GiveBuffer(c.buf)
			c.buf = codec.TakeBuffer(size)
		}
	case c.w < len(c.buf):
	case c.r > 0:
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	case len(c.buf) == codec.LargeBuffer:
		return errBufferFull
	default:
		larger := codec.TakeBuffer(len(c.buf) + 1)
		c.w = copy(larger, c.buf[:c.w])
		codec.GiveBuffer(c.buf)
		c.buf = larger
	}
	return nil
}

// fillRaw waits for bytes before it takes a buffer.
func (c *Conn) fillRaw() error {
	c.rawN, c.rawE = 0, nil
	if err := c.raw.Read(c.onRaw); err != nil {
		return err
	}
	if c.rawE == nil && c.rawN == 0 {
		return io.EOF
	}
	return c.took(c.rawN, c.rawE)
}

func (c *Conn) readRaw(fd uintptr) bool {
	buf := codec.TakeBuffer(codec.SmallBuffer)
	for {
		n, err := unix.Read(int(fd), buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			codec.GiveBuffer(buf)
			return false
		case err != nil || n <= 0:
			codec.GiveBuffer(buf)
			c.rawE = err
			return true
		}
		c.buf, c.r, c.w, c.rawN = buf, 0, 0, n
		return true
	}
}

// Alive looks, without blocking, whether an idle connection is still usable:
// an endpoint that closed it, or that sent something unasked, is not.
func (c *Conn) Alive() bool {
	if c.r != c.w {
		return false
	}
	if c.under == nil {
		return true
	}
	return c.under.Control(c.onPoll) == nil && c.poll[0].Revents == 0
}

func (c *Conn) pollIdle(fd uintptr) {
	c.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
	if _, err := unix.Poll(c.poll[:], 0); err != nil {
		c.poll[0].Revents = 0 // not known: the write will tell
	}
}

// Close closes the connection and gives its buffer back. Nobody may be reading.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.r, c.w = 0, 0
	c.release()
	return err
}

// Abort closes with RST where that is possible, so that the other side does
// not take what it got for the whole.
func (c *Conn) Abort() {
	tunnel.Reset(c.Conn)
}
