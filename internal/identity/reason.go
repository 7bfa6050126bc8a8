package identity

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	reasonNone    = telemetry.ReasonNoIdentity
	reasonUnknown = telemetry.ReasonCertificateUnknown
)

// Error is a certificate refused by us, ours or a peer's. Its text says which
// certificate, what was wanted and what was seen.
type Error struct {
	Reason telemetry.Reason
	msg    string
	err    error
}

// Error tells it in one line.
func (e *Error) Error() string {
	if e.err == nil {
		return e.msg
	}
	return e.msg + ": " + e.err.Error()
}

// Unwrap gives the cause, if there is one beneath.
func (e *Error) Unwrap() error { return e.err }

// alertReasons are the TLS alerts (RFC 8446 §6.2) by which a peer refuses our
// certificate. Go's peers, ours among them, send bad_certificate for whatever
// their verification found, so the peer's own log says more.
var alertReasons = map[tls.AlertError]telemetry.Reason{
	42:  telemetry.ReasonCertificateUnknown, // bad_certificate
	43:  telemetry.ReasonCertificateUnknown, // unsupported_certificate
	44:  telemetry.ReasonCertificateUnknown, // certificate_revoked
	45:  telemetry.ReasonCertificateExpired, // certificate_expired
	46:  telemetry.ReasonCertificateUnknown, // certificate_unknown
	48:  telemetry.ReasonCertificateUnknown, // unknown_ca
	116: telemetry.ReasonNoIdentity,         // certificate_required
}

// ReasonOf gives the reason for a failed handshake or for a connection that
// the peer broke off because of our certificate; empty: not about identity. In
// TLS 1.3 a server judges the client's certificate after the client's side of
// the handshake is done, so its alert comes with the client's first read.
func ReasonOf(err error) telemetry.Reason {
	var own *Error
	if errors.As(err, &own) {
		return own.Reason
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" && op.Err != nil {
		// crypto/tls hides the alert's type but not its text.
		for a, reason := range alertReasons {
			if op.Err.Error() == a.Error() {
				return reason
			}
		}
	}
	var alert tls.AlertError // QUIC's form, should a caller ever have one
	if errors.As(err, &alert) {
		return alertReasons[alert]
	}
	// Refused by crypto/tls itself before our verification: no certificate
	// shown, or one that does not parse or sign.
	if err != nil && strings.HasSuffix(err.Error(), noClientCertificate) {
		return telemetry.ReasonNoIdentity
	}
	return telemetry.ReasonOK
}

// noClientCertificate is crypto/tls's error for RequireAnyClientCert; it has
// no type. TestReasonOfNoClientCertificate fails should the text change.
const noClientCertificate = "tls: client didn't provide a certificate"
