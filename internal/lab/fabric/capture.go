package fabric

import "context"

// CaptureConfig says what to write down.
type CaptureConfig struct {
	NetNS     string // path of the namespace
	Interface string // empty: Bridge
	File      string // pcap with nanoseconds, overwritten
	SnapLen   int    // bytes kept of each packet; 0: all
	MaxBytes  int64  // of the file; further packets are only counted. 0: 256 MiB
	OnStart   func() // called once packets are being taken
}

// CaptureStats says how much of the traffic the file holds.
type CaptureStats struct {
	Packets int64 // seen
	Written int64 // of them, in the file
	Bytes   int64 // size of the file
	Dropped int64 // by the kernel, because we were too slow
}

// Capture writes an interface's packets to a file until ctx ends. On a node's
// bridge a packet between two pods of that node is seen twice, coming in and
// going out, because the node routes it.
func Capture(ctx context.Context, cfg CaptureConfig) (CaptureStats, error) {
	return CaptureStats{}, errNotYet
}
