package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Do runs fn on a thread of its own inside the network namespace at path. What
// fn opens (sockets) and starts (processes) belongs to that namespace; goroutines
// that fn starts do not run in it. The thread is thrown away afterwards, so a
// process started in fn must not rest on its parent thread (Pdeathsig).
func Do(path string, fn func() error) error {
	return onOwnThread(func() error {
		ns, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		ns.Close()
		if err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return fn()
	})
}

var errGoexit = errors.New("ended by runtime.Goexit")

// onOwnThread runs fn on a thread that ends with it. Never on the process's
// first thread, which cannot end and whose namespace /proc/<pid>/ns/net shows:
// Down would take the whole process for one of the lab's.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onOwnThread(fn) // while this thread is held, it runs on another
			runtime.UnlockOSThread()
			return
		}
		err := errGoexit
		defer func() { done <- err }()
		err = fn()
	}()
	return <-done
}

// Dial connects from inside a namespace. address must be an IP address and
// port: names are not resolved.
func Dial(ctx context.Context, path, network, address string) (net.Conn, error) {
	var c net.Conn
	err := Do(path, func() (err error) {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Listen listens inside a namespace.
func Listen(path, network, address string) (net.Listener, error) {
	var l net.Listener
	err := Do(path, func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false) // as plain as any program of a pod
		l, err = lc.Listen(context.Background(), network, address)
		return err
	})
	return l, err
}

// ListenPacket listens for datagrams inside a namespace.
func ListenPacket(path, network, address string) (net.PacketConn, error) {
	var c net.PacketConn
	err := Do(path, func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// inside runs fn with a netlink handle of the namespace at path.
func (f *Fabric) inside(path string, fn func(*netlink.Handle) error) error {
	return Do(path, func() error { return withHandle(fn) })
}

func withHandle(fn func(*netlink.Handle) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	return fn(h)
}

// newNS makes a namespace pinned at path, with loopback up, and runs finish in it.
func (f *Fabric) newNS(path string, forwards bool, finish func(*netlink.Handle) error) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		if err := pin(path); err != nil {
			return err
		}
		return withHandle(func(h *netlink.Handle) error {
			lo, err := h.LinkByName("lo")
			if err != nil {
				return fmt.Errorf("find loopback: %w", err)
			}
			if err := h.LinkSetUp(lo); err != nil {
				return fmt.Errorf("set loopback up: %w", err)
			}
			if err := f.sysctls(forwards); err != nil {
				return err
			}
			if finish == nil {
				return nil
			}
			return finish(h)
		})
	})
}

// sysctls sets what all interfaces made later inherit.
func (f *Fabric) sysctls(forwards bool) error {
	type setting struct{ key, value string }
	var all []setting
	for _, dev := range []string{"all", "default"} {
		v4, v6 := "net/ipv4/conf/"+dev+"/", "net/ipv6/conf/"+dev+"/"
		all = append(all,
			setting{v4 + "rp_filter", "0"},      // hosts answer from addresses off their link
			setting{v4 + "send_redirects", "0"}, // pods of one node shall keep going through it
			setting{v4 + "accept_redirects", "0"},
			setting{v6 + "accept_redirects", "0"},
			setting{v6 + "disable_ipv6", "0"},
			setting{v6 + "accept_dad", "0"}, // addresses usable at once
			setting{v6 + "dad_transmits", "0"},
			setting{v6 + "accept_ra", "0"},
			setting{v6 + "router_solicitations", "0"},
		)
		if forwards {
			all = append(all, setting{v6 + "forwarding", "1"})
		}
	}
	if forwards {
		all = append(all, setting{"net/ipv4/ip_forward", "1"})
	}
	for _, s := range all {
		if !f.ipv6 && s.key[:8] == "net/ipv6" {
			continue
		}
		if err := sysctl(s.key, s.value); err != nil {
			return err
		}
	}
	return nil
}

// mountOwn makes dir a mount of its own, so that everything pinned below can
// be seen, taken away as a whole, and does not spread to other mount namespaces.
func mountOwn(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make %s private: %w", dir, err)
	}
	return nil
}

// pin keeps the calling thread's network namespace alive as a file.
func pin(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("pin network namespace: %w", err)
	}
	file.Close()
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin network namespace at %s: %w", filepath.Base(path), err)
	}
	return nil
}

// pinned says whether a namespace is mounted at path.
func pinned(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

func unpin(path string) error {
	if pinned(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount: %w", err)
		}
	}
	if err := os.Remove(path); err != nil && !isGone(err) {
		return fmt.Errorf("unpin: %w", err)
	}
	return nil
}
