package codec

import "sync"

// Sizes of buffers for messages: small for heads, then larger as long as reads
// fill them. The largest holds the largest head, and four TLS records.
const (
	SmallBuffer  = 4 << 10
	MediumBuffer = 16 << 10
	LargeBuffer  = MaxHead
)

var (
	smallBuffers  = sync.Pool{New: func() any { return new([SmallBuffer]byte) }}
	mediumBuffers = sync.Pool{New: func() any { return new([MediumBuffer]byte) }}
	largeBuffers  = sync.Pool{New: func() any { return new([LargeBuffer]byte) }}
)

// TakeBuffer gives a buffer of at least size bytes, or the largest.
func TakeBuffer(size int) []byte {
	switch {
	case size <= SmallBuffer:
		return smallBuffers.Get().(*[SmallBuffer]byte)[:]
	case size <= MediumBuffer:
		return mediumBuffers.Get().(*[MediumBuffer]byte)[:]
	}
	return largeBuffers.Get().(*[LargeBuffer]byte)[:]
}

// GiveBuffer takes one back. What append made of one is garbage by then and is
// left to the collector.
func GiveBuffer(b []byte) {
	switch cap(b) {
	case SmallBuffer:
		smallBuffers.Put((*[SmallBuffer]byte)(b[:SmallBuffer]))
	case MediumBuffer:
		mediumBuffers.Put((*[MediumBuffer]byte)(b[:MediumBuffer]))
	case LargeBuffer:
		largeBuffers.Put((*[LargeBuffer]byte)(b[:LargeBuffer]))
	}
}
