package netfilter

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/internal/meshtest"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

func plan(t *testing.T, change func(*redirect.Config)) redirect.Plan {
	t.Helper()
	c := redirect.Config{SidecarUID: redirect.SidecarUID}
	if change != nil {
		change(&c)
	}
	p, err := redirect.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func fullPlan(t *testing.T) redirect.Plan {
	return plan(t, func(c *redirect.Config) {
		c.SkipUIDs = []uint32{0, 1337}
		c.SkipOutboundPorts = []redirect.PortRange{{First: 22, Last: 22}, {First: 8000, Last: 8100}}
		c.SkipInboundPorts = []redirect.PortRange{{First: 9100, Last: 9100}, {First: 1, Last: 65535}}
		c.SkipOutboundCIDRs = []netip.Prefix{
			netip.MustParsePrefix("203.0.113.0/25"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("0.0.0.0/0"),
			netip.MustParsePrefix("2001:db8:8000::/33"), netip.MustParsePrefix("2001:db8::1/128"), netip.MustParsePrefix("::/0"),
		}
	})
}

// forEach runs a test in a fresh namespace for each back end that works here.
func forEach(t *testing.T, f func(t *testing.T, b Backend)) {
	for _, b := range order() {
		t.Run(string(b), func(t *testing.T) {
			meshtest.RequireRoot(t)
			ns := meshtest.NetNS(t)
			var err error
			ns.Do(func() { _, err = Choose(context.Background(), b, nil) })
			if err != nil {
				meshtest.Skip(t, "use "+string(b), err)
			}
			ns.Do(func() { f(t, b) })
		})
	}
}

// state is everything that any back end holds in the present namespace.
func state(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, cmd := range []string{"nft list ruleset", "iptables-legacy-save", "ip6tables-legacy-save"} {
		words := strings.Fields(cmd)
		if _, err := exec.LookPath(words[0]); err != nil {
			continue
		}
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", cmd, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if !strings.HasPrefix(line, "#") {
				all.WriteString(line)
			}
		}
	}
	return all.String()
}

func sh(t *testing.T, cmd string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", cmd).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", cmd, err, out)
	}
}

func TestApplyVerifyCleanAndAgain(t *testing.T) {
	forEach(t, func(t *testing.T, b Backend) {
		ctx := context.Background()
		first, second := plan(t, nil), fullPlan(t)
		if err := Verify(ctx, b, first); err == nil {
			t.Error("an empty kernel is said to hold the plan")
		}
		for round, p := range []redirect.Plan{first, first, second, second, first} {
			if err := Apply(ctx, b, p, nil); err != nil {
				t.Errorf("round %d: %v", round, err)
				return
			}
			if err := Verify(ctx, b, p); err != nil {
				t.Errorf("round %d: %v\n%s", round, err, state(t))
			}
		}
		if err := Verify(ctx, b, second); err == nil {
			t.Error("another plan is said to be held")
		}
		for range 2 {
			if err := Clean(ctx, "", nil); err != nil {
				t.Error(err)
			}
			if s := state(t); strings.Contains(strings.ToLower(s), "heddle") {
				t.Errorf("left behind:\n%s", s)
			}
		}
	})
}

func TestProbeLeavesNothing(t *testing.T) {
	for _, b := range order() {
		t.Run(string(b), func(t *testing.T) {
			meshtest.RequireRoot(t)
			meshtest.NetNS(t).Do(func() {
				b, err := Choose(context.Background(), b, nil)
				if err != nil {
					t.Logf("not here: %v", err)
				}
				if s := state(t); strings.Contains(strings.ToLower(s), "heddle") {
					t.Errorf("%s left behind:\n%s", b, s)
				}
			})
		})
	}
}

