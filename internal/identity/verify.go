package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// minRSABits is what NIST SP 800-57 still allows. Our issuer makes no RSA
// keys; a SPIRE server may.
const minRSABits = 2048

// Peer is who stands at the other end of a verified connection.
type Peer struct {
	ID       spiffeid.ID
	PodUID   string // from the subject's serialNumber; empty: not a pod
	Pod      string // <pod>.<namespace> from the common name, for people
	Serial   string // the certificate's, lower-case hex
	NotAfter time.Time
}

// PeerOf tells whose connection this is. Only for a finished handshake made
// with a configuration of this package, which has verified the certificate.
func PeerOf(cs tls.ConnectionState) (Peer, error) {
	if !cs.HandshakeComplete {
		return Peer{}, errors.New("peer identity: the handshake is not finished")
	}
	if len(cs.PeerCertificates) == 0 {
		return Peer{}, &Error{Reason: reasonNone, msg: "the peer showed no certificate"}
	}
	leaf := cs.PeerCertificates[0]
	id, err := leafID(leaf)
	if err != nil {
		return Peer{}, &Error{Reason: reasonUnknown, msg: "the peer's certificate is no SVID", err: err}
	}
	return Peer{
		ID:       id,
		PodUID:   leaf.Subject.SerialNumber,
		Pod:      leaf.Subject.CommonName,
		Serial:   leaf.SerialNumber.Text(16),
		NotAfter: leaf.NotAfter,
	}, nil
}

func (s *Store) verifyServer(cs tls.ConnectionState, want spiffeid.ID) error {
	if want.IsZero() {
		return &Error{Reason: telemetry.ReasonIdentityMismatch, msg: "no identity to expect was given"}
	}
	got, err := s.verifyChain(cs.PeerCertificates, time.Now())
	if err != nil {
		return err
	}
	if got != want {
		return &Error{Reason: telemetry.ReasonIdentityMismatch,
			msg: fmt.Sprintf("wrong identity: wanted %s, the peer is %s", want, got)}
	}
	return nil
}

func (s *Store) verifyClient(cs tls.ConnectionState, optional bool) error {
	if optional && len(cs.PeerCertificates) == 0 {
		return nil
	}
	_, err := s.verifyChain(cs.PeerCertificates, time.Now())
	return err
}

// verifyChain is the one place where a peer's certificate is judged: it is an
// SVID, it chains to a root of its own trust domain (and of no other: a root
// must not vouch for a foreign domain), and it is valid now.
func (s *Store) verifyChain(certs []*x509.Certificate, now time.Time) (spiffeid.ID, error) {
	if len(certs) == 0 {
		return spiffeid.ID{}, &Error{Reason: reasonNone, msg: "the peer showed no certificate"}
	}
	leaf := certs[0]
	id, err := leafID(leaf)
	if err != nil {
		return spiffeid.ID{}, &Error{Reason: reasonUnknown, msg: "bad certificate: no SVID", err: err}
	}
	if err := strongKey(leaf.PublicKey); err != nil {
		return spiffeid.ID{}, &Error{Reason: reasonUnknown, msg: fmt.Sprintf("bad certificate of %s", id), err: err}
	}
	at := now
	if leaf.NotBefore.After(now) && !leaf.NotBefore.After(now.Add(ClockSkew)) {
		at = leaf.NotBefore
	}
	known := *s.bundles.Load()
	if _, ok := known[id.TrustDomain()]; !ok {
		return spiffeid.ID{}, &Error{Reason: reasonUnknown,
			msg: fmt.Sprintf("no trust bundle for trust domain %q of the peer %s", id.TrustDomain().Name(), id)}
	}
	if _, _, err := x509svid.Verify(certs, known, x509svid.WithTime(at)); err != nil {
		return spiffeid.ID{}, chainError(id, err, now)
	}
	return id, nil
}

// chainError says which of the things that can be wrong with a chain it was.
func chainError(id spiffeid.ID, err error, now time.Time) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil {
		word, whose := "expired", "certificate"
		if now.Before(invalid.Cert.NotBefore) {
			word = "not yet valid"
		}
		if invalid.Cert.IsCA {
			whose = "issuer's certificate"
		}
		return &Error{Reason: telemetry.ReasonCertificateExpired,
			msg: fmt.Sprintf("%s %s of %s: it is valid from %s to %s and our clock says %s", word, whose, id,
				stamp(invalid.Cert.NotBefore), stamp(invalid.Cert.NotAfter), stamp(now))}
	}
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return &Error{Reason: reasonUnknown, err: err,
			msg: fmt.Sprintf("bad certificate of %s: signed by none of the roots of trust domain %q", id, id.TrustDomain().Name())}
	}
	return &Error{Reason: reasonUnknown, msg: fmt.Sprintf("bad certificate of %s", id), err: err}
}

func strongKey(public any) error {
	switch k := public.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSABits {
			return fmt.Errorf("RSA key of %d bits, want at least %d", k.N.BitLen(), minRSABits)
		}
		return nil
	}
	return fmt.Errorf("key of type %T", public)
}

// stamp writes a time as people and RFC 5280 do: UTC, to the second.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
