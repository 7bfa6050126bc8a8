package tunnel

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Tunnel joins two connections. Its fields are set before Run.
type Tunnel struct {
	Down, Up         net.Conn // towards who dialled, and who was dialled
	FromDown, FromUp []byte   // already read from each, to be passed on first
	// Patience, for RunUndecided, is how long a Down that has said something, but
	// too little to judge it by, may take to say more; nil: usualPatience.
	Patience func(said []byte) time.Duration

	sent, received atomic.Int64
	state          atomic.Int32
	failed         sync.Once
	err            error
}

// usualPatience is for the rest of a first line, which comes in one packet or
// the next. A server of single letters must not be kept waiting longer, and
// what is passed on as bytes too early still arrives.
const usualPatience = 100 * time.Millisecond

// Who has spoken first, in a tunnel that began undecided.
const (
	undecided = iota
	decided   // it is a tunnel
	withdrawn // it is something else: nothing may reach Down any more
)

// Sent is how many bytes went to Down.
func (t *Tunnel) Sent() int64 { return t.sent.Load() }

// Received is how many bytes came from Down.
func (t *Tunnel) Received() int64 { return t.received.Load() }

// Run copies both ways until both have ended, then closes both connections.
// Nil: both sides said that they were done. Otherwise one broke off, and both
// were reset.
func (t *Tunnel) Run() error {
	t.state.Store(decided)
	var up sync.WaitGroup
	up.Go(func() { t.half(&direction{dst: t.Down, src: t.Up, count: &t.sent}, t.FromUp) })
	t.half(&direction{dst: t.Up, src: t.Down, count: &t.received}, t.FromDown)
	up.Wait()
	t.close()
	return t.err
}

// RunUndecided is Run for a connection of which it is not known yet what it
// is: if Up speaks first, it is a tunnel. Otherwise look judges what Down has
// said so far, as long as Up is silent: decide false asks for more bytes, and
// other takes the connection out of the tunnel: Up is closed, nothing was sent
// either way, and all that Down said (FromDown too) is returned for whoever goes on with it.
func (t *Tunnel) RunUndecided(look func(b []byte) (decide, other bool)) (said []byte, other bool, err error) {
	var up sync.WaitGroup
	up.Go(func() {
		t.half(&direction{dst: t.Down, src: t.Up, count: &t.sent, gate: &t.state}, nil)
	})
	b := takeBuffer(mediumBuffer)
	n := copy(b, t.FromDown)
	waiting := false
	for t.state.Load() == undecided && n < len(b) {
		if n > 0 && !waiting {
			waiting = true
			t.Down.SetReadDeadline(time.Now().Add(t.patience(b[:n])))
		}
		m, err := t.Down.Read(b[n:])
		n += m
		if err != nil {
			break // half will meet it again
		}
		decide, take := look(b[:n])
		if take && t.state.CompareAndSwap(undecided, withdrawn) {
			t.Down.SetReadDeadline(time.Time{})
			t.Up.Close()
			up.Wait()
			said = append([]byte(nil), b[:n]...)
			giveBuffer(b)
			return said, true, nil
		}
		if decide {
			break
		}
	}
	t.state.CompareAndSwap(undecided, decided)
	t.Down.SetReadDeadline(time.Time{})
	t.half(&direction{dst: t.Up, src: t.Down, count: &t.received}, b[:n])
	giveBuffer(b)
	up.Wait()
	t.close()
	return nil, false, t.err
}

func (t *Tunnel) patience(said []byte) time.Duration {
	if t.Patience == nil {
		return usualPatience
	}
	return t.Patience(said)
}

func (t *Tunnel) close() {
	t.Down.Close()
	t.Up.Close()
}

// half copies one direction. Its failure ends the other one too.
func (t *Tunnel) half(d *direction, first []byte) {
	err := d.copy(first)
	if err == nil || err == errWithdrawn {
		return
	}
	t.failed.Do(func() {
		t.err = err
		Reset(t.Down)
		Reset(t.Up)
	})
}

