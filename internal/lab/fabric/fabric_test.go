package fabric

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/meshtest"
)

func twoNodes(t *testing.T, lab string) Config {
	t.Helper()
	return Config{
		Lab: lab, RunDir: t.TempDir(),
		Backbone: []netip.Prefix{netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix("fd77::/64")},
		Nodes: []Node{
			{Name: "n1", Addresses: addrs("192.168.77.1", "fd77::1"), PodCIDRs: prefixes("10.77.1.0/24", "fd77:1::/64")},
			{Name: "n2", Addresses: addrs("192.168.77.2", "fd77::2"), PodCIDRs: prefixes("10.77.2.0/24", "fd77:2::/64")},
		},
	}
}

func addrs(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func up(t *testing.T, cfg Config) *Fabric {
	t.Helper()
	meshtest.RequireRoot(t)
	f, err := Up(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Down(cfg.RunDir, cfg.Lab); err != nil {
			t.Error(err)
		}
	})
	return f
}

func addPod(t *testing.T, f *Fabric, node, key string, ips ...string) string {
	t.Helper()
	path, err := f.AddPod(node, key, addrs(ips...))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// echo listens in a namespace and answers each connection with name and the
// address it came from.
func echo(t *testing.T, path, name string) {
	t.Helper()
	l, err := Listen(path, "tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%s %s", name, c.RemoteAddr().(*net.TCPAddr).IP)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

func ask(t *testing.T, from, to string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	c, err := Dial(ctx, from, "tcp", net.JoinHostPort(to, "80"))
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	return string(b), err
}

func TestPodsReachEachOther(t *testing.T) {
	f := up(t, twoNodes(t, "reach"))
	a := addPod(t, f, "n1", "a", "10.77.1.10", "fd77:1::10")
	b := addPod(t, f, "n1", "b", "10.77.1.11", "fd77:1::11")
	c := addPod(t, f, "n2", "c", "10.77.2.10", "fd77:2::10")
	host, err := f.AddHost("outside", addrs("203.0.113.10", "2001:db8::10"))
	if err != nil {
		t.Fatal(err)
	}
	echo(t, a, "a")
	echo(t, b, "b")
	echo(t, c, "c")
	echo(t, host, "outside")
	echo(t, f.NodeNetNS("n2"), "n2")
	for _, tc := range []struct{ from, to, want string }{
		{a, "10.77.1.10", "a 10.77.1.10"}, // itself
		{a, "10.77.1.11", "b 10.77.1.10"},
		{a, "10.77.2.10", "c 10.77.1.10"},
		{c, "10.77.1.10", "a 10.77.2.10"},
		{a, "fd77:1::11", "b fd77:1::10"},
		{a, "fd77:2::10", "c fd77:1::10"},
		{c, "fd77:1::10", "a fd77:2::10"},
		{a, "192.168.77.2", "n2 10.77.1.10"},
		{a, "203.0.113.10", "outside 10.77.1.10"},
		{c, "2001:db8::10", "outside fd77:2::10"},
		{host, "10.77.2.10", "c 203.0.113.10"},
		{f.NodeNetNS("n1"), "10.77.1.10", "a 10.77.1.1"}, // as a probe comes
		{f.NodeNetNS("n1"), "fd77:1::10", "a fd77:1::1"},
	} {
		if strings.Contains(tc.to, "::") && !f.ipv6 {
			continue
		}
		got, err := ask(t, tc.from, tc.to)
		if err != nil || got != tc.want {
			t.Errorf("%s to %s: %q, %v; want %q", filepath.Base(tc.from), tc.to, got, err, tc.want)
		}
	}
}

func TestNoWayOut(t *testing.T) {
	f := up(t, twoNodes(t, "closed"))
	a := addPod(t, f, "n1", "a", "10.77.1.10", "fd77:1::10")
	for _, from := range []string{a, f.NodeNetNS("n1"), f.BackboneNetNS()} {
		for _, to := range []string{"192.0.2.1", "2001:db8:ffff::1"} {
			start := time.Now()
			_, err := ask(t, from, to)
			// The pod hears it from its node (EHOSTUNREACH), the others know it themselves.
			if !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
				t.Errorf("%s to %s: %v after %s, want no route", filepath.Base(from), to, err, time.Since(start))
			}
		}
	}
	// Nothing of the lab stands in the machine's own namespace: every
	// interface's peer is in one of the lab's.
	names := map[string][]string{
		f.BackboneNetNS():   {"lo", Bridge, "n" + short("n1"), "n" + short("n2")},
		f.NodeNetNS("n1"):   {"lo", Bridge, uplink, "p" + short("a")},
		f.PodNetNS("a"):     {"lo", uplink},
		"/proc/self/ns/net": nil,
	}
	for path, want := range names {
		err := Do(path, func() error {
			ifs, err := net.Interfaces()
			if err != nil {
				return err
			}
			for _, i := range ifs {
				if want == nil {
					if i.Name == "n"+short("n1") || i.Name == "p"+short("a") {
						t.Errorf("the machine's own namespace has %s", i.Name)
					}
					continue
				}
				if !contains(want, i.Name) {
					t.Errorf("%s has the unknown interface %s", filepath.Base(path), i.Name)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

func TestPodAddressIsFreeAgain(t *testing.T) {
	f := up(t, twoNodes(t, "again"))
	a := addPod(t, f, "n1", "a", "10.77.1.10")
	for i := range 3 {
		key := fmt.Sprintf("b%d", i)
		b := addPod(t, f, "n1", key, "10.77.1.11")
		echo(t, b, key)
		if got, err := ask(t, a, "10.77.1.11"); err != nil || got != key+" 10.77.1.10" {
			t.Fatalf("round %d: %q, %v", i, got, err)
		}
		if err := f.DelPod(key); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.DelPod("b0"); err != nil {
		t.Errorf("deleting twice: %v", err)
	}
	if _, err := f.AddPod("n1", "wrong", addrs("10.77.2.99")); err == nil {
		t.Error("a pod with another node's address was added")
	}
	if _, err := os.Lstat(f.PodNetNS("wrong")); err == nil {
		t.Error("a pod that could not be added left its namespace")
	}
}

func TestTwoLabsWithTheSameAddresses(t *testing.T) {
	cfg1 := twoNodes(t, "one")
	cfg2 := twoNodes(t, "two")
	cfg2.RunDir = cfg1.RunDir
	f1, f2 := up(t, cfg1), up(t, cfg2)
	a1 := addPod(t, f1, "n1", "a", "10.77.1.10")
	a2 := addPod(t, f2, "n1", "a", "10.77.1.10")
	echo(t, addPod(t, f1, "n2", "b", "10.77.2.10"), "lab1")
	echo(t, addPod(t, f2, "n2", "b", "10.77.2.10"), "lab2")
	for path, want := range map[string]string{a1: "lab1 10.77.1.10", a2: "lab2 10.77.1.10"} {
		if got, err := ask(t, path, "10.77.2.10"); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if _, err := Up(cfg1); err == nil {
		t.Error("a lab that is up was made again")
	}
	if err := Down(cfg1.RunDir, "one"); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, a2, "10.77.2.10"); err != nil || got != "lab2 10.77.1.10" {
		t.Errorf("after the other lab went down: %q, %v", got, err)
	}
}

func TestDownLeavesNothing(t *testing.T) {
	cfg := twoNodes(t, "gone")
	f := up(t, cfg)
	addPod(t, f, "n1", "a", "10.77.1.10")
	again, err := Open(cfg.RunDir, "gone")
	if err != nil {
		t.Fatal(err)
	}
	path := addPod(t, again, "n2", "b", "10.77.2.10")
	cmd := exec.Command("sleep", "600")
	if err := Do(path, cmd.Start); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second time is no error
		if err := Down(cfg.RunDir, "gone"); err != nil {
			t.Fatal(err)
		}
	}
	err = cmd.Wait()
	if ws := cmd.ProcessState; ws == nil || !strings.Contains(ws.String(), "killed") {
		t.Errorf("process in a pod's namespace: %v", err)
	}
	if _, err := os.Stat(filepath.Join(cfg.RunDir, "heddle-lab")); !isGone(err) {
		t.Errorf("files are left: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), cfg.RunDir) {
		t.Errorf("mounts are left (%v)", err)
	}
	if _, err := Open(cfg.RunDir, "gone"); err == nil {
		t.Error("a lab that is down can be opened")
	}
}

func TestDownWithoutPins(t *testing.T) {
	meshtest.RequireRoot(t)
	// As left by an Up that was killed right away.
	run := t.TempDir()
	dir := filepath.Join(labDir(run, "half"), "netns")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "node-n1"), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := Down(run, "half"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(run, "heddle-lab")); !isGone(err) {
		t.Errorf("files are left: %v", err)
	}
}

func TestUpRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"lab name":              func(c *Config) { c.Lab = "../x" },
		"node name":             func(c *Config) { c.Nodes[1].Name = "n1" },
		"address off backbone":  func(c *Config) { c.Nodes[0].Addresses[0] = netip.MustParseAddr("10.0.0.1") },
		"range not masked":      func(c *Config) { c.Nodes[0].PodCIDRs[0] = netip.MustParsePrefix("10.77.1.1/24") },
		"range without address": func(c *Config) { c.Nodes[0].Addresses = c.Nodes[0].Addresses[:1] },
	} {
		cfg := twoNodes(t, "bad")
		change(&cfg)
		if _, err := Up(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := os.Stat(filepath.Join(cfg.RunDir, "heddle-lab")); !isGone(err) {
			t.Errorf("%s: left files", name)
		}
	}
}

func TestCapture(t *testing.T) {
	f := up(t, twoNodes(t, "cap"))
	a := addPod(t, f, "n1", "a", "10.77.1.10")
	b := addPod(t, f, "n2", "b", "10.77.2.10")
	file := filepath.Join(t.TempDir(), "x.pcap")
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	type result struct {
		st  CaptureStats
		err error
	}
	res := make(chan result, 1)
	go func() {
		st, err := Capture(ctx, CaptureConfig{NetNS: f.BackboneNetNS(), File: file, OnStart: func() { close(started) }})
		res <- result{st, err}
	}()
	select {
	case <-started:
	case r := <-res:
		t.Fatal(r.err)
	}
	const datagrams, size = 5000, 200
	got, err := ListenPacket(b, "udp", "10.77.2.10:99")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	c, err := Dial(t.Context(), a, "udp", "10.77.2.10:99")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	payload := make([]byte, size)
	for i := range datagrams {
		binary.BigEndian.PutUint32(payload, uint32(i))
		if _, err := c.Write(payload); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	r := <-res
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Logf("%+v", r.st)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(raw)) != r.st.Bytes {
		t.Errorf("file of %d bytes, said %d", len(raw), r.st.Bytes)
	}
	seen := udpPackets(t, raw, 99)
	if r.st.Dropped != 0 || seen != datagrams {
		t.Errorf("%d of %d datagrams in the file, %d dropped", seen, datagrams, r.st.Dropped)
	}
}

// A capture ends when it is told to, though the traffic does not.
func TestCaptureEndsUnderTraffic(t *testing.T) {
	f := up(t, twoNodes(t, "cape"))
	a := addPod(t, f, "n1", "a", "10.77.1.10")
	c, err := Dial(t.Context(), a, "udp", "10.77.1.1:99")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Capture(ctx, CaptureConfig{NetNS: f.NodeNetNS("n1"), Interface: AllInterfaces, File: filepath.Join(t.TempDir(), "x.pcap"), OnStart: cancel})
		ended <- err
	}()
	limit := time.After(10 * time.Second)
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		case <-limit:
			t.Fatal("the capture goes on for ever")
		default:
			_, _ = c.Write(make([]byte, 1000)) // nobody listens: refusals do not matter
		}
	}
}

// udpPackets reads the pcap back and counts UDP packets to a port.
func udpPackets(t *testing.T, raw []byte, port uint16) (n int) {
	t.Helper()
	if len(raw) < pcapHeaderLen || binary.LittleEndian.Uint32(raw) != pcapMagicNanos {
		t.Fatal("no pcap header")
	}
	for b := raw[pcapHeaderLen:]; len(b) > 0; {
		size := int(binary.LittleEndian.Uint32(b[8:]))
		p := b[pcapRecordLen : pcapRecordLen+size]
		b = b[pcapRecordLen+size:]
		if len(p) >= 42 && binary.BigEndian.Uint16(p[12:]) == 0x0800 && p[23] == unix.IPPROTO_UDP &&
			binary.BigEndian.Uint16(p[36:]) == port {
			n++
		}
	}
	return n
}

func TestDoNeverEndsOnTheFirstThread(t *testing.T) {
	meshtest.RequireRoot(t)
	before, _ := inodeOf("/proc/self/ns/net")
	for range 50 {
		err := onOwnThread(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("runs on the first thread")
			}
			return unix.Unshare(unix.CLONE_NEWNET)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if after, _ := inodeOf("/proc/self/ns/net"); after != before {
		t.Error("the process moved to another namespace")
	}
}
