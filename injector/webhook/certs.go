package webhook

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// The files of a certificate folder. The first two are as in a Secret of type
// kubernetes.io/tls; ca.pem is for whoever configures the webhook (caBundle);
// ca.key is there only if we made everything ourselves.
const (
	certFile  = "tls.crt"
	keyFile   = "tls.key"
	rootsFile = "ca.pem"
	caKeyFile = "ca.key"
)

const (
	// certCheck is how often the folder is looked at: a certificate is
	// exchanged days before it ends, so seconds do not matter.
	certCheck = 10 * time.Second
	// certRetry is how often while there is no certificate: pods wait.
	certRetry = time.Second
)

// CertConfig says where the serving certificate is.
type CertConfig struct {
	Dir   string
	Names []string     // DNS names and addresses of a certificate we make
	Log   *slog.Logger // nil: discard
}

// Certs keeps the serving certificate: given in a folder and read again when it
// changes, or, where the folder has none, made there and renewed.
type Certs struct {
	cfg     CertConfig
	current atomic.Pointer[tls.Certificate]
	seen    string        // what the current one was read from; Run's alone
	first   chan struct{} // closed once there is one
}

// NewCerts gives a keeper without a certificate yet.
func NewCerts(cfg CertConfig) *Certs {
	cfg.Log = telemetry.Discard(cfg.Log)
	return &Certs{cfg: cfg, first: make(chan struct{})}
}

// Run reads, makes and renews until ctx ends. Errors are logged and tried
// again; the last good certificate stays in use.
func (c *Certs) Run(ctx context.Context) error {
	last := ""
	for {
		err := c.step()
		switch text := fmt.Sprint(err); {
		case err == nil:
			last = ""
		case text != last: // the same complaint every few seconds helps nobody
			c.cfg.Log.Error("serving certificate", "dir", c.cfg.Dir, "err", err)
			last = text
		}
		wait := certCheck
		if c.current.Load() == nil {
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

// step brings the folder and the certificate in use up to date.
func (c *Certs) step() error {
	own, err := c.selfMade()
	if err != nil {
		return err
	}
	if own {
		if err := (&selfMade{dir: c.cfg.Dir, names: c.cfg.Names, log: c.cfg.Log}).maintain(time.Now()); err != nil {
			return err
		}
	}
	certPEM, err := os.ReadFile(filepath.Join(c.cfg.Dir, certFile))
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	keyPEM, err := os.ReadFile(filepath.Join(c.cfg.Dir, keyFile))
	if err != nil {
		return fmt.Errorf("read key: %w", err)
	}
	sum := sha256.Sum256(append(append([]byte(nil), certPEM...), keyPEM...))
	if seen := hex.EncodeToString(sum[:]); seen != c.seen {
		cert, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			return fmt.Errorf("pair certificate and key: %w", err) // a swap is half done, or wrong
		}
		c.use(&cert)
		c.seen = seen
	}
	if leaf := c.Leaf(); time.Now().After(leaf.NotAfter) {
		return fmt.Errorf("certificate ended at %s: put a new one into the folder", leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

func (c *Certs) use(cert *tls.Certificate) {
	if c.current.Swap(cert) == nil {
		close(c.first)
	}
	c.cfg.Log.Info("serving certificate in use", "names", cert.Leaf.DNSNames, "serial", cert.Leaf.SerialNumber.Text(16), "until", cert.Leaf.NotAfter)
}

// selfMade says whether the folder's certificates are ours to make: it has our
// CA key, or nothing at all.
func (c *Certs) selfMade() (bool, error) {
	there := map[string]bool{}
	for _, name := range []string{caKeyFile, certFile, keyFile} {
		_, err := os.Stat(filepath.Join(c.cfg.Dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("look into certificate folder: %w", err)
		}
		there[name] = err == nil
	}
	return there[caKeyFile] || !there[certFile] && !there[keyFile], nil
}
