package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"

	"github.com/heddle-mesh/heddle/internal/netfilter"
	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/sidecar/intercept"
)

// initOptions is the command line of init.
type initOptions struct {
	redirect redirect.Config
	backend  netfilter.Backend
	clean    bool
	dryRun   bool
	logLevel string
}

// runInit installs the redirect and gives the exit code: 0 done, 1 the kernel
// would not have it, 2 the command line is wrong.
func runInit(args []string) int { return initMain(args, os.Stdout, os.Stderr) }

func initMain(args []string, stdout, stderr io.Writer) int {
	o, err := parseInit(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "heddle-sidecar init:", err)
		return exitUsage
	}
	log, err := telemetry.NewLogger(stderr, o.logLevel)
	if err != nil {
		fmt.Fprintln(stderr, "heddle-sidecar init: --log-level:", err)
		return exitUsage
	}
	// A Config that cannot be planned is a wrong command line as well.
	plan, err := redirect.New(o.redirect)
	if err != nil {
		fmt.Fprintln(stderr, "heddle-sidecar init:", err)
		return exitUsage
	}
	if o.dryRun {
		fmt.Fprint(stdout, plan)
		return 0
	}
	return run.Main(stderr, "heddle-sidecar init", func(ctx context.Context) error {
		if o.clean {
			return intercept.Clean(ctx, log)
		}
		for _, p := range tooWide(o.redirect.SkipOutboundCIDRs) {
			log.Warn("a skipped range is so wide that it may cover the cluster's own Services and pods, which would then be reached without the mesh",
				"flag", "--skip-outbound-cidrs", "range", p.String())
		}
		return intercept.Init(ctx, o.redirect, intercept.Options{Backend: o.backend, Log: log})
	})
}

// parseInit reads the command line. Each error names the flag, the value and
// what to write instead.
func parseInit(args []string, usage io.Writer) (initOptions, error) {
	o := initOptions{redirect: redirect.Config{SidecarUID: redirect.SidecarUID}, backend: netfilter.Auto}
	f := flag.NewFlagSet("heddle-sidecar init", flag.ContinueOnError)
	f.SetOutput(usage)
	f.Usage = func() {
		fmt.Fprint(usage, "heddle-sidecar init installs the redirect into the network of its pod and ends. It needs NET_ADMIN and NET_RAW.\n\n")
		f.PrintDefaults()
	}
	c := &o.redirect
	f.Func("sidecar-uid", "`UID` under which the sidecar runs and whose connections are left alone (default 16000)", func(s string) error {
		uids, err := redirect.ParseUIDs(s)
		if err == nil && len(uids) != 1 {
			err = errors.New("want exactly one user ID")
		}
		if err == nil && uids[0] == 0 {
			err = errors.New("0 is root, whose programs would all bypass the sidecar; give the sidecar a user of its own")
		}
		if err == nil {
			c.SidecarUID = uids[0]
		}
		return err
	})
	listFlag(f, "skip-uids", "`UIDs` of programs whose connections are left alone: \"0,1337\"", redirect.ParseUIDs, &c.SkipUIDs)
	listFlag(f, "skip-outbound-ports", "destination `ports` that are dialled without the sidecar: \"22,8000-8100\"", redirect.ParsePorts, &c.SkipOutboundPorts)
	listFlag(f, "skip-inbound-ports", "the pod's `ports` that are reached without the sidecar: \"9100\"", redirect.ParsePorts, &c.SkipInboundPorts)
	listFlag(f, "skip-outbound-cidrs", "destination `ranges` that are dialled without the sidecar: \"203.0.113.0/24,2001:db8::/32\"", redirect.ParseCIDRs, &c.SkipOutboundCIDRs)
	f.BoolVar(&c.RedirectTCPDNS, "redirect-tcp-dns", false, "send TCP port 53 through the sidecar as well")
	f.Func("backend", "how to write the rules: auto, nftables, iptables-nft or iptables-legacy (default auto: the first that works)", func(s string) error {
		known := []netfilter.Backend{netfilter.Auto, netfilter.NFTables, netfilter.IptablesNFT, netfilter.IptablesLegacy}
		if !slices.Contains(known, netfilter.Backend(s)) {
			return fmt.Errorf("want one of %v", known)
		}
		o.backend = netfilter.Backend(s)
		return nil
	})
	f.BoolVar(&o.clean, "clean", false, "remove every rule of ours, of all back ends and both families, and install nothing")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and touch nothing")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; flags are written --name=value", f.Arg(0))
	}
	if o.clean && o.dryRun {
		return o, errors.New("--clean and --dry-run exclude each other; --clean removes whatever is there")
	}
	return o, nil
}

// listFlag adds a flag that can be given more than once; the lists are joined.
func listFlag[T any](f *flag.FlagSet, name, help string, parse func(string) ([]T, error), to *[]T) {
	f.Func(name, help, func(s string) error {
		vs, err := parse(s)
		*to = append(*to, vs...)
		return err
	})
}

// Ranges wider than these hold whole clusters: 10.0.0.0/8 is the widest that
// pods and Services usually come from.
const (
	wideV4 = 8
	wideV6 = 32
)

// tooWide gives the ranges that probably skip more than was meant.
func tooWide(ps []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ps), func(p netip.Prefix) bool {
		return p.Addr().Is4() && p.Bits() > wideV4 || p.Addr().Is6() && p.Bits() > wideV6
	})
}
