package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/internal/meshtest"
	"github.com/heddle-mesh/heddle/internal/netfilter"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

func TestInitCommandLine(t *testing.T) {
	for _, tc := range []struct {
		args         string
		code         int
		stdout, want string // of stderr
	}{
		{"--dry-run", 0, "from UID 16000", ""},
		{"--dry-run --sidecar-uid=1234 --skip-uids=0,1337 --skip-outbound-ports=22 --skip-outbound-ports=25 --skip-inbound-ports=9100 --skip-outbound-cidrs=203.0.113.0/24 --backend=nftables", 0, "skip-cidr    to 203.0.113.0/24", ""},
		{"--dry-run --skip-uids= --skip-outbound-ports=", 0, "everything else goes through the sidecar", ""},
		{"--help", 0, "", "-skip-outbound-cidrs"},
		{"--sidecar-uid=0", 2, "", `"0" for flag -sidecar-uid: 0 is root`},
		{"--sidecar-uid=1,2", 2, "", "want exactly one user ID"},
		{"--skip-uids=root", 2, "", `flag -skip-uids: "root" is not a user ID`},
		{"--skip-outbound-ports=22-x", 2, "", `"22-x" for flag -skip-outbound-ports: "x" is not a port`},
		{"--skip-inbound-ports=9-8", 2, "", "flag -skip-inbound-ports: range \"9-8\" runs backwards; write 8-9"},
		{"--skip-outbound-cidrs=203.0.113.1/24", 2, "", "write 203.0.113.0/24"},
		{"--backend=ipfw", 2, "", `"ipfw" for flag -backend: want one of [auto nftables iptables-nft iptables-legacy]`},
		{"--log-level=loud", 2, "", "--log-level: "},
		{"--no-such", 2, "", "-no-such"},
		{"stray", 2, "", `unexpected argument "stray"`},
		{"--clean --dry-run", 2, "", "exclude each other"},
		{"--skip-uids=" + strings.Repeat("1,", 200) + "1 --skip-uids=" + strings.Repeat("2,", 200) + "2", 2, "", "402 entries in one skip list"},
	} {
		var stdout, stderr strings.Builder
		code := initMain(strings.Fields(tc.args), &stdout, &stderr)
		if code != tc.code || !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.want) {
			t.Errorf("%s: exit %d\nstdout: %s\nstderr: %s\nwant exit %d, %q, %q", tc.args, code, stdout.String(), stderr.String(), tc.code, tc.stdout, tc.want)
		}
	}
}

func TestDispatch(t *testing.T) {
	for _, tc := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{nil, 2, "", "heddle-sidecar init [flags]"},
		{[]string{"--version"}, 0, "heddle-sidecar ", ""},
		{[]string{"--help"}, 0, "heddle-sidecar init [flags]", ""},
		{[]string{"stop"}, 2, "", `unknown command "stop"; want init or run`},
	} {
		var stdout, stderr strings.Builder
		if code := dispatch(tc.args, &stdout, &stderr); code != tc.code || !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", tc.args, code, stdout.String(), stderr.String())
		}
	}
}

func TestTooWide(t *testing.T) {
	ps, err := redirect.ParseCIDRs("0.0.0.0/0,10.0.0.0/8,172.16.0.0/12,::/0,2001:db8::/32,2001:db8::/48")
	if err != nil {
		t.Fatal(err)
	}
	if got := len(tooWide(ps)); got != 4 || len(ps) != 6 {
		t.Errorf("%v", tooWide(ps))
	}
}

// The whole step in a namespace: install, install again, clean, clean again;
// and the exit code where the kernel refuses.
func TestInitAndClean(t *testing.T) {
	meshtest.RequireRoot(t)
	plan, err := redirect.New(redirect.Config{SidecarUID: redirect.SidecarUID})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // as in an image from scratch
	meshtest.NetNS(t).Do(func() {
		for _, step := range []struct {
			args  string
			code  int
			there bool
		}{
			{"", 0, true}, {"--backend=nftables", 0, true}, {"--backend=iptables-nft", 1, true},
			{"--clean", 0, false}, {"--clean", 0, false}, {"--dry-run", 0, false}, {"--skip-outbound-cidrs=0.0.0.0/0", 0, false},
		} {
			var stderr strings.Builder
			if code := initMain(strings.Fields(step.args), io.Discard, &stderr); code != step.code {
				t.Errorf("init %s: exit %d: %s", step.args, code, stderr.String())
			}
			err := netfilter.Verify(context.Background(), netfilter.NFTables, plan)
			if (err == nil) != step.there {
				t.Errorf("after init %s: %v", step.args, err)
			}
			if strings.Contains(step.args, "/0") && !strings.Contains(stderr.String(), "so wide") {
				t.Errorf("no warning: %s", stderr.String())
			}
		}
	})
}
