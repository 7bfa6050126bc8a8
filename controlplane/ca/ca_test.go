package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/heddle-mesh/heddle/internal/identity"
)

var (
	td  = spiffeid.RequireTrustDomainFromString("demo.test")
	web = Subject{ID: spiffeid.RequireFromString("spiffe://demo.test/ns/shop/sa/web"), PodUID: "0b5e7d2c-5b1e-4b0e-9b1a-6f8f3f0c9d11", Pod: "web-1.shop"}
)

func open(t testing.TB, s Storage) *CA {
	t.Helper()
	c, err := Open(t.Context(), Config{TrustDomain: td, Storage: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func request(t testing.TB, key crypto.Signer, template *x509.CertificateRequest) []byte {
	t.Helper()
	if template == nil {
		template = &x509.CertificateRequest{}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func ecKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signOne(t testing.TB, c *CA, s Subject) []*x509.Certificate {
	t.Helper()
	chain, notAfter, err := c.Sign(request(t, ecKey(t, elliptic.P256()), nil), s)
	if err != nil {
		t.Fatal(err)
	}
	var out []*x509.Certificate
	for _, der := range chain {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, cert)
	}
	if !notAfter.Equal(out[0].NotAfter) {
		t.Errorf("notAfter %s, certificate says %s", notAfter, out[0].NotAfter)
	}
	return out
}

// verify checks a chain as a peer does that has only the bundle.
func verify(t testing.TB, chain []*x509.Certificate, roots []*x509.Certificate) error {
	t.Helper()
	_, _, err := x509svid.Verify(chain, x509bundle.FromX509Authorities(td, roots), x509svid.WithTime(time.Now()))
	return err
}

func TestSVID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Folder(t.TempDir()))
		key := ecKey(t, elliptic.P256())
		// Every name in the request is a lie.
		lie, _ := url.Parse("spiffe://demo.test/ns/heddle-system/sa/heddle-controlplane")
		der := request(t, key, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "root", SerialNumber: "other-uid"}, URIs: []*url.URL{lie},
			DNSNames: []string{"kubernetes.default"}, IPAddresses: []net.IP{{1, 2, 3, 4}}, EmailAddresses: []string{"a@b.test"},
			ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}}, // CA: true
		})
		chain, _, err := c.Sign(der, web)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(chain[0])
		if err != nil {
			t.Fatal(err)
		}
		if len(leaf.URIs) != 1 || leaf.URIs[0].String() != web.ID.String() {
			t.Errorf("URIs %v", leaf.URIs)
		}
		if len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) != 0 {
			t.Error("names of the request were taken over")
		}
		if leaf.Subject.CommonName != web.Pod || leaf.Subject.SerialNumber != web.PodUID {
			t.Errorf("subject %s", leaf.Subject)
		}
		if leaf.IsCA || !leaf.BasicConstraintsValid || leaf.KeyUsage != x509.KeyUsageDigitalSignature || len(leaf.ExtKeyUsage) != 2 {
			t.Errorf("CA %v, usage %v %v", leaf.IsCA, leaf.KeyUsage, leaf.ExtKeyUsage)
		}
		if !key.PublicKey.Equal(leaf.PublicKey) {
			t.Error("another key")
		}
		// synctest's clock stands still, and certificates count in seconds.
		if got := time.Since(leaf.NotBefore); got != backdate {
			t.Errorf("back-dated by %s", got)
		}
		if got := time.Until(leaf.NotAfter); got != DefaultTTL {
			t.Errorf("lives for %s", got)
		}
		if leaf.SerialNumber.BitLen() < 64 {
			t.Error("a serial of chance so small is a bug")
		}
		second := signOne(t, c, web)
		if second[0].SerialNumber.Cmp(leaf.SerialNumber) == 0 {
			t.Error("serial used twice")
		}
		if err := verify(t, second, c.Roots()); err != nil {
			t.Error(err)
		}
	})
}

