package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// What a certificate folder, or a Secret, holds. The first two are as in a
// Secret of type kubernetes.io/tls; ca.pem is for whoever configures the
// webhook (caBundle); ca.key is there only if we made everything ourselves. A
// given Secret may name its CA ca.crt, as cert-manager does.
const (
	certFile    = "tls.crt"
	keyFile     = "tls.key"
	rootsFile   = "ca.pem"
	caKeyFile   = "ca.key"
	givenCAFile = "ca.crt"
)

const (
	// certCheck is how often certificate and caBundle are looked at. A
	// certificate is exchanged days before it ends; a caBundle that somebody
	// overwrote stops pods of the mesh until we mend it.
	certCheck = 10 * time.Second
	// certRetry is how often while there is no certificate: pods wait.
	certRetry = time.Second
	// certCall bounds one look, with all its calls to the API server.
	certCall = 20 * time.Second
	// conflictTries bounds how often a Secret is read again because another
	// replica wrote first; the next look goes on from there.
	conflictTries = 5
)

// CertConfig says where the serving certificate is: in a folder, or in a
// Secret that all replicas share.
type CertConfig struct {
	Dir    string
	Secret *Secret
	Names  []string // DNS names and addresses of a certificate we make
	// Publish tells the API server which roots to trust (the caBundle). It is
	// called at every look, changes nothing that is right already, and so
	// mends what somebody else wrote. nil: somebody else's business.
	Publish func(ctx context.Context, roots []byte) error
	Log     *slog.Logger // nil: discard
}

// Certs keeps the serving certificate: given, and read again when it changes,
// or, where there is none, made there and renewed.
type Certs struct {
	cfg       CertConfig
	store     store
	current   atomic.Pointer[tls.Certificate]
	published atomic.Pointer[[]byte] // what Publish last took
	seen      string                 // what the current one was read from; Run's alone
	first     chan struct{}          // closed once there is one
}

// NewCerts gives a keeper without a certificate yet.
func NewCerts(cfg CertConfig) *Certs {
	cfg.Log = telemetry.Discard(cfg.Log)
	c := &Certs{cfg: cfg, store: folder{cfg.Dir}, first: make(chan struct{})}
	if cfg.Secret != nil {
		c.store = cfg.Secret
	}
	return c
}

// Run reads, makes, renews and publishes until ctx ends. Errors are logged and
// tried again; the last good certificate stays in use.
func (c *Certs) Run(ctx context.Context) error {
	last := ""
	for {
		err := c.step(ctx)
		switch text := fmt.Sprint(err); {
		case err == nil:
			last = ""
		case text != last && ctx.Err() == nil: // the same complaint every few seconds helps nobody
			c.cfg.Log.Error("serving certificate", "where", c.store.String(), "err", err)
			last = text
		}
		wait := certCheck
		if c.current.Load() == nil || err != nil {
			wait = certRetry
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// Ready is closed once there is a certificate.
func (c *Certs) Ready() <-chan struct{} { return c.first }

// Leaf is the certificate now served; nil: none.
func (c *Certs) Leaf() *x509.Certificate {
	if cert := c.current.Load(); cert != nil {
		return cert.Leaf
	}
	return nil
}

// TLS is the server's configuration. API servers speak TLS 1.2 at least.
func (c *Certs) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if cert := c.current.Load(); cert != nil {
				return cert, nil
			}
			return nil, errors.New("no serving certificate yet")
		},
	}
}

// Published are the roots that the API server was told to trust; nil while it
// has not been told, or is none of our business.
func (c *Certs) Published() []byte {
	if p := c.published.Load(); p != nil {
		return *p
	}
	return nil
}

// step brings the store, the API server and the certificate in use up to date,
// in this order: a certificate whose CA the API server does not trust yet is
// not used while the old one is good.
func (c *Certs) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, certCall)
	defer cancel()
	data, err := c.maintained(ctx)
	if err != nil {
		return err
	}
	publishErr := c.publish(ctx, data)
	sum := sha256.Sum256(bytes.Join([][]byte{data[certFile], data[keyFile]}, nil))
	if seen := hex.EncodeToString(sum[:]); seen != c.seen {
		cert, err := tls.X509KeyPair(data[certFile], data[keyFile])
		if err != nil {
			return fmt.Errorf("pair certificate and key: %w", err) // a swap is half done, or wrong
		}
		if leaf := c.Leaf(); leaf == nil || time.Now().After(leaf.NotAfter) || c.trusted(cert.Leaf) {
			c.use(&cert)
			c.seen = seen
		}
	}
	if publishErr != nil {
		return publishErr
	}
	if leaf := c.Leaf(); time.Now().After(leaf.NotAfter) {
		return fmt.Errorf("certificate ended at %s: put a new one there", leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// maintained reads the store; what is ours in it is made and renewed first.
func (c *Certs) maintained(ctx context.Context) (map[string][]byte, error) {
	for try := 1; ; try++ {
		data, err := c.store.load(ctx)
		if err != nil {
			return nil, err
		}
		if !ownMade(data) {
			if data[certFile] == nil || data[keyFile] == nil {
				return nil, fmt.Errorf("%s has only one of %s and %s: put both there, or none", c.store, certFile, keyFile)
			}
			return data, nil
		}
		s := &selfMade{data: data, names: c.cfg.Names, log: c.cfg.Log}
		if err := s.maintain(time.Now()); err != nil {
			return nil, err
		}
		if len(s.changed) == 0 {
			return data, nil
		}
		err = c.store.save(ctx, s.data, s.changed)
		if err == nil {
			return s.data, nil
		}
		if !errors.Is(err, errWrittenMeanwhile) || try == conflictTries {
			return nil, err
		}
	}
}

// ownMade says whether the certificates are ours to make: our CA key is there,
// or nothing at all.
func ownMade(data map[string][]byte) bool {
	return data[caKeyFile] != nil || data[certFile] == nil && data[keyFile] == nil
}

// publish tells the API server the roots, if we know any.
func (c *Certs) publish(ctx context.Context, data map[string][]byte) error {
	roots := data[rootsFile]
	if len(roots) == 0 {
		roots = data[givenCAFile]
	}
	if c.cfg.Publish == nil || len(roots) == 0 {
		return nil
	}
	if err := c.cfg.Publish(ctx, roots); err != nil {
		return fmt.Errorf("publish the CA of the serving certificate: %w", err)
	}
	if !bytes.Equal(c.Published(), roots) {
		c.published.Store(&roots)
		c.cfg.Log.Info("the API server knows our CA", "certificates", bytes.Count(roots, []byte("BEGIN CERTIFICATE")))
	}
	return nil
}

// trusted says whether the API server would take the certificate, as far as
// we know.
func (c *Certs) trusted(leaf *x509.Certificate) bool {
	roots := c.Published()
	if roots == nil {
		return true // not ours to know
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: time.Now()})
	return err == nil
}

func (c *Certs) use(cert *tls.Certificate) {
	if c.current.Swap(cert) == nil {
		close(c.first)
	}
	c.cfg.Log.Info("serving certificate in use", "names", cert.Leaf.DNSNames, "serial", cert.Leaf.SerialNumber.Text(16), "until", cert.Leaf.NotAfter)
}
