package packet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// maxFrame bounds one record of a capture file; larger is a damaged file.
const maxFrame = 256 << 10

// linkEthernet is LINKTYPE_ETHERNET of the pcap format.
const linkEthernet = 1

// ReadCapture calls frame for each Ethernet frame of a capture in the classic
// pcap format (draft-ietf-opsawg-pcap), of either byte order and of
// microseconds or nanoseconds. The frame is valid during the call only. A file
// that ends inside a record, as one does whose writer was killed, gives the
// whole records and then io.ErrUnexpectedEOF.
func ReadCapture(r io.Reader, frame func(at time.Time, b []byte)) error {
	br := bufio.NewReaderSize(r, 1<<20)
	var head [24]byte
	if _, err := io.ReadFull(br, head[:]); err != nil {
		return fmt.Errorf("read capture header: %w", err)
	}
	var order binary.ByteOrder
	unit := time.Microsecond
	switch magic := binary.LittleEndian.Uint32(head[:]); magic {
	case 0xa1b2c3d4:
		order = binary.LittleEndian
	case 0xa1b23c4d:
		order, unit = binary.LittleEndian, time.Nanosecond
	case 0xd4c3b2a1:
		order = binary.BigEndian
	case 0x4d3cb2a1:
		order, unit = binary.BigEndian, time.Nanosecond
	default:
		return fmt.Errorf("read capture header: magic %#x is not pcap", magic)
	}
	if link := order.Uint32(head[20:]) & 0xfffffff; link != linkEthernet {
		return fmt.Errorf("capture of link type %d: only Ethernet (%d) is read", link, linkEthernet)
	}
	buf := make([]byte, 0, 64<<10)
	for {
		var rec [16]byte
		if _, err := io.ReadFull(br, rec[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read capture record: %w", err)
		}
		size := int(order.Uint32(rec[8:]))
		if size > maxFrame {
			return fmt.Errorf("capture record of %d bytes: the file is damaged", size)
		}
		buf = append(buf[:0], make([]byte, size)...)
		if _, err := io.ReadFull(br, buf); err != nil {
			return fmt.Errorf("read capture record: %w", io.ErrUnexpectedEOF)
		}
		frame(time.Unix(int64(order.Uint32(rec[0:])), int64(order.Uint32(rec[4:]))*int64(unit)), buf)
	}
}
