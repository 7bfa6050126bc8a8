// Package pki makes certificate authorities and SVIDs for tests, right ones
// and every kind of wrong ones. Nothing here is linked into a program.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/identity"
)

// Authority is a trust domain's root with one intermediate under it.
type Authority struct {
	TrustDomain  spiffeid.TrustDomain
	Root         *x509.Certificate
	Intermediate *x509.Certificate

	key crypto.Signer // the intermediate's
}

// SVID is a chain, leaf first, and the leaf's key.
type SVID struct {
	Chain []*x509.Certificate
	Key   crypto.Signer
}

// Change edits the certificate before it is signed.
type Change func(*x509.Certificate)

// New makes an authority, good from an hour ago for ten years.
func New(t testing.TB, trustDomain string) *Authority {
	t.Helper()
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		t.Fatalf("trust domain: %v", err)
	}
	rootKey, interKey := Key(t), Key(t)
	root := caTemplate("test root of "+trustDomain, td)
	rootCert := sign(t, root, root, rootKey.Public(), rootKey)
	inter := sign(t, caTemplate("test intermediate", td), rootCert, interKey.Public(), rootKey)
	return &Authority{TrustDomain: td, Root: rootCert, Intermediate: inter, key: interKey}
}

func caTemplate(name string, td spiffeid.TrustDomain) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: name},
		URIs:                  []*url.URL{td.ID().URL()},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(10 * 365 * 24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

// Key makes a P-256 key.
func Key(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make key: %v", err)
	}
	return key
}

// SVID issues a certificate for id (spiffe://...), good from five minutes ago
// for a day unless changed.
func (a *Authority) SVID(t testing.TB, id string, changes ...Change) SVID {
	t.Helper()
	return a.SVIDForKey(t, id, Key(t), changes...)
}

// SVIDForKey is SVID with a key of the caller's choice.
func (a *Authority) SVIDForKey(t testing.TB, id string, key crypto.Signer, changes ...Change) SVID {
	t.Helper()
	u, err := url.Parse(id)
	if err != nil {
		t.Fatalf("identity: %v", err)
	}
	leaf := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "pod.ns", SerialNumber: "uid-1"},
		URIs:                  []*url.URL{u},
		NotBefore:             time.Now().Add(-5 * time.Minute),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, c := range changes {
		c(leaf)
	}
	cert := sign(t, leaf, a.Intermediate, key.Public(), a.key)
	return SVID{Chain: []*x509.Certificate{cert, a.Intermediate}, Key: key}
}

// Store gives an identity store with an SVID for id that trusts this authority
// and the others given.
func (a *Authority) Store(t testing.TB, id string, others ...*Authority) *identity.Store {
	t.Helper()
	s := identity.NewStore()
	svid := a.SVID(t, id)
	if err := s.SetSVID(svid.Chain, svid.Key); err != nil {
		t.Fatalf("test store: %v", err)
	}
	if err := s.SetBundles(Bundles(append(others, a)...)); err != nil {
		t.Fatalf("test store: %v", err)
	}
	return s
}

// Bundles gathers roots by trust domain; two authorities of one domain give a
// bundle with two roots.
func Bundles(authorities ...*Authority) map[spiffeid.TrustDomain][]*x509.Certificate {
	out := map[spiffeid.TrustDomain][]*x509.Certificate{}
	for _, a := range authorities {
		out[a.TrustDomain] = append(out[a.TrustDomain], a.Root)
	}
	return out
}

// RootsPEM is the root as the injector hands it to sidecars.
func (a *Authority) RootsPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Root.Raw})
}

// Dates sets when the certificate is valid, relative to now.
func Dates(from, until time.Duration) Change {
	return func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(until)
	}
}

// Pod sets the pod's name and UID.
func Pod(name, uid string) Change {
	return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: name, SerialNumber: uid} }
}

func serial() *big.Int {
	raw := make([]byte, 16)
	rand.Read(raw) // never fails since Go 1.24
	return new(big.Int).SetBytes(raw)
}

func sign(t testing.TB, template, parent *x509.Certificate, public any, key crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatalf("sign certificate: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("parse certificate: %v", err)
	}
	return cert
}

// RSAKey makes an RSA key; ours are P-256, but an external issuer's may not be.
func RSAKey(t testing.TB, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatalf("make key: %v", err)
	}
	return key
}

// Sub lets a workload's SVID sign another, as no workload may.
func Sub(t testing.TB, parent SVID, id string) SVID {
	t.Helper()
	a := &Authority{Intermediate: parent.Chain[0], key: parent.Key}
	s := a.SVID(t, id)
	return SVID{Chain: append(s.Chain[:1:1], parent.Chain...), Key: s.Key}
}
