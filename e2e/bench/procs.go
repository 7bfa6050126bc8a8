package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuOf sums the time that all threads of the processes spent on a CPU, user
// and kernel, from /proc/PID/task/*/schedstat (nanoseconds).
func cpuOf(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil || len(files) == 0 {
			return 0, fmt.Errorf("process %d is gone", pid)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				continue // a thread that just ended
			}
			on, _, _ := bytes.Cut(b, []byte(" "))
			n, err := strconv.ParseInt(string(on), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", f, err)
			}
			sum += time.Duration(n)
		}
	}
	return sum, nil
}

// memory is what a process costs the machine, in bytes.
type memory struct {
	PSS  int64 `json:"pss"`
	Anon int64 `json:"anonymous_rss"`
}

func memoryOf(pid int) (memory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, err
	}
	var m memory
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "Pss:":
			m.PSS = n << 10
		case "Anonymous:":
			m.Anon = n << 10
		}
	}
	return m, nil
}

// find gives the processes for whose command line and environment the words
// all hold.
func find(cmdline string, environ ...string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
next:
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmd, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !strings.Contains(strings.ReplaceAll(string(cmd), "\x00", " "), cmdline) {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		for _, want := range environ {
			if !strings.Contains("\x00"+string(env), "\x00"+want+"\x00") {
				continue next
			}
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
