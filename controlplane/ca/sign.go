package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// ErrRequest marks a certificate request that is malformed or not allowed: the
// caller's mistake, and asking again will not help.
var ErrRequest = errors.New("bad certificate request")

// maxRequest bounds a PKCS #10 request. One with a P-256 key and no names is
// 220 bytes; ones with names and extensions, which we ignore, fit as well.
const maxRequest = 8 << 10

// Sign makes an SVID for the public key of a PKCS #10 request and the proven
// subject: DER, leaf first, then the intermediate. Names and extensions in the
// request are ignored. The key must be P-256: every peer of ours makes that,
// and one kind of key means one cost and one proof of strength.
func (c *CA) Sign(csrDER []byte, s Subject) (chain [][]byte, notAfter time.Time, err error) {
	if len(csrDER) > maxRequest {
		return nil, time.Time{}, fmt.Errorf("%w: %d bytes, want up to %d", ErrRequest, len(csrDER), maxRequest)
	}
	req, err := x509.ParseCertificateRequest(csrDER)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	key, ok := req.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, time.Time{}, fmt.Errorf("%w: its key is %s, want ECDSA P-256", ErrRequest, keyName(req))
	}
	switch req.SignatureAlgorithm {
	case x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512:
	default:
		return nil, time.Time{}, fmt.Errorf("%w: signed with %s, want ECDSA with SHA-256", ErrRequest, req.SignatureAlgorithm)
	}
	// Proof that the caller has the private key.
	if err := req.CheckSignature(); err != nil {
		return nil, time.Time{}, fmt.Errorf("%w: its signature: %w", ErrRequest, err)
	}
	certs, err := c.issue(key, s)
	if err != nil {
		return nil, time.Time{}, err
	}
	return [][]byte{certs[0].Raw, certs[1].Raw}, certs[0].NotAfter, nil
}

// Issue makes a key and an SVID for it, for the control plane's own use.
func (c *CA) Issue(s Subject) ([]*x509.Certificate, crypto.Signer, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	chain, err := c.issue(&key.PublicKey, s)
	if err != nil {
		return nil, nil, err
	}
	return chain, key, nil
}

func (c *CA) issue(key *ecdsa.PublicKey, s Subject) ([]*x509.Certificate, error) {
	if s.ID.IsZero() || s.ID.Path() == "" || !s.ID.MemberOf(c.cfg.TrustDomain) {
		return nil, fmt.Errorf("sign SVID: %q is no workload of trust domain %q", s.ID, c.cfg.TrustDomain.Name())
	}
	if len(s.PodUID) > maxName {
		return nil, fmt.Errorf("sign SVID of %s: a pod UID of %d bytes, want up to %d", s.ID, len(s.PodUID), maxName)
	}
	a, now := c.current.Load(), time.Now()
	from, until := now.Add(-backdate), now.Add(c.cfg.TTL)
	if from.Before(a.issuer.NotBefore) {
		from = a.issuer.NotBefore
	}
	if until.After(a.issuer.NotAfter) {
		until = a.issuer.NotAfter
	}
	if now.Before(a.issuer.NotBefore) || !now.Before(until) {
		return nil, fmt.Errorf("sign SVID of %s: the intermediate is valid from %s to %s and our clock says %s", s.ID,
			a.issuer.NotBefore.UTC().Format(time.RFC3339), a.issuer.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	leaf, err := sign(&x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: cut(s.Pod), SerialNumber: s.PodUID},
		URIs:                  []*url.URL{s.ID.URL()},
		NotBefore:             from,
		NotAfter:              until,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, a.issuer, key, a.issuerKey)
	if err != nil {
		return nil, fmt.Errorf("sign SVID of %s: %w", s.ID, err)
	}
	return []*x509.Certificate{leaf, a.issuer}, nil
}

func keyName(req *x509.CertificateRequest) string {
	if k, ok := req.PublicKey.(*ecdsa.PublicKey); ok {
		return "ECDSA " + k.Curve.Params().Name
	}
	return req.PublicKeyAlgorithm.String()
}