func TestSignRefuses(t *testing.T) {
	c := open(t, Folder(t.TempDir()))
	good := request(t, ecKey(t, elliptic.P256()), nil)
	broken := append([]byte(nil), good...)
	broken[len(broken)-3] ^= 1
	otherKey := append([]byte(nil), good...) // a public key whose private one the caller lacks
	other, err := x509.ParseCertificateRequest(request(t, ecKey(t, elliptic.P256()), nil))
	if err != nil {
		t.Fatal(err)
	}
	mine, _ := x509.ParseCertificateRequest(good)
	at := strings.Index(string(otherKey), string(mine.RawSubjectPublicKeyInfo))
	copy(otherKey[at:], other.RawSubjectPublicKeyInfo)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	requests := []struct {
		name string
		csr  []byte
		says string
	}{
		{"nothing", nil, ""},
		{"text", []byte("-----BEGIN CERTIFICATE REQUEST-----"), ""},
		{"cut short", good[:len(good)-1], ""},
		{"something behind", append(append([]byte(nil), good...), 0), ""},
		{"signature broken", broken, "signature"},
		{"another's key", otherKey, "signature"},
		{"RSA", request(t, rsaKey, nil), "RSA"},
		{"Ed25519", request(t, edKey, nil), "Ed25519"},
		{"P-384", request(t, ecKey(t, elliptic.P384()), nil), "P-384"},
		{"P-224", request(t, ecKey(t, elliptic.P224()), nil), "P-224"},
		{"weak hash", request(t, ecKey(t, elliptic.P256()), &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA1}), "SHA1"},
		{"huge", make([]byte, maxRequest+1), "bytes"},
	}
	for _, tt := range requests {
		if _, _, err := c.Sign(tt.csr, web); !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for name, s := range map[string]Subject{
		"no identity":     {},
		"trust domain":    {ID: td.ID()},
		"foreign domain":  {ID: spiffeid.RequireFromString("spiffe://elsewhere.test/ns/a/sa/b")},
		"overlong PodUID": {ID: web.ID, PodUID: strings.Repeat("u", maxName+1)},
	} {
		if _, _, err := c.Sign(good, s); err == nil || errors.Is(err, ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNamesAtTheirLimits(t *testing.T) {
	c := open(t, Folder(t.TempDir()))
	ns, sa := strings.Repeat("n", 63), strings.Repeat("s", 253)
	for _, pod := range []string{"", "p.n", strings.Repeat("p", 253) + "." + ns, strings.Repeat("ü", 40)} {
		s := Subject{ID: spiffeid.RequireFromString("spiffe://demo.test/ns/" + ns + "/sa/" + sa), PodUID: strings.Repeat("u", maxName), Pod: pod}
		leaf := signOne(t, c, s)[0]
		cn := leaf.Subject.CommonName
		if len(cn) > maxName || !strings.HasPrefix(pod, cn) || strings.ContainsRune(cn, '\uFFFD') || leaf.URIs[0].String() != s.ID.String() {
			t.Errorf("%q became %q", pod, cn)
		}
	}
	long := spiffeid.RequireTrustDomainFromString(strings.Repeat("d", 250) + ".test")
	if _, err := Open(t.Context(), Config{TrustDomain: long, Storage: Folder(t.TempDir())}); err != nil {
		t.Error(err)
	}
}

// TestIssueWorks: the control plane's own SVID goes into identity.Store and
// makes a handshake with a peer's.
func TestIssueWorks(t *testing.T) {
	c := open(t, Folder(t.TempDir()))
	for _, id := range []string{"spiffe://demo.test/ns/heddle-system/sa/heddle-controlplane", web.ID.String()} {
		chain, key, err := c.Issue(Subject{ID: spiffeid.RequireFromString(id)})
		if err != nil {
			t.Fatal(err)
		}
		s := identity.NewStore()
		if err := s.SetSVID(chain, key); err != nil {
			t.Error(err)
		}
		if err := s.SetBundles(map[spiffeid.TrustDomain][]*x509.Certificate{td: c.Roots()}); err != nil {
			t.Error(err)
		}
		if err := verify(t, chain, c.Roots()); err != nil {
			t.Error(err)
		}
	}
}

func TestReopenKeepsAll(t *testing.T) {
	dir := Folder(t.TempDir())
	one := open(t, dir)
	two := open(t, dir)
	if string(one.RootsPEM()) != string(two.RootsPEM()) || one.Bundle().GetSequence() != two.Bundle().GetSequence() {
		t.Error("another root after a restart")
	}
	if err := verify(t, signOne(t, one, web), two.Roots()); err != nil {
		t.Error(err)
	}
	if b := one.Bundle(); b.GetTrustDomain() != "demo.test" || len(b.GetRoots()) != 1 || string(b.GetRoots()[0]) != string(one.Roots()[0].Raw) {
		t.Errorf("%v", b)
	}
}

// TestYears runs an authority through five years: the intermediate is renewed
// at half its life, SVIDs are always good for a day, and the root stays.
func TestYears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := Folder(t.TempDir())
		c, replica := open(t, dir), open(t, dir)
		roots := c.Roots()
		// Upkeep by hand: Run's ticker would take five million steps.
		issuers := map[string]bool{}
		for range 5 * 52 {
			time.Sleep(7 * 24 * time.Hour)
			for _, r := range []*CA{replica, c} {
				if err := r.upkeep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			chain := signOne(t, c, web)
			if err := verify(t, chain, roots); err != nil {
				t.Fatal(err)
			}
			if err := verify(t, signOne(t, replica, web), roots); err != nil {
				t.Fatal(err)
			}
			if life := time.Until(chain[0].NotAfter); life != DefaultTTL {
				t.Fatalf("an SVID of %s", life)
			}
			issuers[chain[1].SerialNumber.String()] = true
		}
		if len(issuers) != 10 {
			t.Errorf("%d intermediates in five years, want 10", len(issuers))
		}
	})
}

// TestClamped: near the end of everything an SVID never outlives its issuer.
func TestClamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Folder(t.TempDir()))
		time.Sleep(rootLife - time.Hour)
		if err := c.upkeep(t.Context()); err != nil {
			t.Fatal(err)
		}
		chain := signOne(t, c, web)
		if !chain[0].NotAfter.Equal(chain[1].NotAfter) || chain[1].NotAfter.After(c.Roots()[0].NotAfter) {
			t.Errorf("leaf until %s, issuer %s, root %s", chain[0].NotAfter, chain[1].NotAfter, c.Roots()[0].NotAfter)
		}
		if chain[0].NotBefore.Before(chain[1].NotBefore) {
			t.Error("valid before its issuer")
		}
		time.Sleep(2 * time.Hour)
		if _, _, err := c.Sign(request(t, ecKey(t, elliptic.P256()), nil), web); err == nil || !strings.Contains(err.Error(), "our clock says") {
			t.Errorf("signed after the end: %v", err)
		}
	})
}

func TestRunTakesAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := Folder(t.TempDir())
		one, two := open(t, dir), open(t, dir)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- two.Run(ctx) }()
		changed := two.Changed()

		// A root from elsewhere, to be trusted before it signs.
		next := open(t, Folder(t.TempDir())).Roots()[0]
		if err := one.AddRoot(ctx, next); err != nil {
			t.Fatal(err)
		}
		if err := one.AddRoot(ctx, next); err != nil || len(one.Roots()) != 2 {
			t.Fatalf("added twice: %v, %d roots", err, len(one.Roots()))
		}
		select {
		case <-changed:
		case <-time.After(2 * reloadEvery):
			t.Fatal("the other replica does not see the new root")
		}
		if len(two.Bundle().GetRoots()) != 2 || two.Bundle().GetSequence() != 2 || string(two.RootsPEM()) != string(one.RootsPEM()) {
			t.Errorf("replica's bundle: %d roots, sequence %d", len(two.Bundle().GetRoots()), two.Bundle().GetSequence())
		}
		data, _, err := dir.Read(ctx, rootsFile)
		if err != nil || strings.Count(string(data), "BEGIN CERTIFICATE") != 2 {
			t.Errorf("%s: %v\n%s", rootsFile, err, data)
		}
		// The old root still signs, so peers with either bundle agree.
		if err := verify(t, signOne(t, two, web), one.Roots()[:1]); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAddRootRefuses(t *testing.T) {
	c := open(t, Folder(t.TempDir()))
	foreign, err := Open(t.Context(), Config{TrustDomain: spiffeid.RequireTrustDomainFromString("elsewhere.test"), Storage: Folder(t.TempDir())})
	if err != nil {
		t.Fatal(err)
	}
	for name, cert := range map[string]*x509.Certificate{
		"nil": nil, "leaf": signOne(t, c, web)[0], "intermediate": signOne(t, c, web)[1], "foreign domain": foreign.Roots()[0],
	} {
		if err := c.AddRoot(t.Context(), cert); err == nil {
			t.Errorf("%s: added", name)
		}
	}
	if len(c.Roots()) != 1 {
		t.Error("something was added")
	}
}

func TestConfigRefused(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no domain":    {Storage: Folder(t.TempDir())},
		"no storage":   {TrustDomain: td},
		"negative TTL": {TrustDomain: td, Storage: Folder(t.TempDir()), TTL: -1},
		"TTL of years": {TrustDomain: td, Storage: Folder(t.TempDir()), TTL: 2 * 365 * 24 * time.Hour},
	} {
		if _, err := Open(t.Context(), cfg); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func FuzzSign(f *testing.F) {
	c := open(f, Folder(f.TempDir()))
	f.Add(request(f, ecKey(f, elliptic.P256()), nil))
	f.Add(request(f, ecKey(f, elliptic.P256()), &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{"a.test"}}))
	f.Add(request(f, ecKey(f, elliptic.P384()), nil))
	f.Add([]byte{0x30, 0x03})
	f.Fuzz(func(t *testing.T, csr []byte) {
		chain, _, err := c.Sign(csr, web)
		if err != nil {
			if !errors.Is(err, ErrRequest) || chain != nil {
				t.Fatalf("%v", err)
			}
			return
		}
		leaf, err := x509.ParseCertificate(chain[0])
		if err != nil {
			t.Fatal(err)
		}
		if len(leaf.URIs) != 1 || leaf.URIs[0].String() != web.ID.String() || leaf.IsCA || len(leaf.DNSNames) != 0 || leaf.Subject.CommonName != web.Pod {
			t.Fatalf("the request had a say: %v %v", leaf.URIs, leaf.Subject)
		}
	})
}