// The largest plan that redirect.New lets pass: no answer of the kernel may be
// lost for want of buffer.
func TestLargestPlan(t *testing.T) {
	big := plan(t, func(c *redirect.Config) {
		for i := range 256 {
			c.SkipUIDs = append(c.SkipUIDs, uint32(i))
			c.SkipOutboundPorts = append(c.SkipOutboundPorts, redirect.PortRange{First: uint16(i + 1), Last: uint16(i + 900)})
			c.SkipInboundPorts = append(c.SkipInboundPorts, redirect.PortRange{First: uint16(i + 1), Last: uint16(i + 900)})
			a := netip.MustParseAddr("2001:db8::").As16()
			a[7] = byte(i)
			c.SkipOutboundCIDRs = append(c.SkipOutboundCIDRs, netip.PrefixFrom(netip.AddrFrom16(a), 65))
		}
	})
	forEach(t, func(t *testing.T, b Backend) {
		for range 2 {
			if err := Apply(context.Background(), b, big, nil); err != nil {
				t.Error(err)
			} else if err := Verify(context.Background(), b, big); err != nil {
				t.Error(err)
			}
		}
	})
}

// What others have written stays, and Verify sees what others did to ours.
func TestForeignRules(t *testing.T) {
	tamper := map[Backend][]string{
		NFTables: {
			"nft flush chain inet heddle outbound",
			"nft delete rule inet heddle output handle $(nft -a list chain inet heddle output | sed -n 's/.*jump.*handle //p')",
			"nft add chain inet heddle more",
			"nft add rule inet heddle inbound accept",
			"nft delete table inet heddle",
			"nft flush chain inet heddle output; nft flush chain inet heddle prerouting; nft delete chain inet heddle output; nft add chain inet heddle output '{ type nat hook output priority -5; }'; nft add rule inet heddle output tcp flags '& (fin|syn|rst|ack) == syn' jump outbound",
		},
	}
	for b, kind := range map[Backend]string{IptablesNFT: "nft", IptablesLegacy: "legacy"} {
		for _, v := range []string{"iptables-" + kind, "ip6tables-" + kind} {
			tamper[b] = append(tamper[b],
				v+" -t nat -F HEDDLE_OUTPUT",
				v+" -t nat -D HEDDLE_OUTPUT 3",
				v+" -t nat -A HEDDLE_INBOUND -j RETURN",
				v+" -t nat -I OUTPUT -j HEDDLE_OUTPUT",
				v+" -t nat -F OUTPUT",
				v+" -t nat -F PREROUTING",
				v+" -t nat -R HEDDLE_OUTPUT 1 -p tcp -j RETURN",
				"for i in 1 2 3; do "+v+" -t nat -A PREROUTING -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j HEDDLE_INBOUND; done",
			)
		}
	}
	forEach(t, func(t *testing.T, b Backend) {
		if b != NFTables {
			v := strings.Replace(string(b), "iptables-", "", 1)
			sh(t, "iptables-"+v+" -t nat -A POSTROUTING -d 192.0.2.77/32 -j RETURN; ip6tables-"+v+" -t filter -A INPUT -s 2001:db8::77/128 -j DROP")
		}
		sh(t, "nft add table ip mine; nft add chain ip mine c; nft add rule ip mine c ip saddr 192.0.2.99 drop")
		before := state(t)
		ctx, p := context.Background(), fullPlan(t)
		for _, how := range append([]string{"true"}, tamper[b]...) {
			if err := Apply(ctx, b, p, nil); err != nil {
				t.Fatalf("apply after %q: %v", how, err)
			}
			if err := Verify(ctx, b, p); err != nil {
				t.Errorf("verify before %q: %v", how, err)
			}
			sh(t, how)
			if err := Verify(ctx, b, p); (err == nil) != (how == "true") {
				t.Errorf("verify after %q: %v", how, err)
			}
		}
		if err := Clean(ctx, "", nil); err != nil {
			t.Error(err)
		}
		// The built-in chains of a table may stay: what counts is what was there.
		after := state(t)
		for line := range strings.Lines(before) {
			if !strings.Contains(after, line) {
				t.Errorf("lost %q; now:\n%s", line, after)
			}
		}
	})
}

