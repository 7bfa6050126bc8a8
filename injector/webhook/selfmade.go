package webhook

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"
)

// Lifetimes of what we make. A serving certificate is renewed when a third of
// its life is left, the CA likewise; a new CA stands beside the old one in
// ca.pem, and before it comes a fresh serving certificate is signed by the old
// one, so that whoever configures the webhook has days to read ca.pem again.
const (
	leafLife = 7 * 24 * time.Hour
	caLife   = 365 * 24 * time.Hour
	backDate = time.Minute // other machines' clocks
)

// selfMade is a small CA, for one server or its replicas.
type selfMade struct {
	data    map[string][]byte // as stored; changed in place
	changed []string          // what was changed, in the order to write
	names   []string
	log     *slog.Logger
}

// authority is the CA that signs, and all whose signature still counts.
type authority struct {
	cert  *x509.Certificate
	key   crypto.Signer
	roots []*x509.Certificate // cert first
}

// maintain makes what is missing and renews what nears its end. Writing what
// it changed may stop anywhere; the next time mends it.
func (s *selfMade) maintain(now time.Time) error {
	ca, err := s.readCA()
	if err == nil && now.After(ca.cert.NotAfter) {
		err = errors.New("the CA has ended")
	}
	if err != nil {
		s.log.Info("making a CA for the webhook", "why", err.Error())
		if ca, err = s.newCA(nil, now); err != nil {
			return err
		}
	}
	if due(ca.cert, now) {
		if err := s.issue(ca, now); err != nil {
			return err
		}
		next, err := s.newCA(ca.roots, now)
		if err == nil {
			s.log.Info("a new CA for the webhook stands beside the old one", "new until", next.cert.NotAfter, "old until", ca.cert.NotAfter)
		}
		return err
	}
	if why := s.stale(ca, now); why != "" {
		s.log.Info("making a serving certificate", "why", why)
		return s.issue(ca, now)
	}
	return nil
}

// stale says why the serving certificate must be made anew; "" if it need not.
func (s *selfMade) stale(ca *authority, now time.Time) string {
	pair, err := tls.X509KeyPair(s.data[certFile], s.data[keyFile])
	if err != nil {
		return err.Error()
	}
	pool := x509.NewCertPool()
	for _, r := range ca.roots {
		pool.AddCert(r)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now}); err != nil {
		return err.Error()
	}
	for _, n := range s.names {
		if err := pair.Leaf.VerifyHostname(n); err != nil {
			return err.Error()
		}
	}
	if due(pair.Leaf, now) {
		return "it nears its end"
	}
	return ""
}

// due says whether a third of a life or less is left.
func due(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) <= c.NotAfter.Sub(c.NotBefore)/3
}

func (s *selfMade) readCA() (*authority, error) {
	pair, err := tls.X509KeyPair(s.data[rootsFile], s.data[caKeyFile])
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("ca.pem and ca.key are no CA")
	}
	ca := &authority{cert: pair.Leaf, key: key}
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		ca.roots = append(ca.roots, c)
	}
	return ca, nil
}

// newCA makes a CA and puts it in front of the older ones that have not
// ended.
func (s *selfMade) newCA(older []*x509.Certificate, now time.Time) (*authority, error) {
	older = slices.DeleteFunc(slices.Clone(older), func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	tmpl := template("heddle-injector CA "+now.UTC().Format(time.RFC3339), now, now.Add(caLife)) // two CAs are told apart by name
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.MaxPathLenZero = true, true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign
	cert, err := sign(tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	ca := &authority{cert: cert, key: key, roots: append([]*x509.Certificate{cert}, older...)}
	var roots bytes.Buffer
	for _, c := range ca.roots {
		roots.Write(certPEM(c))
	}
	if err := s.writeKey(caKeyFile, key); err != nil {
		return nil, err
	}
	s.put(rootsFile, roots.Bytes())
	return ca, nil
}

// issue makes the serving certificate, clamped to the CA's end.
func (s *selfMade) issue(ca *authority, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make serving key: %w", err)
	}
	end := now.Add(leafLife)
	if ca.cert.NotAfter.Before(end) {
		end = ca.cert.NotAfter
	}
	tmpl := template("heddle-injector", now, end)
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, n := range s.names {
		if ip := net.ParseIP(n); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, n)
		}
	}
	cert, err := sign(tmpl, ca.cert, key.Public(), ca.key)
	if err != nil {
		return fmt.Errorf("make serving certificate: %w", err)
	}
	if err := s.writeKey(keyFile, key); err != nil {
		return err
	}
	s.put(certFile, certPEM(cert))
	return nil
}

func template(name string, now, end time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: now.Add(-backDate), NotAfter: end,
	}
}

// sign gives the certificate; x509 draws its serial number.
func sign(tmpl, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func (s *selfMade) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	s.put(name, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return nil
}

func (s *selfMade) put(name string, b []byte) {
	s.data[name] = b
	s.changed = append(s.changed, name)
}
