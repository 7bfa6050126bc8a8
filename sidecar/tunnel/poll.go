package tunnel

import (
	"net"

	"golang.org/x/sys/unix"
)

// Poll asks the kernel which of events are there on the TCP connection under
// c, without blocking; false: it cannot be asked.
func Poll(c net.Conn, events int16) (int16, bool) {
	t := TCP(c)
	if t == nil {
		return 0, false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, false
	}
	var got int16
	ok := false
	raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: events}}
		if _, err := unix.Poll(p, 0); err == nil {
			got, ok = p[0].Revents, true
		}
	})
	return got, ok
}
