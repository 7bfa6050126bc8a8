package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"
)

func capture(order binary.ByteOrder, magic uint32, frames ...string) []byte {
	var b bytes.Buffer
	put := func(vs ...uint32) {
		for _, v := range vs {
			binary.Write(&b, order, v)
		}
	}
	put(magic, 4<<16|2, 0, 0, 65535, 1)
	for i, f := range frames {
		put(uint32(1000+i), 5, uint32(len(f)), uint32(len(f)))
		b.WriteString(f)
	}
	return b.Bytes()
}

func TestReadCapture(t *testing.T) {
	for name, file := range map[string]struct {
		b    []byte
		unit time.Duration
	}{
		"little endian, microseconds": {capture(binary.LittleEndian, 0xa1b2c3d4, "one", "three"), time.Microsecond},
		"big endian, nanoseconds":     {capture(binary.BigEndian, 0xa1b23c4d, "one", "three"), time.Nanosecond},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			err := ReadCapture(bytes.NewReader(file.b), func(at time.Time, b []byte) {
				if want := time.Unix(int64(1000+len(got)), 5*int64(file.unit)); !at.Equal(want) {
					t.Errorf("time %v, want %v", at, want)
				}
				got = append(got, string(b))
			})
			if err != nil || len(got) != 2 || got[0] != "one" || got[1] != "three" {
				t.Errorf("got %q, error %v", got, err)
			}
		})
	}
}

func TestReadCaptureDamaged(t *testing.T) {
	whole := capture(binary.LittleEndian, 0xa1b2c3d4, "one", "three")
	n := 0
	err := ReadCapture(bytes.NewReader(whole[:len(whole)-1]), func(time.Time, []byte) { n++ })
	if !errors.Is(err, io.ErrUnexpectedEOF) || n != 1 {
		t.Errorf("cut file: %d frames, error %v", n, err)
	}
	huge := bytes.Clone(whole)
	binary.LittleEndian.PutUint32(huge[24+8:], 1<<30)
	if err := ReadCapture(bytes.NewReader(huge), func(time.Time, []byte) { t.Error("frame from a damaged file") }); err == nil {
		t.Error("a record of 1 GiB was believed")
	}
	if err := ReadCapture(bytes.NewReader([]byte("not a capture file at all")), nil); err == nil {
		t.Error("any file is a capture")
	}
}

func FuzzReadCapture(f *testing.F) {
	f.Add(capture(binary.LittleEndian, 0xa1b2c3d4, "one", "three"))
	f.Add(capture(binary.BigEndian, 0xa1b23c4d, "x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		ReadCapture(bytes.NewReader(b), func(_ time.Time, frame []byte) { total += len(frame) })
		if total > len(b) {
			t.Errorf("%d bytes of frames in a file of %d", total, len(b))
		}
	})
}
