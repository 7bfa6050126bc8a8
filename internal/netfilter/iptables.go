package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/internal/redirect"
)

const (
	// toolTimeout ends a program that hangs. They take milliseconds; the rest
	// is for lockWait.
	toolTimeout = 30 * time.Second
	// lockWait is how many seconds a program waits for another's xtables lock.
	lockWait = "10"
	// probeChain is entered from nowhere and exists only while we probe.
	probeChain = "HEDDLE_PROBE"
	// maxOutput bounds what is kept of a program's words.
	maxOutput = 4 << 20
)

// iptables writes by iptables-restore: one commit per family.
type iptables struct {
	backend Backend
	log     *slog.Logger
}

// tools are the programs of one family.
type tools struct {
	v6            bool
	restore, save string
}

func (t tools) family() string {
	if t.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// find looks for the programs of this variant: under their own names, or under
// the plain names if the variant says so in its version line.
func (i iptables) find(ctx context.Context, v6 bool) (tools, error) {
	name, kind, word := "iptables", "nft", "(nf_tables)"
	if v6 {
		name = "ip6tables"
	}
	if i.backend == IptablesLegacy {
		kind, word = "legacy", "(legacy)"
	}
	t := tools{v6: v6}
	restore, errR := exec.LookPath(name + "-" + kind + "-restore")
	save, errS := exec.LookPath(name + "-" + kind + "-save")
	if errR == nil && errS == nil {
		t.restore, t.save = restore, save
		return t, nil
	}
	restore, errR = exec.LookPath(name + "-restore")
	save, errS = exec.LookPath(name + "-save")
	if err := errors.Join(errR, errS); err != nil {
		return t, err
	}
	out, err := run(ctx, "", restore, "--version")
	if err != nil {
		return t, err
	}
	if !strings.Contains(out, word) {
		return t, fmt.Errorf("%s is another variant (%s): %w", restore, strings.TrimSpace(out), exec.ErrNotFound)
	}
	t.restore, t.save = restore, save
	return t, nil
}

// families gives the programs of each family to be written, IPv6 first: it is
// the one more likely to fail, and then IPv4 is still as it was.
func (i iptables) families(ctx context.Context) ([]tools, error) {
	var out []tools
	switch use := ipv6Use(); use {
	case ipv6None:
		i.log.Info("no IPv6 in this kernel: rules for IPv4 only")
	default:
		t, err := i.find(ctx, true)
		if err != nil && use == ipv6Used {
			return nil, err
		}
		if err != nil {
			i.log.Warn("no interface has an IPv6 address and IPv6 rules cannot be written: rules for IPv4 only", "err", err)
			break
		}
		out = append(out, t)
	}
	t, err := i.find(ctx, false)
	if err != nil {
		return nil, err
	}
	return append(out, t), nil
}

// each runs f per family. Where IPv6 is compiled in but has no address at all,
// its failure is a warning: hosts that turn IPv6 off often lack its modules.
func (i iptables) each(ctx context.Context, f func(tools) error) error {
	ts, err := i.families(ctx)
	if err != nil {
		return err
	}
	for _, t := range ts {
		err := f(t)
		if err != nil && t.v6 && ipv6Use() != ipv6Used {
			i.log.Warn("no interface has an IPv6 address and IPv6 rules cannot be written: rules for IPv4 only", "err", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t.family(), err)
		}
	}
	return nil
}

// probe commits every kind of rule to a chain that nothing enters, then takes
// the chain away. (--test would ask the program only, not the kernel.)
func (i iptables) probe(ctx context.Context) error {
	return i.each(ctx, func(t tools) error {
		_, _, rules := everyKind().Iptables(t.v6)
		var in strings.Builder
		in.WriteString("*nat\n:" + probeChain + " - [0:0]\n")
		for _, r := range rules {
			// Inbound rules name an input interface, which a chain that could
			// be entered from OUTPUT must not; nothing enters this one.
			words := strings.SplitN(r, " ", 3)
			in.WriteString("-A " + probeChain + " " + words[2] + "\n")
		}
		in.WriteString("COMMIT\n")
		if err := t.commit(ctx, in.String()); err != nil {
			return err
		}
		return t.commit(ctx, "*nat\n:"+probeChain+" - [0:0]\n-X "+probeChain+"\nCOMMIT\n")
	})
}

func (i iptables) apply(ctx context.Context, p redirect.Plan) error {
	return i.each(ctx, func(t tools) error {
		held, err := t.nat(ctx)
		if err != nil {
			return err
		}
		return t.commit(ctx, restoreInput(p, t.v6, held))
	})
}

// restoreInput gives the lines that bring a nat table, of which held are the
// rules, to the plan. Naming a chain with ":" empties it first.
func restoreInput(p redirect.Plan, v6 bool, held []string) string {
	chains, jumps, rules := p.Iptables(v6)
	lines := []string{"*nat"}
	for _, c := range chains {
		lines = append(lines, ":"+c+" - [0:0]")
	}
	lines = append(lines, rules...)
	for _, j := range jumps {
		if !slices.Contains(held, "-A "+j) {
			// First in its chain: whoever translates first wins.
			from, match, _ := strings.Cut(j, " ")
			lines = append(lines, "-I "+from+" 1 "+match)
		}
	}
	lines = append(lines, surplusJumps(chains, jumps, held)...)
	return strings.Join(append(lines, "COMMIT", ""), "\n")
}

// surplusJumps gives the lines that delete jumps into our chains beyond one of
// each: doubles, and those of other versions.
func surplusJumps(chains, keep, held []string) []string {
	var out []string
	seen := map[string]bool{}
	for _, line := range held {
		rule := strings.TrimPrefix(line, "-A ")
		from, _, _ := strings.Cut(rule, " ")
		if slices.Contains(chains, from) || !entersOurs(chains, line) {
			continue
		}
		if slices.Contains(keep, rule) && !seen[rule] {
			seen[rule] = true
			continue
		}
		out = append(out, "-D "+rule)
	}
	return out
}

func entersOurs(chains []string, line string) bool {
	for _, c := range chains {
		if strings.HasSuffix(line, " -j "+c) || strings.HasSuffix(line, " -g "+c) {
			return true
		}
	}
	return false
}

func (i iptables) clean(ctx context.Context) error {
	var errs []error
	for _, v6 := range []bool{true, false} {
		t, err := i.find(ctx, v6)
		if err != nil || !i.mayHold(v6) {
			continue // without the programs, or the table, none of it was written
		}
		if err := cleanFamily(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.family(), err))
		}
	}
	return errors.Join(errs...)
}

