package wire

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Code classes a refusal by what its receiver can do about it.
type Code uint8

// The codes, with what each asks of the peer.
const (
	Unavailable     Code = iota // try again, elsewhere or later
	Invalid                     // the request is malformed: do not repeat it
	Unauthenticated             // prove anew who you are
	Denied                      // proven, and not allowed
	Exhausted                   // a bound is reached: slow down
	Unsupported                 // not offered by this control plane
)

var codeNames = [...]string{"unavailable", "invalid", "unauthenticated", "denied", "exhausted", "unsupported"}

func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Error is a refusal that crosses the wire: what a Handler returns and what
// the other side's call gives.
type Error struct {
	Code    Code
	Message string
	cause   error // of a connection that did not come about; stays on this side
}

// Refuse gives an Error.
func Refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string { return e.Code.String() + ": " + e.Message }

// Unwrap gives the dial or handshake error, so that identity.ReasonOf works.
func (e *Error) Unwrap() error { return e.cause }

var toGRPC = map[Code]codes.Code{
	Unavailable: codes.Unavailable, Invalid: codes.InvalidArgument, Unauthenticated: codes.Unauthenticated,
	Denied: codes.PermissionDenied, Exhausted: codes.ResourceExhausted, Unsupported: codes.Unimplemented,
}

// outgoing makes gRPC's form of a handler's error. What is not an Error is not
// told to the peer: it may say more than the peer should know.
func outgoing(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return status.Error(toGRPC[e.Code], e.Message)
	}
	return status.Error(codes.Unavailable, "internal error, see the control plane's log")
}

// incoming makes an Error of what gRPC gives. io.EOF and the context's own end
// stay what they are; cause, if any, says why there is no connection.
func incoming(err, cause error) error {
	if err == nil || err == io.EOF {
		return err
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.Canceled:
		return fmt.Errorf("%s: %w", s.Message(), context.Canceled)
	case codes.DeadlineExceeded:
		return fmt.Errorf("%s: %w", s.Message(), context.DeadlineExceeded)
	}
	code := Unavailable
	for ours, theirs := range toGRPC {
		if theirs == s.Code() {
			code = ours
		}
	}
	e := &Error{Code: code, Message: s.Message()}
	if code == Unavailable && cause != nil {
		e.Message, e.cause = cause.Error(), cause
		if refused := (*refusedCertificate)(nil); errors.As(cause, &refused) {
			e.Code = Unauthenticated
		}
	}
	return e
}
