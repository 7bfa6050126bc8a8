package services

import (
	"net/netip"
	"strings"
	"testing"
)

// Add changes its own keys and nothing else, whoever wrote it; what comes after
// is as if it had not been.
func TestAdd(t *testing.T) {
	api := Key{addr("10.96.0.1"), 6, 443}
	few := func(to string) *Rules {
		return &Rules{Keys: map[Key]Target{api: {Forward, "d/k/tcp/443/v4", []netip.AddrPort{netip.MustParseAddrPort(to)}}},
			Addrs: map[netip.Addr]bool{addr("10.96.0.1"): true}}
	}
	const want = "key 6/10.96.0.1:443 forward d/k/tcp/443/v4"
	for name, before := range map[string]*Rules{"an empty kernel": nil, "an earlier run": sample(), "an earlier run that refused it": func() *Rules {
		r := sample()
		r.Keys[api] = Target{Verdict: Reject}
		return r
	}()} {
		t.Run(name, func(t *testing.T) {
			inNS(t, func(t *testing.T) {
				var was string
				if before != nil {
					if _, err := New(nil).Apply(before); err != nil {
						t.Error(err)
					}
					was, _ = dump()
				}
				table := New(nil)
				for _, to := range []string{"192.0.2.1:6443", "192.0.2.2:6443", "192.0.2.2:6443"} {
					if st, err := table.Add(few(to)); err != nil || st.Transactions != 1 {
						t.Errorf("%+v, %v", st, err)
					}
					got, err := dump()
					if err != nil || !strings.Contains(got, want) || !strings.Contains(got, "00000="+to) {
						t.Errorf("%v\n%s", err, got)
					}
					for line := range strings.Lines(was) {
						if line = strings.TrimSpace(line); !strings.Contains(line, api.String()) && !strings.Contains(got, line) {
							t.Errorf("gone: %s", line)
						}
					}
				}
				if _, err := table.Apply(sample()); err != nil {
					t.Error(err)
				}
				got, _ := dump()
				if _, err := New(nil).Apply(sample()); err != nil {
					t.Error(err)
				}
				if again, _ := dump(); got != again || strings.Contains(got, "d/k") {
					t.Errorf("after Apply\n%s\na fresh one gives\n%s", got, again)
				}
			})
		})
	}
}
