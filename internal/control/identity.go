package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// keepIdentity gets an SVID and renews it when the control plane said, until
// ctx ends. What fails is tried again; the present SVID serves until it ends.
func (c *Client[T]) keepIdentity(ctx context.Context) error {
	for failures := 0; ; {
		wait, err := c.obtain(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			failures = 0
		} else {
			first, last := firstFirst, firstLast
			if c.valid() {
				first, last = renewFirst, renewLast
			}
			wait = backoff(failures, first, last)
			failures++
			c.log.Warn("got no identity", "again_in", wait.Round(time.Millisecond).String(), "valid_now", c.valid(), "error", err)
			c.failed(err)
		}
		if err := pause(ctx, wait, c.kick); err != nil {
			return err
		}
	}
}

// failed shows an identity error in State while there is no stream to tell of.
func (c *Client[T]) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.Connected {
		c.state.LastError = err.Error()
	}
}

func (c *Client[T]) renewNow() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// valid says whether our SVID can be shown now.
func (c *Client[T]) valid() bool {
	leaf := c.cfg.Identity.Leaf()
	return leaf != nil && time.Now().Before(leaf.NotAfter)
}

// obtain gets one SVID and says when to get the next: by the present one if it
// is good, else, or if that is refused, by the token.
func (c *Client[T]) obtain(ctx context.Context) (next time.Duration, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return 0, fmt.Errorf("make a key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return 0, fmt.Errorf("make a certificate request: %w", err)
	}
	res, err := c.issue(ctx, csr)
	if err != nil {
		return 0, err
	}
	var chain []*x509.Certificate
	for _, der := range res.GetChain() {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return 0, fmt.Errorf("parse the issued certificate: %w", err)
		}
		chain = append(chain, cert)
	}
	if err := c.firstBundle(res.GetBundle()); err != nil {
		return 0, err
	}
	if err := c.cfg.Identity.SetSVID(chain, key); err != nil {
		skew := time.Since(time.Unix(res.GetServerTimeUnix(), 0)).Round(time.Second)
		return 0, fmt.Errorf("take the issued certificate (our clock is %s ahead of the control plane's): %w", skew, err)
	}
	c.mu.Lock()
	if !c.named {
		c.named = true
		close(c.identified)
	}
	c.checkReady()
	c.mu.Unlock()
	c.log.Info("got an identity", "id", leafID(chain[0]), "until", chain[0].NotAfter.UTC().Format(time.RFC3339))
	return renewIn(res, time.Until(chain[0].NotAfter)), nil
}

func leafID(leaf *x509.Certificate) string {
	if len(leaf.URIs) == 0 {
		return ""
	}
	return leaf.URIs[0].String()
}

// renewIn is the control plane's word, counted on its own clock and kept
// within the certificate's life.
func renewIn(res *pb.IssueResponse, left time.Duration) time.Duration {
	d := time.Duration(res.GetRenewAfterUnix()-res.GetServerTimeUnix()) * time.Second
	if d <= 0 || d > left {
		d = left / 2
	}
	return max(d, renewLeast)
}

// firstBundle trusts the issuer's bundle until the stream's has come, which
// may name more trust domains.
func (c *Client[T]) firstBundle(b *pb.TrustBundle) error {
	c.mu.Lock()
	_, streamed := c.has[nameBundle]
	c.mu.Unlock()
	if streamed || b == nil {
		return nil
	}
	td, roots, err := c.parseBundle(b)
	if err != nil {
		return err
	}
	if td != c.controlPlane.TrustDomain() {
		return fmt.Errorf("the issuer's bundle is of %s, not of our trust domain %s", td, c.controlPlane.TrustDomain())
	}
	return c.cfg.Identity.SetBundles(map[spiffeid.TrustDomain][]*x509.Certificate{td: roots})
}

func (c *Client[T]) issue(ctx context.Context, csr []byte) (*pb.IssueResponse, error) {
	var renewal error
	if c.valid() {
		res, err := c.call(ctx, c.cfg.Identity.ClientConfig(c.controlPlane, "h2"),
			&pb.IssueRequest{Csr: csr, Credential: &pb.IssueRequest_Renew{Renew: true}})
		if err == nil {
			return res, nil
		}
		renewal = fmt.Errorf("renew by the present certificate: %w", err)
	}
	token, err := readToken(c.cfg.TokenFile)
	if err != nil {
		return nil, errors.Join(renewal, err)
	}
	res, err := c.call(ctx, c.cfg.Identity.AnonymousClientConfig(c.controlPlane, "h2"),
		&pb.IssueRequest{Csr: csr, Credential: &pb.IssueRequest_ServiceAccountToken{ServiceAccountToken: token}})
	if err != nil {
		return nil, errors.Join(renewal, fmt.Errorf("get an identity by token: %w", err))
	}
	return res, nil
}

func (c *Client[T]) call(ctx context.Context, cfg *tls.Config, req *pb.IssueRequest) (*pb.IssueResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, issueWait)
	defer cancel()
	conn, err := wire.Dial(wire.DialConfig{Address: c.cfg.Address, Dial: c.cfg.Dial, TLS: cfg})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.Issue(ctx, req)
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the service account token: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", fmt.Errorf("read the service account token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("read the service account token: %s is empty", path)
	}
	return token, nil
}
