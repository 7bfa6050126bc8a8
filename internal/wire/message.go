// Package wire is the door to gRPC and protobuf: servers and clients of the
// two services of api/wire over mutual TLS, streams without gRPC's types in
// their signatures, and what messages need everywhere: deterministic bytes,
// content versions, deltas.
//
// It knows the messages' form, not their meaning: what is sent to whom is
// controlplane/serve's business, what is made of it internal/control's.
package wire

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/heddle-mesh/heddle/api/wire"
)

// Message is any message of api/wire.
type Message = proto.Message

// versionBytes is the length of a content version: 128 bits make an accidental
// collision impossible in practice, and nobody gains by a made one, since only
// the control plane makes versions.
const versionBytes = 16

// deterministic encodes maps (there are none so far) in one order.
var deterministic = proto.MarshalOptions{Deterministic: true}

// Marshal encodes a message; equal messages give equal bytes in all builds of
// one version of Heddle. It fails on strings that are not UTF-8.
func Marshal(m Message) ([]byte, error) {
	b, err := deterministic.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return b, nil
}

// Unmarshal decodes into m, which is reset first. Unknown fields are kept.
func Unmarshal(b []byte, m Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("decode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}

// Equal compares by content.
func Equal(a, b Message) bool { return proto.Equal(a, b) }

// Clone gives a deep copy.
func Clone[M Message](m M) M { return proto.CloneOf(m) }

// Hash is the content version of a message: 16 bytes of SHA-256 over Marshal.
// Nil if it cannot be encoded, which reads as "no version".
func Hash(m Message) []byte {
	b, err := Marshal(m)
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(b)
	return sum[:versionBytes:versionBytes]
}

// shallow copies the top level of a message; what it points to is shared.
func shallow[M Message](m M) M {
	dst := m.ProtoReflect().New()
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		dst.Set(fd, v)
		return true
	})
	return dst.Interface().(M)
}

// Apply gives the destination after a delta; old stays as it is and shares
// with the result what did not change. Endpoints come out in the order of
// their keys. That the delta starts from old's version is the caller's check.
func Apply(old *pb.Destination, delta *pb.DestinationDelta) (*pb.Destination, error) {
	return apply(old, delta)
}
