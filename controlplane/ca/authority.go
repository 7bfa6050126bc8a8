package ca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
)

const (
	// authorityFile holds keys and certificates in one file, so that one write
	// changes all of them or none.
	authorityFile = "authority.json"
	// rootsFile is derived from it and public.
	rootsFile = "roots.pem"

	formatVersion = 1
	// maxName is the upper bound of common name and serial number in a
	// certificate's subject (X.520, RFC 5280 appendix A: ub-common-name).
	maxName = 64
)

// authority is one version of what the storage holds; never changed.
type authority struct {
	td       spiffeid.TrustDomain
	version  string // the storage's
	sequence uint64 // counts changes of the roots
	roots    []*x509.Certificate

	root      *x509.Certificate // the one that signs issuers; one of roots
	rootKey   *ecdsa.PrivateKey
	issuer    *x509.Certificate
	issuerKey *ecdsa.PrivateKey

	bundle   *wire.TrustBundle
	rootsPEM []byte
}

// stored is authorityFile's form.
type stored struct {
	Format      int    `json:"format"`
	TrustDomain string `json:"trustDomain"`
	Sequence    uint64 `json:"sequence"`
	Roots       string `json:"roots"`     // PEM, the signing one first
	RootKey     string `json:"rootKey"`   // PEM, PKCS #8
	Issuer      string `json:"issuer"`    // PEM
	IssuerKey   string `json:"issuerKey"` // PEM, PKCS #8
}

func newAuthority(td spiffeid.TrustDomain, now time.Time) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := caTemplate(td, "Heddle root "+td.Name(), now, now.Add(rootLife))
	template.MaxPathLen = 1
	root, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make root: %w", err)
	}
	a := &authority{td: td, sequence: 1, roots: []*x509.Certificate{root}, root: root, rootKey: key}
	return a.withNewIssuer(now)
}

func (a *authority) withNewIssuer(now time.Time) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	until := now.Add(issuerLife)
	if until.After(a.root.NotAfter) {
		until = a.root.NotAfter
	}
	template := caTemplate(a.td, "Heddle issuer "+a.td.Name(), now, until)
	template.MaxPathLenZero = true
	if template.NotBefore.Before(a.root.NotBefore) {
		template.NotBefore = a.root.NotBefore
	}
	issuer, err := sign(template, a.root, key.Public(), a.rootKey)
	if err != nil {
		return nil, fmt.Errorf("make intermediate: %w", err)
	}
	next := *a
	next.issuer, next.issuerKey = issuer, key
	next.derive()
	return &next, nil
}

func (a *authority) withRoot(root *x509.Certificate) *authority {
	next := *a
	next.roots = append(slices.Clone(a.roots), root)
	next.sequence++
	next.derive()
	return &next
}

func (a *authority) has(root *x509.Certificate) bool {
	return slices.ContainsFunc(a.roots, root.Equal)
}

func (a *authority) sharesRoot(b *authority) bool {
	return slices.ContainsFunc(a.roots, b.has)
}

// derive fills what follows from the roots.
func (a *authority) derive() {
	a.bundle = &wire.TrustBundle{TrustDomain: a.td.Name(), Sequence: a.sequence}
	for _, r := range a.roots {
		a.bundle.Roots = append(a.bundle.Roots, r.Raw)
	}
	a.rootsPEM = []byte(certsPEM(a.roots))
}

func (a *authority) encode() ([]byte, error) {
	rootKey, err := keyPEM(a.rootKey)
	if err != nil {
		return nil, err
	}
	issuerKey, err := keyPEM(a.issuerKey)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(stored{
		Format: formatVersion, TrustDomain: a.td.Name(), Sequence: a.sequence,
		Roots: certsPEM(a.roots), RootKey: rootKey,
		Issuer: certsPEM([]*x509.Certificate{a.issuer}), IssuerKey: issuerKey,
	}, "", "  ")
}

