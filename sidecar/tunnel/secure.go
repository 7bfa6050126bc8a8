package tunnel

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
)

// maxRecord is the payload of one TLS record (RFC 8446, 5.1).
const maxRecord = 16 << 10

// recordOverhead is what a record may be longer than its payload.
const recordOverhead = 5 + 256

// ErrTruncated says that TCP ended before TLS did: what came may not be all.
// crypto/tls alone calls it an end when it falls between two records.
var ErrTruncated = errors.New("connection ended without TLS close_notify")

// Secure is a TLS connection whose large writes leave in one system call for
// many records, and whose large reads come in likewise: crypto/tls itself does
// one per record.
type Secure struct {
	*tls.Conn
	wire *wire
}

// Client makes the dialling side of a TLS connection over c.
func Client(c net.Conn, config *tls.Config) *Secure {
	w := &wire{Conn: c}
	return &Secure{Conn: tls.Client(w, config), wire: w}
}

// Server makes the accepting side; read holds what was already read from c.
func Server(c net.Conn, read []byte, config *tls.Config) *Secure {
	w := &wire{Conn: c, unread: read}
	return &Secure{Conn: tls.Server(w, config), wire: w}
}

// Write writes b, in one batch if it takes several records.
func (s *Secure) Write(b []byte) (int, error) {
	if len(b) <= maxRecord {
		return s.Conn.Write(b)
	}
	s.wire.cork()
	n, err := s.Conn.Write(b)
	if ferr := s.wire.flush(); err == nil {
		err = ferr
	}
	return n, err
}

// Read reads what has arrived, several records if they are surely there.
func (s *Secure) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	for err == nil && n > 0 && len(b)-n >= maxRecord && s.wire.w-s.wire.r > maxRecord+recordOverhead {
		var m int
		m, err = s.Conn.Read(b[n:])
		n += m
	}
	if n > 0 {
		return n, nil // an error will come again
	}
	return n, err
}

// wire is the connection under TLS.
type wire struct {
	net.Conn
	unread []byte // of the first bytes, read before it was known to be TLS

	buf  []byte // a large read, not all used yet
	r, w int
	bulk bool // reads come back full: read ahead

	mu     sync.Mutex // the reading goroutine may write alerts
	corked bool
	out    []byte
}

// NetConn is the connection underneath, as tls.Conn.NetConn has it.
func (w *wire) NetConn() net.Conn { return w.Conn }

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.read(p)
	if err == io.EOF {
		err = ErrTruncated // after a close_notify nobody reads on
	}
	return n, err
}

func (w *wire) read(p []byte) (int, error) {
	if len(w.unread) > 0 {
		n := copy(p, w.unread)
		if w.unread = w.unread[n:]; len(w.unread) == 0 {
			w.unread = nil
		}
		return n, nil
	}
	if w.r < w.w {
		n := copy(p, w.buf[w.r:w.w])
		if w.r += n; w.r == w.w {
			giveBuffer(w.buf)
			w.buf = nil
		}
		return n, nil
	}
	// tls.Conn asks for about a record at most, once it has seen a full one.
	if !w.bulk || len(p) >= largeBuffer {
		n, err := w.Conn.Read(p)
		w.bulk = n == len(p) && n >= maxRecord
		return n, err
	}
	w.buf = takeBuffer(largeBuffer)
	n, err := w.Conn.Read(w.buf)
	w.bulk = n >= maxRecord
	if n == 0 {
		giveBuffer(w.buf)
		w.buf = nil
		return 0, err
	}
	m := copy(p, w.buf[:n])
	if w.r, w.w = m, n; m == n {
		giveBuffer(w.buf)
		w.buf = nil
	}
	return m, nil // an error will come again
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.corked {
		return w.Conn.Write(p)
	}
	if w.out == nil {
		w.out = takeBuffer(largeBuffer)[:0]
	}
	if len(w.out)+len(p) > cap(w.out) {
		if err := w.flushLocked(); err != nil {
			return 0, err
		}
		if len(p) > cap(w.out) {
			return w.Conn.Write(p)
		}
	}
	w.out = append(w.out, p...)
	return len(p), nil
}

func (w *wire) cork() {
	w.mu.Lock()
	w.corked = true
	w.mu.Unlock()
}

func (w *wire) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.corked = false
	if w.out == nil {
		return nil
	}
	err := w.flushLocked()
	giveBuffer(w.out)
	w.out = nil
	return err
}

func (w *wire) flushLocked() error {
	_, err := w.Conn.Write(w.out)
	w.out = w.out[:0]
	return err
}