var errWithdrawn = errors.New("the connection is no tunnel")

// direction is one half of a tunnel.
type direction struct {
	dst, src net.Conn
	count    *atomic.Int64
	gate     *atomic.Int32 // not nil: ask before the first write

	raw   syscall.RawConn // of a plain src
	buf   []byte
	n     int
	err   error
	size  int
	onRaw func(uintptr) bool
}

func (d *direction) copy(first []byte) error {
	if len(first) > 0 {
		if err := d.write(first); err != nil {
			return err
		}
	}
	src, plain := d.src.(*net.TCPConn)
	dst, plainDst := d.dst.(*net.TCPConn)
	if plain {
		var err error
		if d.raw, err = src.SyscallConn(); err != nil {
			return err
		}
		d.onRaw = d.readRaw
	}
	d.size = smallBuffer
	defer d.release()
	for {
		if plain && plainDst && d.count.Load() >= spliceAfter && d.open() {
			d.release()
			return d.splice(dst, src)
		}
		err := d.read()
		if d.n > 0 {
			if err := d.write(d.buf[:d.n]); err != nil {
				return err
			}
			d.resize()
		}
		if err == io.EOF {
			return d.finish()
		}
		if err != nil {
			if !d.open() {
				return errWithdrawn // its end of the connection was closed for that
			}
			return err
		}
	}
}

// open passes the gate: false if the connection was withdrawn.
func (d *direction) open() bool {
	if d.gate != nil {
		if !d.gate.CompareAndSwap(undecided, decided) && d.gate.Load() == withdrawn {
			return false
		}
		d.gate = nil
	}
	return true
}

func (d *direction) write(b []byte) error {
	if !d.open() {
		return errWithdrawn
	}
	n, err := d.dst.Write(b)
	d.count.Add(int64(n))
	return err
}

// finish passes an end on.
func (d *direction) finish() error {
	if !d.open() {
		return errWithdrawn
	}
	if c, ok := d.dst.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return d.dst.Close()
}

func (d *direction) splice(dst, src *net.TCPConn) error {
	for {
		n, err := dst.ReadFrom(&io.LimitedReader{R: src, N: spliceChunk})
		d.count.Add(n)
		if err != nil {
			return err
		}
		if n < spliceChunk {
			return d.finish()
		}
	}
}

// read reads once into buf: for plain TCP without holding a buffer while there
// is nothing to read.
func (d *direction) read() error {
	if d.raw == nil {
		if d.buf == nil {
			d.buf = takeBuffer(d.size)
		}
		var err error
		d.n, err = d.src.Read(d.buf)
		return err
	}
	d.n, d.err = 0, nil
	if err := d.raw.Read(d.onRaw); err != nil {
		return err
	}
	if d.n == 0 && d.err == nil {
		return io.EOF
	}
	return d.err
}

func (d *direction) readRaw(fd uintptr) bool {
	if d.buf == nil {
		d.buf = takeBuffer(d.size)
	}
	for {
		n, err := unix.Read(int(fd), d.buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			d.release()
			return false
		case err != nil:
			d.err = err
			return true
		}
		d.n = n
		return true
	}
}

// resize lets the buffer follow the traffic.
func (d *direction) resize() {
	switch {
	case d.n == len(d.buf) && d.size < largeBuffer:
		d.size++ // the next class
		d.release()
		d.size = classOf(d.size)
	case d.n < smallBuffer && d.size > smallBuffer:
		d.size = smallBuffer
		d.release()
	}
}

func (d *direction) release() {
	if d.buf != nil {
		giveBuffer(d.buf)
		d.buf = nil
	}
}

func classOf(size int) int {
	switch {
	case size <= smallBuffer:
		return smallBuffer
	case size <= mediumBuffer:
		return mediumBuffer
	}
	return largeBuffer
}