// parseAuthority takes only what is whole: keys fit their certificates, the
// intermediate is signed by the root, all are of the trust domain.
func parseAuthority(data []byte, version string, td spiffeid.TrustDomain) (*authority, error) {
	var s stored
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("it is damaged or half-written: %w", err)
	}
	if d.More() {
		return nil, errors.New("it is damaged: something follows its end")
	}
	if s.Format != formatVersion {
		return nil, fmt.Errorf("its format is %d, this version reads %d", s.Format, formatVersion)
	}
	if s.TrustDomain != td.Name() {
		return nil, fmt.Errorf("it is of trust domain %q, configured is %q", s.TrustDomain, td.Name())
	}
	a := &authority{td: td, version: version, sequence: s.Sequence}
	var err error
	if a.roots, err = parseCerts(s.Roots); err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	for i, r := range a.roots {
		if err := checkRoot(r, td); err != nil {
			return nil, fmt.Errorf("root %d: %w", i, err)
		}
	}
	a.root = a.roots[0]
	if a.rootKey, err = parseKey(s.RootKey, a.root); err != nil {
		return nil, fmt.Errorf("rootKey: %w", err)
	}
	issuers, err := parseCerts(s.Issuer)
	if err != nil {
		return nil, fmt.Errorf("issuer: %w", err)
	}
	a.issuer = issuers[0]
	if err := a.issuer.CheckSignatureFrom(a.root); err != nil {
		return nil, fmt.Errorf("issuer: not signed by the first root: %w", err)
	}
	if a.issuerKey, err = parseKey(s.IssuerKey, a.issuer); err != nil {
		return nil, fmt.Errorf("issuerKey: %w", err)
	}
	a.derive()
	return a, nil
}

// checkRoot: a root in the bundle vouches for the whole trust domain.
func checkRoot(c *x509.Certificate, td spiffeid.TrustDomain) error {
	switch {
	case c == nil:
		return errors.New("no certificate")
	case !c.IsCA || !c.BasicConstraintsValid || c.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%q is no CA certificate", c.Subject.CommonName)
	}
	for _, u := range c.URIs {
		if id, err := spiffeid.FromURI(u); err != nil || id != td.ID() {
			return fmt.Errorf("%q is of %s, not of trust domain %q", c.Subject.CommonName, u, td.Name())
		}
	}
	if err := c.CheckSignatureFrom(c); err != nil {
		return fmt.Errorf("%q is not signed by itself: %w", c.Subject.CommonName, err)
	}
	return nil
}

func caTemplate(td spiffeid.TrustDomain, name string, now, until time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: cut(name)},
		URIs:                  []*url.URL{td.ID().URL()}, // SPIFFE X.509-SVID §3
		NotBefore:             now.Add(-backdate),
		NotAfter:              until,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the signed certificate: %w", err)
	}
	return cert, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// serial is random, 128 bits, so that replicas need not agree on a counter.
func serial() *big.Int {
	raw := make([]byte, 16)
	rand.Read(raw) // crypto/rand.Read never fails
	return new(big.Int).SetBytes(raw)
}

// cut shortens a name to what a subject may hold, not within a character.
func cut(name string) string {
	if len(name) <= maxName {
		return name
	}
	n := maxName
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n]
}

func certsPEM(certs []*x509.Certificate) string {
	var b bytes.Buffer
	for _, c := range certs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return b.String()
}

func parseCerts(text string) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	rest := []byte(text)
	for len(bytes.TrimSpace(rest)) > 0 {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("not PEM certificates")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("no certificate")
	}
	return out, nil
}

func keyPEM(key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", fmt.Errorf("write key: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}

// parseKey's errors never quote the key.
func parseKey(text string, cert *x509.Certificate) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("not a PEM key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("not a PKCS #8 key")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T, want ECDSA", parsed)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("not the key of its certificate")
	}
	return key, nil
}
