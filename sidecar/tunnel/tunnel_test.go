package tunnel

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
)

// pair gives both ends of a TCP connection.
func pair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []net.Conn{c, s} {
		x.SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { x.Close() })
	}
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// secure puts TLS on a pair.
func secure(t testing.TB, a, b net.Conn) (client, server *Secure) {
	t.Helper()
	const id = "spiffe://mesh.test/ns/a/sa/b"
	store := pki.New(t, "mesh.test").Store(t, id)
	client = Client(a, store.ClientConfig(spiffeid.RequireFromString(id), "x"))
	server = Server(b, nil, store.ServerConfig("x"))
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := errors.Join(client.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// joined starts a tunnel between two ends and gives its result.
func joined(t testing.TB, over string) (left, right net.Conn, result <-chan error, tun *Tunnel) {
	t.Helper()
	l, down := pair(t)
	up, r := pair(t)
	tun = &Tunnel{Down: down, Up: up}
	left, right = l, r
	if over == "TLS" {
		c, s := secure(t, up, r)
		tun.Up, right = c, s
	}
	done := make(chan error, 1)
	go func() { done <- tun.Run() }()
	return left, right, done, tun
}

func both(t *testing.T, f func(t *testing.T, over string)) {
	for _, over := range []string{"TCP", "TLS"} {
		t.Run(over, func(t *testing.T) { f(t, over) })
	}
}

func TestBytesBothWays(t *testing.T) {
	both(t, func(t *testing.T, over string) {
		left, right, result, tun := joined(t, over)
		data := make([]byte, 5<<20+17)
		rand.Read(data)
		for _, way := range [][2]net.Conn{{left, right}, {right, left}} {
			go func() {
				way[0].Write(data)
				way[0].(interface{ CloseWrite() error }).CloseWrite()
			}()
			got, err := io.ReadAll(way[1])
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("got %d bytes, %v", len(got), err)
			}
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
		if tun.Sent() != int64(len(data)) || tun.Received() != int64(len(data)) {
			t.Errorf("counted %d and %d", tun.Sent(), tun.Received())
		}
	})
}

func TestResetFromEitherSide(t *testing.T) {
	both(t, func(t *testing.T, over string) {
		for _, first := range []string{"left", "right"} {
			left, right, result, _ := joined(t, over)
			io.WriteString(left, "x")
			io.ReadFull(right, make([]byte, 1))
			victim := right
			if first == "left" {
				Reset(left)
			} else {
				Reset(right)
				victim = left
			}
			if _, err := victim.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s resets: the other side got %v", first, err)
			}
			if err := <-result; err == nil {
				t.Error("the tunnel ended as if in order")
			}
		}
	})
}

// TCP that ends without a TLS goodbye is a break, not an end.
func TestTruncatedTLS(t *testing.T) {
	left, right, _, _ := joined(t, "TLS")
	right.(*Secure).NetConn().(*wire).Conn.Close()
	if _, err := left.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("client got %v", err)
	}
}

// counted counts system calls' worth of writes.
type counted struct {
	*net.TCPConn
	writes atomic.Int32
}

func (c *counted) Write(b []byte) (int, error) { c.writes.Add(1); return c.TCPConn.Write(b) }

func TestRecordsLeaveTogether(t *testing.T) {
	a, b := pair(t)
	c := &counted{TCPConn: a}
	client, server := secure(t, c, b)
	go io.Copy(io.Discard, server)
	client.Write(make([]byte, 100))
	c.writes.Store(0)
	if n, err := client.Write(make([]byte, 200<<10)); n != 200<<10 || err != nil {
		t.Fatal(n, err)
	}
	if n := c.writes.Load(); n != 1 {
		t.Errorf("13 records left in %d writes", n)
	}
}

// A plain tunnel that has carried much must be spliced: wrapping a connection
// would lose that silently.
func TestSplices(t *testing.T) {
	left, right, _, tun := joined(t, "TCP")
	go io.Copy(io.Discard, right)
	before := pipes(t)
	b := make([]byte, 64<<10)
	for range 16 {
		if _, err := left.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(5 * time.Second); pipes(t) == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no pipe was opened after %d bytes", tun.Received())
		}
	}
}

func pipes(t testing.TB) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "pipe:") {
			n++
		}
	}
	return n
}

func TestUndecided(t *testing.T) {
	isHello := func(b []byte) (decide, other bool) {
		if len(b) < 5 {
			return false, false
		}
		return true, string(b[:5]) == "HELLO"
	}
	start := func(t *testing.T, first string) (left, right *net.TCPConn, said chan string) {
		l, down := pair(t)
		up, r := pair(t)
		said = make(chan string, 1)
		go func() {
			b, other, err := (&Tunnel{Down: down, Up: up, FromDown: []byte(first)}).RunUndecided(isHello)
			if !other {
				b = append([]byte("tunnel "), b...)
				if err != nil {
					b = []byte(err.Error())
				}
			}
			said <- string(b)
		}()
		return l, r, said
	}
	t.Run("client says the word", func(t *testing.T) {
		left, right, said := start(t, "HE")
		io.WriteString(left, "LLO world")
		if got := <-said; got != "HELLO world" {
			t.Errorf("got %q", got)
		}
		if b, err := io.ReadAll(right); len(b) > 0 || err != nil {
			t.Errorf("the server got %q, %v", b, err)
		}
		left.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := left.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the client's connection is not left open: %v", err)
		}
	})
	t.Run("client says a letter and waits", func(t *testing.T) {
		for _, first := range []string{"", "H"} {
			left, right, _ := start(t, first)
			if first == "" {
				io.WriteString(left, "H")
			}
			right.SetReadDeadline(time.Now().Add(5 * time.Second))
			var b [2]byte
			if n, err := right.Read(b[:]); string(b[:n]) != "H" {
				t.Errorf("the server got %q, %v", b[:n], err)
			}
			io.WriteString(right, "h")
			left.SetReadDeadline(time.Now().Add(5 * time.Second))
			if n, err := left.Read(b[:]); string(b[:n]) != "h" {
				t.Errorf("the client got %q, %v", b[:n], err)
			}
		}
	})
	t.Run("client says something else", func(t *testing.T) {
		left, right, said := start(t, "x")
		io.WriteString(left, "yzzy")
		left.CloseWrite()
		if b, err := io.ReadAll(right); string(b) != "xyzzy" || err != nil {
			t.Errorf("the server got %q, %v", b, err)
		}
		right.CloseWrite()
		if got := <-said; got != "tunnel " {
			t.Errorf("ended with %q", got)
		}
	})
	t.Run("server speaks first", func(t *testing.T) {
		left, right, said := start(t, "")
		io.WriteString(right, "220")
		if _, err := io.ReadFull(left, make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		io.WriteString(left, "HELLO") // too late to mean anything
		left.CloseWrite()
		if b, err := io.ReadAll(right); string(b) != "HELLO" || err != nil {
			t.Errorf("the server got %q, %v", b, err)
		}
		right.CloseWrite()
		<-said
	})
}

func BenchmarkTunnelTLS(b *testing.B) {
	left, right, _, _ := joined(b, "TLS")
	left.SetDeadline(time.Time{})
	tls := right.(*Secure)
	tls.SetDeadline(time.Time{})
	block := make([]byte, 256<<10)
	b.SetBytes(int64(len(block)))
	go func() {
		for range b.N {
			left.Write(block)
		}
	}()
	b.ReportAllocs()
	buf := make([]byte, 256<<10)
	for left := b.N * len(block); left > 0; {
		n, err := tls.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		left -= n
	}
}
