// Package identity holds this process's X.509-SVID and the trust bundles it
// verifies peers with, and makes the TLS configurations of the mesh from them.
//
// It authenticates: whose certificate is this, and is it good now. Whether that
// peer may do what it asks is the caller's question (internal/policy). It does
// not fetch anything: sidecar/control and controlplane/serve set what they were
// given. It is the door to go-spiffe, together with controlplane/ca.
package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

var errSkeleton = errors.New("not built yet")

// Store holds the SVID and the bundles. Both are replaced whole; a handshake
// reads what is newest when it starts. Safe for concurrent use.
type Store struct{}

// Peer is who stands at the other end of a verified connection.
type Peer struct {
	ID       spiffeid.ID
	PodUID   string // from the subject's serialNumber; empty: not a pod
	Pod      string // <pod>.<namespace> from the common name, for people
	Serial   string // the certificate's, lower-case hex
	NotAfter time.Time
}

// NewStore gives a store that has neither SVID nor bundle: every handshake
// fails until it has what it needs.
func NewStore() *Store { return &Store{} }

// SetSVID replaces certificate chain (leaf first) and key together.
func (s *Store) SetSVID(chain []*x509.Certificate, key crypto.Signer) error { return errSkeleton }

// SetBundles replaces the roots of all trust domains.
func (s *Store) SetBundles(bundles map[spiffeid.TrustDomain][]*x509.Certificate) error {
	return errSkeleton
}

// ID is our own SPIFFE ID; false while there is none.
func (s *Store) ID() (spiffeid.ID, bool) { return spiffeid.ID{}, false }

// Leaf is our own certificate; nil while there is none.
func (s *Store) Leaf() *x509.Certificate { return nil }

// ClientConfig dials want and nobody else, showing our SVID. The returned
// config is shared: do not change it.
func (s *Store) ClientConfig(want spiffeid.ID, alpn ...string) *tls.Config { return &tls.Config{} }

// AnonymousClientConfig is ClientConfig without an SVID of our own, for the
// one call made before there is one (wire.Identity/Issue).
func (s *Store) AnonymousClientConfig(want spiffeid.ID, alpn ...string) *tls.Config {
	return &tls.Config{}
}

// ServerConfig takes only clients with an SVID of a known trust domain.
func (s *Store) ServerConfig(alpn ...string) *tls.Config { return &tls.Config{} }

// OptionalServerConfig takes clients without a certificate as well (PeerOf
// then fails); one that is shown is verified as ServerConfig does.
func (s *Store) OptionalServerConfig(alpn ...string) *tls.Config { return &tls.Config{} }

// PeerOf tells whose connection this is, after its handshake.
func PeerOf(cs tls.ConnectionState) (Peer, error) { return Peer{}, errSkeleton }

// ReasonOf gives the reason for a failed handshake; empty: not about identity.
func ReasonOf(err error) telemetry.Reason { return "" }
