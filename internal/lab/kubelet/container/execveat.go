package container

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// execveat becomes the program behind an open descriptor. x/sys has no wrapper.
func execveat(fd int, argv, env []string) error {
	a, err := cStrings(argv)
	if err != nil {
		return err
	}
	e, err := cStrings(env)
	if err != nil {
		return err
	}
	var empty byte
	_, _, errno := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(fd), ptr(&empty), ptr(&a[0]), ptr(&e[0]), unix.AT_EMPTY_PATH, 0)
	return errno
}

func cStrings(in []string) ([]*byte, error) {
	out := make([]*byte, len(in)+1) // ends with nil
	for i, s := range in {
		p, err := unix.BytePtrFromString(s)
		if err != nil {
			return nil, err
		}
		out[i] = p
	}
	return out, nil
}

func ptr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
