package injector

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/heddle-mesh/heddle/injector/webhook"
	"github.com/heddle-mesh/heddle/internal/source"
)

// dialTimeout bounds readiness' look at our own port: it is on this machine.
const dialTimeout = time.Second

// readiness says whether a review would be answered now.
type readiness struct {
	ending  <-chan struct{} // closed: we go on for a while, for those who do not know yet
	source  source.Source
	bundle  *bundle
	certs   *webhook.Certs
	address net.Addr // of the webhook
	name    string   // by which the API server calls us; "": it is not told our CA
}

// check covers all a review needs, the port included: other injectors were
// called ready while the API server could not reach them yet.
func (r readiness) check(ctx context.Context) error {
	select {
	case <-r.ending:
		return errors.New("ending")
	default:
	}
	if r.source.Snapshot() == nil {
		return errors.New("nothing of the world is known yet")
	}
	if _, ok := r.bundle.mesh(); !ok {
		return errors.New("the trust bundle has not been read yet")
	}
	leaf := r.certs.Leaf()
	if leaf == nil {
		return errors.New("no serving certificate yet")
	}
	if time.Now().After(leaf.NotAfter) {
		return fmt.Errorf("the serving certificate ended at %s", leaf.NotAfter.Format(time.RFC3339))
	}
	if r.name != "" && r.certs.Published() == nil {
		return errors.New("the API server has not been told our CA yet (caBundle)")
	}
	return r.dial(ctx)
}

// dial speaks to the webhook's port as the API server would: by the Service's
// name and with the roots it was told, where we told it. Who answers must hold
// our certificate in any case.
func (r readiness) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // in favour of the exact comparison below
		VerifyConnection: func(cs tls.ConnectionState) error {
			if leaf := r.certs.Leaf(); !bytes.Equal(cs.PeerCertificates[0].Raw, leaf.Raw) {
				return errors.New("somebody else's certificate")
			}
			return nil
		},
	}
	if r.name != "" {
		config.InsecureSkipVerify, config.ServerName, config.RootCAs = false, r.name, x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(r.certs.Published())
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+ownAddress(r.address)+"/live", nil)
	if err != nil {
		return err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("dial the webhook's own port: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the webhook's own port answers %s", res.Status)
	}
	return nil
}

// ownAddress is how a listener is reached from its own machine.
func ownAddress(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("localhost", fmt.Sprint(tcp.Port))
}
