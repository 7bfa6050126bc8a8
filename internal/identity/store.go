// Package identity holds this process's X.509-SVID and the trust bundles it
// verifies peers with, and makes the TLS configurations of the mesh from them.
//
// It authenticates: whose certificate is this, and is it good now. Whether that
// peer may do what it asks is the caller's question (internal/policy). It does
// not fetch anything: internal/control and controlplane/serve set what they were
// given. It is the door to go-spiffe, together with controlplane/ca.
package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// ClockSkew is how far in the future a certificate's NotBefore may lie before
// we call it not yet valid. The issuer back-dates by minutes, so this only
// covers issuers that do not; NotAfter gets no such grace, since a peer renews
// at half of a certificate's life.
const ClockSkew = 30 * time.Second

// maxConfigs bounds the cache of TLS configurations. It holds one per wanted
// identity and ALPN list, so only a peer that talks to thousands of service
// accounts reaches it; then the cache starts anew.
const maxConfigs = 4096

// Store holds the SVID and the bundles. Both are replaced whole; a handshake
// reads what is newest when it needs it. Safe for concurrent use.
type Store struct {
	svid    atomic.Pointer[svid]
	bundles atomic.Pointer[bundles]

	mu      sync.RWMutex
	configs map[configKey]*tls.Config
}

// svid is our certificate with its key; never changed once stored, so that
// chain and key cannot tear.
type svid struct {
	id        spiffeid.ID
	cert      tls.Certificate
	notBefore time.Time // latest of the chain
	notAfter  time.Time // earliest of the chain
}

// bundles implements x509bundle.Source over an immutable map: go-spiffe's own
// Set and X509Source lock, and the latter races on rotation.
type bundles map[spiffeid.TrustDomain]*x509bundle.Bundle

func (b bundles) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	if found, ok := b[td]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("no trust bundle for trust domain %q", td.Name())
}

// NewStore gives a store that has neither SVID nor bundle: every handshake
// fails until it has what it needs.
func NewStore() *Store {
	s := &Store{configs: map[configKey]*tls.Config{}}
	s.bundles.Store(&bundles{})
	return s
}

// SetSVID replaces certificate chain (leaf first, then intermediates) and key
// together, for the handshakes that start from now on. It refuses, and keeps
// what it had, when the key is not the leaf's, the leaf does not name exactly
// one SPIFFE ID, the chain does not hold together or is not valid now.
func (s *Store) SetSVID(chain []*x509.Certificate, key crypto.Signer) error {
	v, err := newSVID(chain, key, time.Now())
	if err != nil {
		return fmt.Errorf("set SVID: %w", err)
	}
	s.svid.Store(v)
	return nil
}

func newSVID(chain []*x509.Certificate, key crypto.Signer, now time.Time) (*svid, error) {
	if len(chain) == 0 || chain[0] == nil {
		return nil, errors.New("no certificate")
	}
	leaf := chain[0]
	id, err := leafID(leaf)
	if err != nil {
		return nil, err
	}
	if key == nil {
		return nil, errors.New("no private key")
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(leaf.PublicKey) {
		return nil, fmt.Errorf("the private key is not that of the certificate of %s", id)
	}
	v := &svid{id: id, notBefore: leaf.NotBefore, notAfter: leaf.NotAfter}
	v.cert = tls.Certificate{PrivateKey: key, Leaf: leaf}
	for i, c := range chain {
		if i > 0 {
			if err := chain[i-1].CheckSignatureFrom(c); err != nil {
				return nil, fmt.Errorf("certificate %d of the chain is not signed by the next: %w", i-1, err)
			}
		}
		v.cert.Certificate = append(v.cert.Certificate, c.Raw)
		if c.NotBefore.After(v.notBefore) {
			v.notBefore = c.NotBefore
		}
		if c.NotAfter.Before(v.notAfter) {
			v.notAfter = c.NotAfter
		}
	}
	if err := v.validAt(now); err != nil {
		return nil, err
	}
	return v, nil
}

func (v *svid) validAt(now time.Time) error {
	if now.After(v.notAfter) || now.Add(ClockSkew).Before(v.notBefore) {
		return fmt.Errorf("our certificate of %s is valid from %s to %s and our clock says %s",
			v.id, stamp(v.notBefore), stamp(v.notAfter), stamp(now))
	}
	return nil
}

// leafID reads the one SPIFFE ID of a workload's certificate.
func leafID(leaf *x509.Certificate) (spiffeid.ID, error) {
	id, err := x509svid.IDFromCert(leaf)
	switch {
	case err != nil:
		return spiffeid.ID{}, err
	case id.Path() == "":
		return spiffeid.ID{}, fmt.Errorf("%s names a trust domain, not a workload", id)
	case leaf.IsCA:
		return spiffeid.ID{}, fmt.Errorf("the certificate of %s is a CA's", id)
	}
	return id, nil
}

// SetBundles replaces the roots of all trust domains. Several roots of one
// domain are good at once, so that a root is rotated without a restart.
func (s *Store) SetBundles(roots map[spiffeid.TrustDomain][]*x509.Certificate) error {
	next := make(bundles, len(roots))
	for td, certs := range roots {
		if td.IsZero() || len(certs) == 0 {
			return fmt.Errorf("set trust bundles: trust domain %q has %d roots, want a name and at least one", td.Name(), len(certs))
		}
		for i, c := range certs {
			if c == nil || !c.IsCA {
				return fmt.Errorf("set trust bundles: root %d of %q is no CA certificate", i, td.Name())
			}
		}
		next[td] = x509bundle.FromX509Authorities(td, slices.Clone(certs))
	}
	if len(next) == 0 {
		return errors.New("set trust bundles: none given; that would refuse every peer")
	}
	s.bundles.Store(&next)
	return nil
}

// ID is our own SPIFFE ID; false while there is none.
func (s *Store) ID() (spiffeid.ID, bool) {
	v := s.svid.Load()
	if v == nil {
		return spiffeid.ID{}, false
	}
	return v.id, true
}

// Leaf is our own certificate, expired or not; nil while there is none.
func (s *Store) Leaf() *x509.Certificate {
	v := s.svid.Load()
	if v == nil {
		return nil
	}
	return v.cert.Leaf
}

// own gives what to show in a handshake. An expired SVID is not shown: peers
// would refuse it with a reason that points at them.
func (s *Store) own() (*tls.Certificate, error) {
	v := s.svid.Load()
	if v == nil {
		return nil, &Error{Reason: reasonNone, msg: "we have no certificate yet"}
	}
	if err := v.validAt(time.Now()); err != nil {
		return nil, &Error{Reason: reasonNone, msg: err.Error()}
	}
	return &v.cert, nil
}
