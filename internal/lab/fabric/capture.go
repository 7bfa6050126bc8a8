package fabric

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CaptureConfig says what to write down.
type CaptureConfig struct {
	NetNS     string // path of the namespace; empty: the caller's own
	Interface string // empty: Bridge; AllInterfaces: every one that is an Ethernet
	File      string // pcap with nanoseconds, overwritten
	SnapLen   int    // bytes kept of each packet; 0: all
	MaxBytes  int64  // of the file; further packets are only counted. 0: 256 MiB
	OnStart   func() // called once packets are being taken
}

// AllInterfaces captures all of a namespace at once. A packet is then seen at
// each interface that it passes. Loopback is among them.
const AllInterfaces = "any"

// CaptureStats says how much of the traffic the file holds.
type CaptureStats struct {
	Packets int64 // seen
	Written int64 // of them, in the file
	Bytes   int64 // size of the file
	Dropped int64 // by the kernel, because we were too slow
}

// The ring holds 32 MiB: more than half a second of 50,000 packets of 1 KiB,
// while the writer waits for a disk. A block is handed over when full or after
// ringRetire.
const (
	ringBlock  = 1 << 20
	ringBlocks = 32
	ringFrame  = 2048 // only has to divide a block: frames of version 3 vary
	ringRetire = 50   // ms
	// pollWait bounds how long an ended Capture takes to notice.
	pollWait = 100 // ms
	// lastBlocks is how long an ended Capture still takes what was seen before:
	// blocks come within ringRetire. Traffic may never stop.
	lastBlocks      = 4 * ringRetire * time.Millisecond
	maxSnapLen      = 256 << 10
	defaultMaxBytes = 256 << 20
)

// pcap, nanosecond form, Ethernet: https://www.tcpdump.org/manpages/pcap-savefile.5.html
const (
	pcapMagicNanos = 0xa1b23c4d
	pcapEthernet   = 1
	pcapHeaderLen  = 24
	pcapRecordLen  = 16
)

// Capture writes an interface's packets to a file until ctx ends. On a node's
// bridge a packet between two pods of that node is seen twice, coming in and
// going out, because the node routes it. Packets may be larger than the MTU
// and lack checksums: the lab's links hand over what the sender would have
// left to a network card.
func Capture(ctx context.Context, cfg CaptureConfig) (CaptureStats, error) {
	if cfg.Interface == "" {
		cfg.Interface = Bridge
	}
	if cfg.SnapLen <= 0 || cfg.SnapLen > maxSnapLen {
		cfg.SnapLen = maxSnapLen
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	if err := cfg.inside(func() error { // before a file is overwritten for nothing
		_, err := interfaceIndex(cfg.Interface)
		return err
	}); err != nil {
		return CaptureStats{}, fmt.Errorf("capture %s: find interface: %w", cfg.Interface, err)
	}
	file, err := os.Create(cfg.File)
	if err != nil {
		return CaptureStats{}, fmt.Errorf("capture: %w", err)
	}
	c := &capture{cfg: cfg, out: bufio.NewWriterSize(file, ringBlock)}
	err = c.run(ctx)
	if ferr := c.out.Flush(); err == nil && ferr != nil {
		err = ferr
	}
	if cerr := file.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if err != nil {
		return c.stats, fmt.Errorf("capture %s: %w", cfg.Interface, err)
	}
	return c.stats, nil
}

type capture struct {
	cfg   CaptureConfig
	out   *bufio.Writer
	fd    int
	stats CaptureStats
}

func (c *capture) run(ctx context.Context) error {
	if err := c.header(); err != nil {
		return err
	}
	ring, err := c.open()
	if err != nil {
		return err
	}
	defer unix.Close(c.fd)
	defer func() { _ = unix.Munmap(ring) }()
	if c.cfg.OnStart != nil {
		c.cfg.OnStart()
	}
	var until time.Time // zero: ctx has not ended
	for i := 0; ; i = (i + 1) % ringBlocks {
		if ctx.Err() != nil && until.IsZero() {
			until = time.Now().Add(lastBlocks)
		}
		if !until.IsZero() && time.Now().After(until) {
			break
		}
		block := ring[i*ringBlock : (i+1)*ringBlock]
		ended, err := c.await(ctx, block)
		if err != nil {
			return err
		}
		if ended {
			break
		}
		if err := c.block(block); err != nil {
			return err
		}
	}
	return c.count()
}

// open makes the socket and its ring, then binds: no packet is taken before
// all is set, none of another interface ever.
func (c *capture) open() ([]byte, error) {
	var ring []byte
	err := c.cfg.inside(func() (err error) {
		index, err := interfaceIndex(c.cfg.Interface)
		if err != nil {
			return fmt.Errorf("find interface: %w", err)
		}
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open packet socket: %w", err)
		}
		defer func() {
			if err != nil {
				unix.Close(c.fd)
			}
		}()
		if err := unix.SetsockoptInt(c.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
			return fmt.Errorf("ask for ring version 3: %w", err)
		}
		req := unix.TpacketReq3{
			Block_size: ringBlock, Block_nr: ringBlocks,
			Frame_size: ringFrame, Frame_nr: ringBlock / ringFrame * ringBlocks,
			Retire_blk_tov: ringRetire,
		}
		if err := unix.SetsockoptTpacketReq3(c.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
			return fmt.Errorf("make ring: %w", err)
		}
		ring, err = unix.Mmap(c.fd, 0, ringBlock*ringBlocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map ring: %w", err)
		}
		// Promiscuous: else a bridge shows only what is sent to itself. With all
		// interfaces the bridge's ports show the rest.
		mreq := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
		if index != 0 {
			if err := unix.SetsockoptPacketMreq(c.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mreq); err != nil {
				return fmt.Errorf("set promiscuous: %w", err)
			}
		}
		sa := &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: index}
		if err := unix.Bind(c.fd, sa); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
		return nil
	})
	return ring, err
}

