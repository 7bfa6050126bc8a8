// Package meshtest makes network namespaces for tests, so that they can write
// rules, addresses and routes without touching the machine. A namespace starts
// with nothing but loopback and has no way out but the links that the test
// makes between its own namespaces; it is gone when the test ends, or when the
// test is killed. Nothing here is linked into a program; only tests call it.
package meshtest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// EnvNoSkip turns every skip into a failure when it is set: CI sets it, so
// that a test cannot stop running without anybody noticing.
const EnvNoSkip = "HEDDLE_NO_SKIP"

// Skip ends the test because a probe of this machine failed: what names the
// thing probed, err what came of it. It must never be called for another
// reason.
func Skip(t testing.TB, what string, err error) {
	t.Helper()
	if os.Getenv(EnvNoSkip) != "" {
		t.Fatalf("this machine cannot %s: %v (and %s forbids to skip)", what, err, EnvNoSkip)
	}
	t.Skipf("SKIP: this machine cannot %s: %v", what, err)
}

// RequireRoot skips the test unless a network namespace can be made here,
// which takes root or CAP_SYS_ADMIN; it tries.
func RequireRoot(t testing.TB) {
	t.Helper()
	ns, err := newNS()
	if err != nil {
		Skip(t, "make a network namespace", err)
	}
	ns.Close()
}

// NS is a network namespace.
type NS struct {
	t      testing.TB
	handle netns.NsHandle // keeps it alive
	work   sync.WaitGroup
}

// NetNS makes a namespace with loopback up. It and everything in it is gone
// when the test ends, after everything started by Go has ended.
func NetNS(t testing.TB) *NS {
	t.Helper()
	h, err := newNS()
	if err != nil {
		Skip(t, "make a network namespace", err)
	}
	n := &NS{t: t, handle: h}
	t.Cleanup(func() {
		n.work.Wait()
		n.handle.Close()
	})
	n.Do(func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Errorf("bring up loopback: %v", err)
		}
	})
	return n
}

// OpenNS takes a namespace that something else made, by its path.
func OpenNS(t testing.TB, path string) *NS {
	t.Helper()
	h, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatalf("open network namespace: %v", err)
	}
	n := &NS{t: t, handle: h}
	t.Cleanup(func() {
		n.work.Wait()
		n.handle.Close()
	})
	return n
}

// newNS makes a namespace.
func newNS() (netns.NsHandle, error) {
	var (
		h    netns.NsHandle
		err  error
		done = make(chan struct{})
	)
	go onOwnThread(func() {
		defer close(done)
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("unshare: %w", err)
			return
		}
		h, err = netns.Get()
	})
	<-done
	return h, err
}

// onOwnThread runs f on a thread that is thrown away afterwards: a goroutine
// that ends while locked takes its thread with it, so no thread of the pool is
// ever left in a strange namespace. The main thread cannot be thrown away, and
// /proc/self shows its namespace: it is held until f has found another.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // still locked: the thread ends
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// Do runs f inside the namespace and waits for it. Sockets that f opens and
// programs that it starts belong to the namespace; goroutines that f starts do
// not run in it (use Go). f must not call t.FailNow.
func (n *NS) Do(f func()) {
	done := make(chan struct{})
	n.enter(f, func() { close(done) })
	<-done
}

// Go runs f inside the namespace in a goroutine of its own. The test waits for
// it before the namespace goes away: f must end by itself once the test has
// closed what f works on.
func (n *NS) Go(f func()) {
	n.work.Add(1)
	n.enter(f, n.work.Done)
}

func (n *NS) enter(f, done func()) {
	go onOwnThread(func() {
		defer done()
		if err := netns.Set(n.handle); err != nil {
			n.t.Errorf("enter the namespace: %v", err)
			return
		}
		f()
	})
}

// Path names the namespace for programs that take one (nsenter --net=…), as
// long as the test runs.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n.handle)) }

// Link connects two namespaces by a pair of interfaces, both named name, and
// gives each its addresses. Addresses are usable at once (no duplicate address
// detection).
func Link(a, b *NS, name string, addrsA, addrsB []netip.Prefix) {
	a.t.Helper()
	a.Do(func() {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name,
			PeerNamespace: netlink.NsFd(b.handle),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			a.t.Errorf("make the link %s: %v", name, err)
		}
	})
	// No end may be up before both have their addresses.
	for _, end := range []struct {
		ns    *NS
		addrs []netip.Prefix
	}{{a, addrsA}, {b, addrsB}} {
		end.ns.Do(func() {
			if err := setUp(name, end.addrs); err != nil {
				end.ns.t.Errorf("set up the link %s: %v", name, err)
			}
		})
	}
}

func setUp(name string, addrs []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	// The link-local address would stay unusable for a second or two otherwise,
	// and with it neighbour discovery. No such file: no IPv6 here.
	dad := "/proc/sys/net/ipv6/conf/" + name + "/accept_dad"
	if err := os.WriteFile(dad, []byte("0"), 0); err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, p := range addrs {
		addr, err := netlink.ParseAddr(p.String())
		if err != nil {
			return err
		}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s: %w", p, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// Route sends a destination through a gateway that stands on a link of n.
func (n *NS) Route(dst netip.Prefix, via netip.Addr) {
	n.t.Helper()
	n.Do(func() {
		_, ipnet, err := net.ParseCIDR(dst.String())
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{Dst: ipnet, Gw: via.AsSlice()})
		}
		if err != nil {
			n.t.Errorf("route %s via %s: %v", dst, via, err)
		}
	})
}
