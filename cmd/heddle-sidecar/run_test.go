package main

import (
	"io"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
)

func TestSidecarConfig(t *testing.T) {
	roots := string(pki.New(t, "mesh.test").RootsPEM())
	env := map[string]string{
		"POD_NAME": "web-1", "POD_NAMESPACE": "shop", "POD_UID": "u", "NODE_NAME": "n", "POD_IPS": "10.0.0.1,fd00::1", "HEDDLE_SERVICE_NAME": "web",
		"HEDDLE_TRUST_BUNDLE": roots + roots,
	}
	args := strings.Fields("--control-plane=cp:15010 --trust-domain=mesh.test --token=/t --log-level=debug --lame-duck=2s")
	c, level, err := sidecarConfig(args, func(k string) string { return env[k] }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if level != "debug" || c.Pod != "web-1" || c.PodUID != "u" || len(c.PodIPs) != 2 || len(c.Roots) != 2 ||
		c.TokenFile != "/t" || c.Service != "web" || c.Admin != ":16020" || c.LameDuck != 2*time.Second || c.DrainTimeout != 25*time.Second {
		t.Errorf("got %+v", c)
	}
	for missing, says := range map[string]string{"POD_IPS": "addresses", "HEDDLE_TRUST_BUNDLE": "root"} {
		_, _, err := sidecarConfig(args, func(k string) string {
			if k == missing {
				return ""
			}
			return env[k]
		}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	if _, _, err := sidecarConfig(nil, func(k string) string { return env[k] }, io.Discard); err == nil {
		t.Error("no control plane: taken")
	}
}

func TestLimits(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	tests := []struct {
		name string
		fs   fstest.MapFS
		want limits
	}{
		{"v2", fstest.MapFS{"sys/fs/cgroup/cpu.max": file("50000 100000\n"), "sys/fs/cgroup/memory.max": file("67108864\n")}, limits{0.5, 64 << 20}},
		{"v2 without limit", fstest.MapFS{"sys/fs/cgroup/cpu.max": file("max 100000\n"), "sys/fs/cgroup/memory.max": file("max\n")}, limits{}},
		{"v1", fstest.MapFS{"sys/fs/cgroup/cpu/cpu.cfs_quota_us": file("200000\n"), "sys/fs/cgroup/cpu/cpu.cfs_period_us": file("100000\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("134217728\n")}, limits{2, 128 << 20}},
		{"v1 without limit", fstest.MapFS{"sys/fs/cgroup/cpu/cpu.cfs_quota_us": file("-1\n"), "sys/fs/cgroup/cpu/cpu.cfs_period_us": file("100000\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n")}, limits{}},
		{"nothing", fstest.MapFS{}, limits{}},
	}
	for _, tt := range tests {
		if got := readLimits(tt.fs); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
