package webhook

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

var names = []string{"heddle-injector.heddle-system.svc", "127.0.0.1", "::1"}

// running starts a keeper in the test's bubble; it ends with the test.
func running(t *testing.T, dir string) *Certs {
	t.Helper()
	c := NewCerts(CertConfig{Dir: dir, Names: names})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

func roots(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, rootsFile))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		t.Fatal("no certificate in ca.pem")
	}
	return pool
}

func verify(t *testing.T, leaf *x509.Certificate, pool *x509.CertPool) {
	t.Helper()
	for _, n := range names {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: n, CurrentTime: time.Now()}); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
}

// Two years of a server, looked at every six hours: whoever reads ca.pem once
// in four days can always verify it.
func TestSelfMadeRenews(t *testing.T) {
	const look, read = 6 * time.Hour, 4 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "certs")
		c := NewCerts(CertConfig{Dir: dir, Names: names})
		serials, cas := map[string]bool{}, map[string]bool{}
		var pool *x509.CertPool
		for since := time.Duration(0); since < 2*caLife; since += look {
			if err := c.step(t.Context()); err != nil {
				t.Fatal(err)
			}
			if since%read == 0 {
				if pool != nil {
					verify(t, c.Leaf(), pool)
				}
				pool = roots(t, dir)
			}
			verify(t, c.Leaf(), pool)
			if left := time.Until(c.Leaf().NotAfter); left < leafLife/3-look {
				t.Fatalf("%s left", left)
			}
			serials[c.Leaf().SerialNumber.String()] = true
			cas[c.Leaf().Issuer.CommonName] = true
			time.Sleep(look)
		}
		if len(serials) < 140 || len(cas) != 3 {
			t.Errorf("%d certificates of %d CAs", len(serials), len(cas))
		}
		for name, want := range map[string]fs.FileMode{caKeyFile: 0o600, keyFile: 0o600, certFile: 0o644, rootsFile: 0o644} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v %v", name, info.Mode(), err)
			}
		}
	})
}

// Killed between any two writes, the next start mends the folder; a CA that is
// whole stays.
func TestSelfMadeMends(t *testing.T) {
	for _, gone := range []string{caKeyFile, rootsFile, keyFile, certFile} {
		t.Run(gone, func(t *testing.T) {
			dir := t.TempDir()
			if err := NewCerts(CertConfig{Dir: dir, Names: names}).step(t.Context()); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(filepath.Join(dir, rootsFile))
			if err := os.WriteFile(filepath.Join(dir, gone), []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
			c := NewCerts(CertConfig{Dir: dir, Names: names})
			if err := c.step(t.Context()); err != nil {
				t.Fatal(err)
			}
			verify(t, c.Leaf(), roots(t, dir))
			after, _ := os.ReadFile(filepath.Join(dir, rootsFile))
			if whole := gone == keyFile || gone == certFile; bytes.Equal(before, after) != whole {
				t.Errorf("the CA was changed: %v", whole)
			}
		})
	}
}

func TestSelfMadeTakesNewNames(t *testing.T) {
	dir := t.TempDir()
	old := NewCerts(CertConfig{Dir: dir, Names: names[:1]})
	if err := old.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool := roots(t, dir)
	c := NewCerts(CertConfig{Dir: dir, Names: names})
	if err := c.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	verify(t, c.Leaf(), pool) // by the same CA
}

// A given certificate is read again when it changes, and a bad one changes
// nothing.
func TestGivenReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, dir := given(t), given(t), t.TempDir()
		swap := func(from, name string) {
			t.Helper()
			b, err := os.ReadFile(filepath.Join(from, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		swap(first, certFile) // the key is still to come
		c := running(t, dir)
		time.Sleep(3 * certRetry)
		if c.Leaf() != nil {
			t.Fatal("a certificate without a key")
		}
		if _, err := os.Stat(filepath.Join(dir, caKeyFile)); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal("made one of its own over a half-given one")
		}
		swap(first, keyFile)
		<-c.Ready()
		verify(t, c.Leaf(), roots(t, first))

		swap(second, certFile)
		time.Sleep(2 * certCheck)
		verify(t, c.Leaf(), roots(t, first)) // half a swap
		swap(second, keyFile)
		time.Sleep(2 * certCheck)
		verify(t, c.Leaf(), roots(t, second))
		if cert, err := c.TLS().GetCertificate(nil); err != nil || cert.Leaf != c.Leaf() {
			t.Error(err)
		}
	})
}

// given makes a folder with a certificate, as another CA would.
func given(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := NewCerts(CertConfig{Dir: dir, Names: names}).step(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestNoCertificateYet(t *testing.T) {
	c := NewCerts(CertConfig{Dir: t.TempDir()})
	if _, err := c.TLS().GetCertificate(nil); err == nil || c.Leaf() != nil {
		t.Error("a certificate before Run")
	}
}