func TestSwitchBackend(t *testing.T) {
	meshtest.RequireRoot(t)
	meshtest.NetNS(t).Do(func() {
		ctx, p := context.Background(), fullPlan(t)
		var held Backend
		for _, b := range []Backend{NFTables, IptablesNFT, IptablesLegacy, IptablesNFT, NFTables, IptablesLegacy, NFTables} {
			if _, err := Choose(ctx, b, nil); err != nil {
				t.Logf("not here: %v", err)
				continue
			}
			if err := Apply(ctx, b, p, nil); err != nil {
				t.Error(err)
			}
			if err := Clean(ctx, b, nil); err != nil {
				t.Error(err)
			}
			if err := Verify(ctx, b, p); err != nil {
				t.Errorf("after the switch from %q to %s: %v", held, b, err)
			}
			if held != "" && held != b {
				if err := Verify(ctx, held, p); err == nil {
					t.Errorf("after the switch from %s to %s the old rules are still there", held, b)
				}
			}
			held = b
		}
	})
}

// Auto with nothing but netlink (an image from scratch), and a forced back end
// whose programs are missing.
func TestChooseWithoutPrograms(t *testing.T) {
	meshtest.RequireRoot(t)
	t.Setenv("PATH", t.TempDir())
	meshtest.NetNS(t).Do(func() {
		var log strings.Builder
		b, err := Choose(context.Background(), Auto, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil || b != NFTables {
			t.Errorf("auto gives %q, %v", b, err)
		}
		if !strings.Contains(log.String(), "backend=nftables wanted=auto") {
			t.Errorf("log: %s", log.String())
		}
		for _, b := range []Backend{IptablesNFT, IptablesLegacy} {
			if _, err := Choose(context.Background(), b, nil); !errors.Is(err, exec.ErrNotFound) {
				t.Errorf("%s without programs: %v", b, err)
			}
		}
		if err := Clean(context.Background(), "", nil); err != nil {
			t.Errorf("clean without programs: %v", err)
		}
	})
	if _, err := Choose(context.Background(), "ipfw", nil); err == nil || !strings.Contains(err.Error(), "nftables") {
		t.Errorf("unknown back end: %v", err)
	}
}

// fakeTools stand where the host's programs would; each fails or says what the
// script says.
func fakeTools(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// The plain names are taken for the variant that their version line tells.
func TestFindByVersionLine(t *testing.T) {
	scripts := map[string]string{}
	for _, n := range []string{"iptables-restore", "ip6tables-restore", "iptables-save", "ip6tables-save"} {
		scripts[n] = `echo "` + n + ` v1.8.9 (legacy)"`
	}
	fakeTools(t, scripts)
	for b, want := range map[Backend]bool{IptablesLegacy: true, IptablesNFT: false} {
		_, err := iptables{backend: b, log: slog.New(slog.DiscardHandler)}.find(context.Background(), true)
		if (err == nil) != want {
			t.Errorf("%s: %v", b, err)
		}
	}
}

// A family that fails names itself and the program's words.
func TestIPv6FailsFirst(t *testing.T) {
	meshtest.RequireRoot(t)
	mark := filepath.Join(t.TempDir(), "v4-was-run")
	fakeTools(t, map[string]string{
		"ip6tables-legacy-restore": "echo 'no nat for you' >&2; exit 2", "ip6tables-legacy-save": "",
		"iptables-legacy-restore": ": > " + mark, "iptables-legacy-save": "",
	})
	ns := meshtest.NetNS(t)
	ns.Do(func() {
		err := Apply(context.Background(), IptablesLegacy, plan(t, nil), nil)
		if err == nil || !strings.Contains(err.Error(), "IPv6: ") || !strings.Contains(err.Error(), "no nat for you") {
			t.Errorf("error: %v", err)
		}
		if _, err := os.Stat(mark); err == nil {
			t.Error("IPv4 was written although IPv6 failed")
		}
		// Without any IPv6 address the failure is only told.
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0); err != nil {
			t.Error(err)
		}
		var log strings.Builder
		if err := Apply(context.Background(), IptablesLegacy, plan(t, nil), slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "IPv4 only") {
			t.Errorf("log: %s", log.String())
		}
		if _, err := os.Stat(mark); err != nil {
			t.Error("IPv4 was not written")
		}
	})
}