// inside runs fn in the namespace; its own needs no capability to enter.
func (c CaptureConfig) inside(fn func() error) error {
	if c.NetNS == "" {
		return fn()
	}
	return Do(c.NetNS, fn)
}

// interfaceIndex is 0 for all, as packet sockets have it (packet(7)).
func interfaceIndex(name string) (int, error) {
	if name == AllInterfaces {
		return 0, nil
	}
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return ifc.Index, nil
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Offsets in struct tpacket_block_desc and struct tpacket3_hdr
// (linux/if_packet.h); native byte order.
const (
	blockStatus = 8
	blockCount  = 12
	blockFirst  = 16
	hdrNext     = 0
	hdrSec      = 4
	hdrNsec     = 8
	hdrSnap     = 12
	hdrLen      = 16
	hdrMac      = 24
)

// await waits until a block belongs to us; ended is true when ctx is over and
// the kernel has nothing left.
func (c *capture) await(ctx context.Context, block []byte) (ended bool, err error) {
	ending := false
	for {
		if blockOwner(block)&unix.TP_STATUS_USER != 0 {
			return false, nil
		}
		if ending {
			return true, nil
		}
		// One more wait after the end: the kernel hands over the block that
		// it is filling within ringRetire.
		ending = ctx.Err() != nil
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN | unix.POLLERR}}, pollWait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for packets: %w", err)
		}
	}
}

func (c *capture) block(b []byte) error {
	n := native32(b, blockCount)
	at := int(native32(b, blockFirst))
	for range n {
		h := b[at:]
		mac := int(binary.NativeEndian.Uint16(h[hdrMac:]))
		got := int(native32(h, hdrSnap))
		if err := c.packet(h, h[mac:mac+got]); err != nil {
			return err
		}
		at += int(native32(h, hdrNext))
	}
	releaseBlock(b)
	return nil
}

func (c *capture) packet(h, data []byte) error {
	c.stats.Packets++
	data = data[:min(len(data), c.cfg.SnapLen)]
	if c.stats.Bytes+pcapRecordLen+int64(len(data)) > c.cfg.MaxBytes {
		return nil
	}
	var rec [pcapRecordLen]byte
	binary.LittleEndian.PutUint32(rec[0:], native32(h, hdrSec))
	binary.LittleEndian.PutUint32(rec[4:], native32(h, hdrNsec))
	binary.LittleEndian.PutUint32(rec[8:], uint32(len(data)))
	binary.LittleEndian.PutUint32(rec[12:], native32(h, hdrLen))
	if _, err := c.out.Write(rec[:]); err != nil {
		return fmt.Errorf("write packet: %w", err)
	}
	if _, err := c.out.Write(data); err != nil {
		return fmt.Errorf("write packet: %w", err)
	}
	c.stats.Written++
	c.stats.Bytes += pcapRecordLen + int64(len(data))
	return nil
}

func (c *capture) header() error {
	var h [pcapHeaderLen]byte
	binary.LittleEndian.PutUint32(h[0:], pcapMagicNanos)
	binary.LittleEndian.PutUint16(h[4:], 2)
	binary.LittleEndian.PutUint16(h[6:], 4)
	binary.LittleEndian.PutUint32(h[16:], uint32(c.cfg.SnapLen))
	binary.LittleEndian.PutUint32(h[20:], pcapEthernet)
	c.stats.Bytes = pcapHeaderLen
	_, err := c.out.Write(h[:])
	return err
}

// count reads the kernel's own account (PACKET_STATISTICS).
func (c *capture) count() error {
	st, err := unix.GetsockoptTpacketStatsV3(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return fmt.Errorf("read drops: %w", err)
	}
	c.stats.Dropped = int64(st.Drops)
	return nil
}

func native32(b []byte, at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }

// The status word is the lock between the kernel and us, so it is read and
// written atomically: the block's content is ours only after we saw it set.
func statusWord(b []byte) *uint32 { return (*uint32)(unsafe.Pointer(&b[blockStatus])) }

func blockOwner(b []byte) uint32 { return atomic.LoadUint32(statusWord(b)) }

func releaseBlock(b []byte) { atomic.StoreUint32(statusWord(b), unix.TP_STATUS_KERNEL) }
