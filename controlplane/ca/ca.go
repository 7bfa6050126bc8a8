// Package ca is Heddle's own certificate authority: a root and an intermediate
// in a Storage that replicas can share, and X.509-SVIDs signed by the latter.
//
// It does not know who asks: controlplane/serve proves the caller and passes
// the names; nothing named in a request is believed. It never makes a new root
// where one may have been: a damaged storage is an error, for a silent new root
// would cut off the whole mesh.
package ca

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"log/slog"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
)

var errSkeleton = errors.New("not built yet")

// Config of a CA.
type Config struct {
	TrustDomain spiffeid.TrustDomain
	Storage     Storage       // Folder(path)
	TTL         time.Duration // of SVIDs; zero: 24 h
	Log         *slog.Logger
}

// Storage keeps a few small named files, with versions so that two writers
// cannot overwrite each other.
type Storage interface {
	// Read gives content and version; fs.ErrNotExist: no such file.
	Read(ctx context.Context, name string) (data []byte, version string, err error)
	// Write replaces a file whose version still is the one given (empty: it
	// must not exist yet), else ErrConflict. All of it or nothing.
	Write(ctx context.Context, name string, data []byte, version string) error
}

// ErrConflict tells that another writer was first: read again.
var ErrConflict = errors.New("written by another meanwhile")

// ErrRequest marks a certificate request that is malformed or not allowed.
var ErrRequest = errors.New("bad certificate request")

// Folder is a Storage in a directory of this machine.
func Folder(dir string) Storage { return nil }

// Subject is the proven caller.
type Subject struct {
	ID     spiffeid.ID
	PodUID string // goes into the subject's serialNumber; empty: none
	Pod    string // <pod>.<namespace>; goes into the common name, cut to 64 bytes
}

// CA signs.
type CA struct{}

// Open reads the authority, or makes it where the storage is empty.
func Open(ctx context.Context, cfg Config) (*CA, error) { return nil, errSkeleton }

// Run takes in what other replicas write and renews the intermediate at half
// its life, until ctx ends.
func (c *CA) Run(ctx context.Context) error { return errSkeleton }

// Sign makes an SVID for the public key of a PKCS #10 request: DER, leaf first.
func (c *CA) Sign(csrDER []byte, s Subject) (chain [][]byte, notAfter time.Time, err error) {
	return nil, time.Time{}, errSkeleton
}

// Issue makes a key and an SVID for it, for the control plane's own use.
func (c *CA) Issue(s Subject) ([]*x509.Certificate, crypto.Signer, error) {
	return nil, nil, errSkeleton
}

// Bundle is the trust bundle in its wire form; shared, do not change it.
func (c *CA) Bundle() *wire.TrustBundle { return nil }

// Roots are the bundle's certificates.
func (c *CA) Roots() []*x509.Certificate { return nil }

// RootsPEM is the bundle as the injector wants it.
func (c *CA) RootsPEM() []byte { return nil }

// AddRoot puts one more root into the bundle, for a rotation.
func (c *CA) AddRoot(ctx context.Context, root *x509.Certificate) error { return errSkeleton }

// Changed is closed at the next change of the bundle.
func (c *CA) Changed() <-chan struct{} { return nil }
