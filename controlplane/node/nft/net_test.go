package nft

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/controlplane/node/plan"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// world is two nodes with pods, as the scenarios have them; the rules are
// written on n1. Addresses of one last number are one pod's.
type world struct {
	t   *testing.T
	at  map[netip.Addr]*meshtest.NS
	n1  *meshtest.NS
	own map[netip.Addr]bool // n1's own addresses

	mu        sync.Mutex
	listening map[string]io.Closer // network and address
}

func newWorld(t *testing.T) *world {
	t.Helper()
	meshtest.RequireRoot(t)
	node := func(n int) fabric.Node {
		return fabric.Node{Name: fmt.Sprintf("n%d", n),
			Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.1%d", n)), netip.MustParseAddr(fmt.Sprintf("2001:db8::1%d", n))},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", n))}}
	}
	dir := t.TempDir()
	lab := "nft-" + fmt.Sprint(os.Getpid()) + "-" + strings.ToLower(filepath.Base(filepath.Dir(dir))[len("Test"):][:8])
	f, err := fabric.Up(fabric.Config{Lab: strings.Trim(lab, "-_"), RunDir: dir, Nodes: []fabric.Node{node(1), node(2)},
		Backbone: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fabric.Down(dir, strings.Trim(lab, "-_")); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, at: map[netip.Addr]*meshtest.NS{}, own: map[netip.Addr]bool{}, listening: map[string]io.Closer{}}
	for n := 1; n <= 2; n++ {
		ns := meshtest.OpenNS(t, f.NodeNetNS(fmt.Sprintf("n%d", n)))
		for _, a := range node(n).Addresses {
			w.at[a] = ns
		}
		for _, p := range []int{3, 5, 6, 9} {
			ips := []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", n, p)), netip.MustParseAddr(fmt.Sprintf("fd00:%d::%d", n, p))}
			path, err := f.AddPod(fmt.Sprintf("n%d", n), fmt.Sprintf("p%d-%d", n, p), ips)
			if err != nil {
				t.Fatal(err)
			}
			pod := meshtest.OpenNS(t, path)
			for _, a := range ips {
				w.at[a] = pod
			}
		}
	}
	w.n1 = w.at[netip.MustParseAddr("192.0.2.11")]
	for _, a := range append(node(1).Addresses, netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:1::1")) {
		w.own[a] = true
	}
	// As a default route does on a real node: Services' addresses lead somewhere.
	n2 := w.at[netip.MustParseAddr("192.0.2.12")]
	for to, via := range map[string][2]string{"10.96.0.0/16": {"192.0.2.12", "192.0.2.11"}, "fd96::/112": {"2001:db8::12", "2001:db8::11"}} {
		w.n1.Route(netip.MustParsePrefix(to), netip.MustParseAddr(via[0]))
		n2.Route(netip.MustParsePrefix(to), netip.MustParseAddr(via[1]))
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) close() {
	for _, c := range w.listening {
		c.Close()
	}
}

// apply writes rules on n1.
func (w *world) apply(b *Backend, r *plan.Rules) Report {
	w.t.Helper()
	var rep Report
	w.n1.Do(func() {
		var err error
		if rep, err = b.Apply(r); err != nil || rep.FlowsErr != nil {
			w.t.Errorf("apply: %v, %v", err, rep.FlowsErr)
		}
	})
	return rep
}

// serve answers at an address: of each connection or datagram who asked.
func (w *world) serve(proto plan.Proto, at netip.AddrPort) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	name := proto.String() + " " + at.String()
	if w.listening[name] != nil {
		return
	}
	ns := w.at[at.Addr()]
	if ns == nil {
		w.t.Fatalf("nobody has the address %s", at)
	}
	var err error
	switch proto {
	case plan.TCP:
		var l net.Listener
		ns.Do(func() { l, err = net.Listen("tcp", at.String()) })
		if err == nil {
			w.listening[name] = l
			go answerTCP(l)
		}
	case plan.UDP:
		var c net.PacketConn
		ns.Do(func() { c, err = net.ListenPacket("udp", at.String()) })
		if err == nil {
			w.listening[name] = c
			go answerUDP(c)
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// answerTCP says who it is and whom it sees, then each line again.
func answerTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			fmt.Fprintf(c, "%s %s\n", c.LocalAddr(), c.RemoteAddr())
			_, _ = io.Copy(c, c)
		}()
	}
}

func answerUDP(c net.PacketConn) {
	b := make([]byte, 100)
	for {
		_, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(fmt.Appendf(nil, "%s %s\n", c.LocalAddr(), from), from)
	}
}

// answer is who answered and whom it saw.
type answer struct{ by, saw netip.AddrPort }

var errSilent = errors.New("no answer")

// patience is how long nothing must come to count as dropped. On the lab's
// wires an answer takes microseconds.
const patience = 2000 * time.Millisecond

// ask opens one flow as from does.
func (w *world) ask(from netip.Addr, to plan.Flow) (answer, error) {
	c, err := w.dial(from, to, 0)
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	if to.Proto == plan.UDP {
		if _, err := c.Write([]byte("?")); err != nil {
			return answer{}, err
		}
	}
	return read(c)
}

// dial opens a flow; local is a port of our own, 0 any.
func (w *world) dial(from netip.Addr, to plan.Flow, local uint16) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	at := net.JoinHostPort(from.String(), fmt.Sprint(local))
	if to.Proto == plan.UDP {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))
	} else {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(at))
	}
	var c net.Conn
	var err error
	w.at[from].Do(func() {
		c, err = d.DialContext(context.Background(), to.Proto.String(), netip.AddrPortFrom(to.Addr, to.Port).String())
	})
	return c, silent(err)
}

func read(c net.Conn) (answer, error) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return answer{}, silent(err)
	}
	by, saw, _ := strings.Cut(strings.TrimSpace(line), " ")
	return answer{netip.MustParseAddrPort(by), netip.MustParseAddrPort(saw)}, nil
}

func silent(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errSilent
	}
	return err
}

// refused: a node's own datagram is refused by the call that sends it, with
// another word than an ICMP message gives.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPERM)
}
