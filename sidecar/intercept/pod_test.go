package intercept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest"
	"github.com/heddle-mesh/heddle/internal/netfilter"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

// The test's network: a pod and a peer on one link, nothing else.
//
//	pod                                peer
//	198.51.100.2, 2001:db8::2  ------  198.51.100.1, 2001:db8::1
//	203.0.113.2                        203.0.113.5
const (
	pod4, pod6, pod4b    = "198.51.100.2", "2001:db8::2", "203.0.113.2"
	peer4, peer6, peer4b = "198.51.100.1", "2001:db8::1", "203.0.113.5"
	appUID               = 1000
	patience             = 10 * time.Second // for what takes microseconds
)

// The test program is also the pod's program and the init step, each as a
// process of its own: a program under another UID, and one that can be killed.
const (
	envDial = "HEDDLE_TEST_DIAL"
	envInit = "HEDDLE_TEST_INIT"
)

func TestMain(m *testing.M) {
	if dsts := os.Getenv(envDial); dsts != "" {
		for _, dst := range strings.Split(dsts, " ") {
			fmt.Println(talk(dst))
		}
		os.Exit(0)
	}
	if how := os.Getenv(envInit); how != "" {
		backend, full, _ := strings.Cut(how, " ")
		if err := Init(context.Background(), config(full != ""), Options{Backend: netfilter.Backend(backend)}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// talk dials and gives what the other side says until it closes.
func talk(dst string) string {
	c, err := net.DialTimeout("tcp", dst, patience)
	if err != nil {
		return "error: " + err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(b)
}

// config with all skip options or with none.
func config(skips bool) redirect.Config {
	c := redirect.Config{SidecarUID: redirect.SidecarUID}
	if skips {
		c.SkipUIDs = []uint32{1337}
		c.SkipOutboundPorts = []redirect.PortRange{{First: 22, Last: 22}, {First: 8000, Last: 8070}}
		c.SkipInboundPorts = []redirect.PortRange{{First: 9100, Last: 9110}}
		c.SkipOutboundCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("2001:db8:77::/48")}
	}
	return c
}

type podNet struct {
	t         *testing.T
	pod, peer *meshtest.NS
	outbound  []*net.TCPListener
}

func pfx(ss ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(ss))
	for i, s := range ss {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// newPodNet makes the network and everything that listens: in the pod a
// sidecar's listeners, an application and the admin port; in the peer servers.
func newPodNet(t *testing.T) *podNet {
	t.Helper()
	n := &podNet{t: t, pod: meshtest.NetNS(t), peer: meshtest.NetNS(t)}
	meshtest.Link(n.pod, n.peer, "eth0",
		pfx(pod4+"/24", pod6+"/64", pod4b+"/24"), pfx(peer4+"/24", peer6+"/64", peer4b+"/24", "2001:db8:77::1/64"))
	n.pod.Route(netip.MustParsePrefix("2001:db8:77::/64"), netip.MustParseAddr(peer6))
	ctx := context.Background()
	n.pod.Do(func() {
		var err error
		if n.outbound, err = ListenOutbound(ctx); err != nil {
			t.Error(err)
		}
		inbound, err := ListenInbound(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, l := range n.outbound {
			n.serve(n.pod, l, func(c *net.TCPConn) string { return whereTo("out", c) })
		}
		for _, l := range inbound {
			n.serve(n.pod, l, func(c *net.TCPConn) string { return whereTo("in", c) })
		}
	})
	n.listen(n.pod, "app", 8080, 9100)
	n.listen(n.pod, "admin", redirect.AdminPort)
	n.listen(n.peer, "direct", 80, 53, 22, 8050, 16020)
	return n
}

// whereTo is a sidecar that only says what it would do.
func whereTo(side string, c *net.TCPConn) string {
	dst, err := OriginalDst(c)
	switch {
	case errors.Is(err, ErrNotCaptured):
		return side + " refused: not captured"
	case err != nil:
		return side + " error: " + err.Error()
	case IsOwn(dst, []netip.Addr{netip.MustParseAddr(pod4), netip.MustParseAddr(pod6), netip.MustParseAddr(pod4b)}):
		return side + " refused: own port " + dst.String()
	}
	return side + " " + dst.String()
}

func (n *podNet) listen(ns *meshtest.NS, say string, ports ...int) {
	ns.Do(func() {
		for _, port := range ports {
			for _, network := range []string{"tcp4", "tcp6"} {
				l, err := net.Listen(network, fmt.Sprintf(":%d", port))
				if err != nil {
					n.t.Error(err)
					continue
				}
				n.serve(ns, l.(*net.TCPListener), func(*net.TCPConn) string { return say })
			}
		}
	})
}

func (n *podNet) serve(ns *meshtest.NS, l *net.TCPListener, say func(*net.TCPConn) string) {
	n.t.Cleanup(func() { l.Close() }) // ends the loop; NS waits for it
	ns.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			io.WriteString(c, say(c))
			c.Close()
		}
	})
}

func (n *podNet) init(b netfilter.Backend, c redirect.Config) {
	n.t.Helper()
	n.pod.Do(func() {
		if err := Init(context.Background(), c, Options{Backend: b}); err != nil {
			n.t.Errorf("init: %v", err)
		}
	})
}

// as runs this test program under a UID, with an environment
// variable that says what to do. It is found by /proc/self/exe, because other
// users may not walk to the folder of a test program.
func as(uid uint32, env string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	// The race detector would let each process sleep for a second at its end.
	cmd.Env = append(os.Environ(), env, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Dir = "/"
	return cmd
}

func (n *podNet) dialAs(ns *meshtest.NS, uid uint32, dst string) string {
	n.t.Helper()
	return n.dialAllAs(ns, uid, []string{dst})[0]
}

// dialAllAs dials one after the other in one process and gives the answers.
func (n *podNet) dialAllAs(ns *meshtest.NS, uid uint32, dsts []string) []string {
	n.t.Helper()
	var out []byte
	var err error
	ns.Do(func() { out, err = as(uid, envDial+"="+strings.Join(dsts, " ")).CombinedOutput() })
	answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if err != nil || len(answers) != len(dsts) {
		n.t.Fatalf("the test program as UID %d: %v: %s", uid, err, out)
	}
	return answers
}

// forEach runs a test in a fresh network for each back end that works here.
func forEach(t *testing.T, f func(t *testing.T, n *podNet, b netfilter.Backend)) {
	for _, b := range []netfilter.Backend{netfilter.NFTables, netfilter.IptablesNFT, netfilter.IptablesLegacy} {
		t.Run(string(b), func(t *testing.T) {
			meshtest.RequireRoot(t)
			n := newPodNet(t)
			var err error
			n.pod.Do(func() { _, err = netfilter.Choose(context.Background(), b, nil) })
			if err != nil {
				meshtest.Skip(t, "use "+string(b), err)
			}
			f(t, n, b)
		})
	}
}
