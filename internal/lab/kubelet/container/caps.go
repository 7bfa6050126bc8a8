package container

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// allCaps are the capabilities of capabilities(7), by number.
var allCaps = [...]string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// What a container has unless it says otherwise: containerd's default.
const defaultCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FSETID | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_MKNOD | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETFCAP |
	1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_KILL |
	1<<unix.CAP_AUDIT_WRITE

// Capabilities gives the set of a container that adds and drops capabilities,
// written as in a pod (NET_ADMIN, ALL; CAP_ in front is accepted).
func Capabilities(privileged bool, add, drop []string) (uint64, error) {
	const all = 1<<len(allCaps) - 1
	if privileged {
		return all, nil
	}
	set := uint64(defaultCaps)
	for _, name := range drop {
		bits, err := capBits(name, all)
		if err != nil {
			return 0, err
		}
		set &^= bits
	}
	for _, name := range add {
		bits, err := capBits(name, all)
		if err != nil {
			return 0, err
		}
		set |= bits
	}
	return set, nil
}

func capBits(name string, all uint64) (uint64, error) {
	short := strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	if short == "ALL" {
		return all, nil
	}
	for i, c := range allCaps {
		if c == short {
			return 1 << i, nil
		}
	}
	return 0, fmt.Errorf("unknown capability %q", name)
}

// limitCaps drops from the bounding set whatever is not in keep, so that no
// exec can ever give it back. Capabilities that this kernel does not know are
// skipped.
func limitCaps(keep uint64) error {
	for i := range 64 {
		if keep&(1<<i) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(i), 0, 0, 0); err != nil {
			if err == unix.EINVAL {
				return nil // past the last one
			}
			return fmt.Errorf("drop capability %d: %w", i, err)
		}
	}
	return nil
}

// setCaps sets what the calling thread, of UID 0, has right now.
func setCaps(set uint64) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	lo, hi := uint32(set), uint32(set>>32)
	data := [2]unix.CapUserData{{Effective: lo, Permitted: lo}, {Effective: hi, Permitted: hi}}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}
