package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Limits bound a container's resources; zero is no bound.
type Limits struct {
	Memory   int64 // bytes
	MilliCPU int64 // thousandths of one CPU
}

// cgroupRoot is where distributions mount control groups, of either version.
const cgroupRoot = "/sys/fs/cgroup"

// cpuPeriod is the kernel's default, over which the CPU limit holds.
const cpuPeriod = 100_000 // µs

// Limit makes control groups of a name for limits, and gives their folders,
// for Spec.Cgroups. What it made before an error it has taken away again.
func Limit(name string, l Limits) (dirs []string, err error) {
	defer func() {
		if err != nil {
			Unlimit(dirs)
			dirs = nil
		}
	}()
	quota := strconv.FormatInt(l.MilliCPU*cpuPeriod/1000, 10)
	memory := strconv.FormatInt(l.Memory, 10)
	set := func(dir string, settings ...string) error {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make control group: %w", err)
		}
		dirs = append(dirs, dir)
		for i := 0; i < len(settings); i += 2 {
			if err := os.WriteFile(filepath.Join(dir, settings[i]), []byte(settings[i+1]), 0); err != nil {
				return fmt.Errorf("set limit: %w", err)
			}
		}
		return nil
	}
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+memory +cpu"), 0); err != nil {
			return dirs, fmt.Errorf("switch controllers on: %w", err)
		}
		var settings []string
		if l.Memory > 0 {
			settings = append(settings, "memory.max", memory)
		}
		if l.MilliCPU > 0 {
			settings = append(settings, "cpu.max", quota+" "+strconv.Itoa(cpuPeriod))
		}
		return dirs, set(filepath.Join(cgroupRoot, name), settings...)
	}
	if l.Memory > 0 {
		if err := set(filepath.Join(cgroupRoot, "memory", name), "memory.limit_in_bytes", memory); err != nil {
			return dirs, err
		}
	}
	if l.MilliCPU > 0 {
		err := set(filepath.Join(cgroupRoot, "cpu", name), "cpu.cfs_period_us", strconv.Itoa(cpuPeriod), "cpu.cfs_quota_us", quota)
		if err != nil {
			return dirs, err
		}
	}
	return dirs, nil
}

// Unlimit removes control groups; ones in use or gone are left as they are.
func Unlimit(dirs []string) {
	for _, d := range dirs {
		_ = os.Remove(d)
	}
}

// OutOfMemory says whether the kernel killed something in these control
// groups for their memory limit.
func OutOfMemory(dirs []string) bool {
	for _, d := range dirs {
		for _, file := range []string{"memory.events", "memory.oom_control"} {
			raw, err := os.ReadFile(filepath.Join(d, file))
			if err != nil {
				continue
			}
			for _, line := range strings.Split(string(raw), "\n") {
				if n, ok := strings.CutPrefix(line, "oom_kill "); ok && n != "0" {
					return true
				}
			}
		}
	}
	return false
}

func join(dirs []string, pid int) error {
	for _, d := range dirs {
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	return nil
}