func cleanFamily(ctx context.Context, t tools) error {
	out, err := run(ctx, "", t.save, "-t", "nat")
	if err != nil {
		return err
	}
	ours, _, _ := redirect.Plan{}.Iptables(t.v6)
	var present []string
	for _, c := range append(ours, probeChain) {
		if strings.Contains("\n"+out, "\n:"+c+" ") {
			present = append(present, c)
		}
	}
	if len(present) == 0 {
		return nil
	}
	lines := []string{"*nat"}
	for _, c := range present {
		lines = append(lines, ":"+c+" - [0:0]") // empties it
	}
	lines = append(lines, surplusJumps(present, nil, natRules(out))...)
	for _, c := range present {
		lines = append(lines, "-X "+c)
	}
	return t.commit(ctx, strings.Join(append(lines, "COMMIT", ""), "\n"))
}

// mayHold tells whether the kernel can hold rules of this variant at all. The
// legacy programs would create the table merely by looking.
func (i iptables) mayHold(v6 bool) bool {
	if i.backend == IptablesLegacy {
		file := "/proc/thread-self/net/ip_tables_names"
		if v6 {
			file = "/proc/thread-self/net/ip6_tables_names"
		}
		b, err := os.ReadFile(file)
		return err == nil && slices.Contains(strings.Fields(string(b)), "nat")
	}
	conn, err := nft{}.conn()
	if err != nil {
		return false
	}
	_, err = conn.ListTables()
	return err == nil
}

func (i iptables) verify(ctx context.Context, p redirect.Plan) error {
	return i.each(ctx, func(t tools) error {
		held, err := t.nat(ctx)
		if err != nil {
			return err
		}
		chains, jumps, rules := p.Iptables(t.v6)
		for _, j := range jumps {
			if !slices.Contains(held, "-A "+j) {
				return fmt.Errorf("the rule %q is missing", "-A "+j)
			}
		}
		if extra := surplusJumps(chains, jumps, held); len(extra) > 0 {
			return fmt.Errorf("there is a rule too many: %q", "-A"+strings.TrimPrefix(extra[0], "-D"))
		}
		for _, c := range chains {
			got, want := ofChain(held, c), ofChain(rules, c)
			for n := range max(len(got), len(want)) {
				switch {
				case n >= len(got):
					return fmt.Errorf("chain %s: rule %d is missing: %q", c, n+1, want[n])
				case n >= len(want):
					return fmt.Errorf("chain %s: rule %d is too many: %q", c, n+1, got[n])
				case got[n] != want[n]:
					return fmt.Errorf("chain %s: rule %d is %q, should be %q", c, n+1, got[n], want[n])
				}
			}
		}
		return nil
	})
}

func ofChain(lines []string, chain string) []string {
	var out []string
	for _, l := range lines {
		if strings.HasPrefix(l, "-A "+chain+" ") {
			out = append(out, l)
		}
	}
	return out
}

// nat gives the rules that the family's nat table holds.
func (t tools) nat(ctx context.Context) ([]string, error) {
	out, err := run(ctx, "", t.save, "-t", "nat")
	return natRules(out), err
}

func natRules(saved string) []string {
	var out []string
	for line := range strings.Lines(saved) {
		if strings.HasPrefix(line, "-A ") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// commit gives lines to iptables-restore, which hands them to the kernel whole
// or not at all.
func (t tools) commit(ctx context.Context, lines string) error {
	_, err := run(ctx, lines, t.restore, "--noflush", "-w", lockWait)
	return err
}

// run runs a program and gives what it wrote to stdout. The child dies with us:
// a straggler must not write rules after somebody else has.
func run(ctx context.Context, stdin, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bounded
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("%s %s: %w: %s", path, strings.Join(args, " "), err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return stdout.String(), nil
}

// bounded keeps the first maxOutput bytes and swallows the rest.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := maxOutput - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// How much IPv6 there is in this network namespace.
type ipv6 int

const (
	ipv6None ipv6 = iota // the kernel has none
	ipv6Idle             // no interface has an address, so no connection can be made
	ipv6Used
)

func ipv6Use() ipv6 {
	b, err := os.ReadFile("/proc/thread-self/net/if_inet6")
	switch {
	case err != nil:
		return ipv6None
	case len(bytes.TrimSpace(b)) == 0:
		return ipv6Idle
	}
	return ipv6Used
}
