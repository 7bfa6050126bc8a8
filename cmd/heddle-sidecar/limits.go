package main

import (
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryShare of the container's limit is the Go heap's: the rest is for
// stacks, the runtime and what the kernel counts against us.
const memoryShare = 0.85

// limits are what the container may use.
type limits struct {
	cpus   float64 // 0: no limit
	memory int64   // bytes; 0: no limit
}

// readLimits reads the cgroup's, version 2 or 1, as a container sees them.
func readLimits(root fs.FS) limits {
	var l limits
	if f := fields(root, "sys/fs/cgroup/cpu.max"); len(f) == 2 {
		l.cpus = ratio(f[0], f[1])
	} else if q := fields(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us"); len(q) == 1 {
		if p := fields(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us"); len(p) == 1 {
			l.cpus = ratio(q[0], p[0])
		}
	}
	for _, name := range []string{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		f := fields(root, name)
		if len(f) != 1 {
			continue
		}
		// Version 1 writes a number near 2^63 for none.
		if n, err := strconv.ParseInt(f[0], 10, 64); err == nil && n > 0 && n < 1<<50 {
			l.memory = n
		}
		break
	}
	return l
}

func fields(root fs.FS, name string) []string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

// ratio is quota by period; "max" and -1 are no limit.
func ratio(quota, period string) float64 {
	q, err := strconv.ParseFloat(quota, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return 0
	}
	return q / p
}

// keepWithin sets the runtime up for the limits, unless the environment does
// (GOMAXPROCS, GOMEMLIMIT). Go itself never goes below two processors, but a
// sidecar with one is better off with one: no wakes across threads.
func keepWithin(l limits, log *slog.Logger) {
	if os.Getenv("GOMAXPROCS") == "" && l.cpus > 0 && l.cpus <= 1 {
		runtime.GOMAXPROCS(1)
	}
	if os.Getenv("GOMEMLIMIT") == "" && l.memory > 0 {
		debug.SetMemoryLimit(int64(memoryShare * float64(l.memory)))
	}
	log.Info("limits", "gomaxprocs", runtime.GOMAXPROCS(0), "cpus", l.cpus, "memory", l.memory)
}
