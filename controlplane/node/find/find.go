// Package find asks the Kubernetes API server where the control plane's pods
// are and whom to trust there. It needs neither Service addresses nor names to
// work: it dials API servers by their real addresses, given by flag, and the
// API's Service address only if none of them answers. It is not client-go,
// which the node agent must not link: two GETs of JSON.
//
// What it asks, it asks each time anew; controlplane/node decides when.
package find

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Config says where to ask and what for.
type Config struct {
	API       string           // HOST:PORT that the API server's certificate is for: KUBERNETES_SERVICE_HOST and _PORT
	Servers   []netip.AddrPort // real addresses of API servers; may be empty
	CAFile    string           // of the API server's certificate, PEM
	TokenFile string           // of our service account, for the API server

	Namespace string // of the control plane
	Service   string // its Service
	Port      string // name of that Service's port for peers
	Bundle    string // ConfigMap with the mesh's roots
	BundleKey string
}

// Finder asks.
type Finder struct{ cfg Config }

// New gives a Finder.
func New(cfg Config) *Finder { return &Finder{cfg: cfg} }

const (
	askTimeout  = 10 * time.Second // for one question with its answer
	dialTimeout = 2 * time.Second  // for one of several servers: a dead one must not eat the whole time
	maxAnswer   = 8 << 20          // bytes; a Service of 100 pods has 40 KiB of slices
)

// ErrNoPods says that the Service has no endpoint with an address.
var ErrNoPods = errors.New("the control plane has no running pod")

// ControlPlane gives the addresses of the control plane's pods: the ready
// ones, or, while none is ready, all that there are.
func (f *Finder) ControlPlane(ctx context.Context) ([]netip.AddrPort, error) {
	var list sliceList
	path := "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(f.cfg.Namespace) + "/endpointslices?labelSelector=" +
		url.QueryEscape("kubernetes.io/service-name="+f.cfg.Service)
	if err := f.get(ctx, path, &list); err != nil {
		return nil, fmt.Errorf("ask for the endpoints of Service %s/%s: %w", f.cfg.Namespace, f.cfg.Service, err)
	}
	ready, other := list.addresses(f.cfg.Port)
	if len(ready) == 0 {
		ready = other
	}
	if len(ready) == 0 {
		return nil, fmt.Errorf("service %s/%s, port %q: %w", f.cfg.Namespace, f.cfg.Service, f.cfg.Port, ErrNoPods)
	}
	return ready, nil
}

// sliceList is what is read of a list of EndpointSlices.
type sliceList struct {
	Items []struct {
		Ports []struct {
			Name string `json:"name"`
			Port int    `json:"port"`
		} `json:"ports"`
		Endpoints []struct {
			Addresses  []string `json:"addresses"`
			Conditions struct {
				Ready *bool `json:"ready"`
			} `json:"conditions"`
		} `json:"endpoints"`
	} `json:"items"`
}

// addresses joins ports and addresses; what does not parse is left out.
func (l *sliceList) addresses(port string) (ready, other []netip.AddrPort) {
	for _, s := range l.Items {
		for _, p := range s.Ports {
			if p.Name != port || p.Port < 1 || p.Port > 65535 {
				continue
			}
			for _, e := range s.Endpoints {
				if len(e.Addresses) == 0 {
					continue
				}
				a, err := netip.ParseAddr(e.Addresses[0])
				if err != nil {
					continue
				}
				at := netip.AddrPortFrom(a, uint16(p.Port))
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					ready = append(ready, at)
				} else {
					other = append(other, at)
				}
			}
		}
	}
	return ready, other
}

// Roots gives the mesh's trusted roots, as the control plane published them.
func (f *Finder) Roots(ctx context.Context) ([]*x509.Certificate, error) {
	var m struct {
		Data map[string]string `json:"data"`
	}
	path := "/api/v1/namespaces/" + url.PathEscape(f.cfg.Namespace) + "/configmaps/" + url.PathEscape(f.cfg.Bundle)
	where := "ConfigMap " + f.cfg.Namespace + "/" + f.cfg.Bundle
	if err := f.get(ctx, path, &m); err != nil {
		return nil, fmt.Errorf("read %s: %w", where, err)
	}
	var out []*x509.Certificate
	for rest := []byte(m.Data[f.cfg.BundleKey]); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s, key %s: %w", where, f.cfg.BundleKey, err)
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s, key %s: no certificate is in it", where, f.cfg.BundleKey)
	}
	return out, nil
}

// Cluster names the cluster by the certificates of its API server's CA. They
// are the same on all nodes, and are replaced one after the other.
func (f *Finder) Cluster() ([]string, error) {
	if f.cfg.CAFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(f.cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the API server's CA: %w", err)
	}
	var out []string
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		sum := sha256.Sum256(block.Bytes)
		out = append(out, hex.EncodeToString(sum[:]))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("read the API server's CA: %s holds no certificate", f.cfg.CAFile)
	}
	return out, nil
}

// get asks one question. CA and token are read each time: both are rotated.
func (f *Finder) get(ctx context.Context, path string, into any) error {
	if f.cfg.API == "" {
		return errors.New("the API server is not known: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client, err := f.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	token, err := os.ReadFile(f.cfg.TokenFile)
	if err != nil {
		return fmt.Errorf("read the API token: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+f.cfg.API+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("the API server answers %s: %.300s", res.Status, strings.TrimSpace(string(body)))
	case len(body) > maxAnswer:
		return fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

func (f *Finder) client() (*http.Client, error) {
	ca, err := os.ReadFile(f.cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the API server's CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read the API server's CA: %s holds no certificate", f.cfg.CAFile)
	}
	return &http.Client{
		Transport: &http.Transport{DialContext: f.dial, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
		// The token must not follow to somewhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// dial tries the real servers, from one by chance, so that many dead ones do
// not eat the time of each question; then the address that the certificate is
// for.
func (f *Finder) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	var errs []error
	targets := make([]string, 0, len(f.cfg.Servers)+1)
	for _, i := range rand.Perm(len(f.cfg.Servers)) {
		targets = append(targets, f.cfg.Servers[i].String())
	}
	if !slices.Contains(targets, f.cfg.API) {
		targets = append(targets, f.cfg.API)
	}
	for _, to := range targets {
		c, err := d.DialContext(ctx, network, to)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
