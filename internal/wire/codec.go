package wire

import (
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/heddle-mesh/heddle/api/wire"
)

// MaxMessage bounds one message to a peer in bytes: a Service of 100,000
// endpoints fits, a broken or hostile peer cannot make us hold more.
const MaxMessage = 16 << 20

// Encoded is a control message in its bytes. It is made once and may be sent
// to any number of peers, which share the memory.
type Encoded struct{ bytes []byte }

// Encode makes the bytes of m; it fails if they are more than MaxMessage.
func Encode(m *pb.ControlMessage) (*Encoded, error) {
	b, err := Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("encode ControlMessage: %d bytes are over the limit of %d", len(b), MaxMessage)
	}
	return &Encoded{bytes: b}, nil
}

// Len is the size in bytes.
func (e *Encoded) Len() int { return len(e.bytes) }

// Bytes are the message's, shared by all who send it: do not change them.
func (e *Encoded) Bytes() []byte { return e.bytes }

// codec is gRPC's proto codec that also takes what is encoded already.
type codec struct {
	received *atomic.Uint64 // bytes of messages decoded; nil: not counted
}

var _ encoding.CodecV2 = codec{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Encoded:
		return mem.BufferSlice{mem.SliceBuffer(m.bytes)}, nil
	case proto.Message:
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return nil, fmt.Errorf("encode: %T is no message", v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode: %T is no message", v)
	}
	if c.received != nil {
		c.received.Add(uint64(data.Len()))
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if err := proto.Unmarshal(buf.ReadOnlyData(), m); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}
