// Package apiserver asks a Kubernetes API server one thing at a time, in JSON:
// it reviews tokens, writes status, events, secrets and config maps, and holds
// leases. It watches nothing and remembers nothing of what it read. Only
// internal/source/kube calls it.
package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	// callTimeout of everything but lists and watches: the API server itself
	// gives a webhook or etcd less.
	callTimeout = 15 * time.Second
	// maxAnswer of one object: etcd takes 1.5 MB by default; some raise it.
	maxAnswer = 16 << 20
	// maxStatus of an error's text.
	maxStatus = 64 << 10
)

// The forms of a PATCH (RFC 7396, RFC 6902).
const (
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
)

// Config of a Client.
type Config struct {
	Server    *rest.Config
	Namespace string // of leases
	Log       *slog.Logger
}

// Client speaks with one API server.
type Client struct {
	http      *http.Client
	base      string // scheme and host
	host      string
	namespace string
	log       *slog.Logger
	events    chan event
}

// New makes the connection's settings and dials nobody. HTTP/2 pings
// (client-go sends them after 30 s of silence) find a server that is gone
// without a word.
func New(cfg Config) (*Client, error) {
	at, _, err := rest.DefaultServerUrlFor(cfg.Server)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Server.Host, err)
	}
	h, err := rest.HTTPClientFor(cfg.Server)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Server.Host, err)
	}
	return &Client{http: h, base: at.Scheme + "://" + at.Host, host: at.Host, namespace: cfg.Namespace,
		log: telemetry.Discard(cfg.Log), events: make(chan event, eventQueue)}, nil
}

// Host is the API server's address, for people.
func (c *Client) Host() string { return c.host }

// Close closes the connections that nothing is under way on.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// call is one request.
type call struct {
	method, path string
	query        url.Values
	form         string // content type of body; empty: JSON
	body         any    // nil: none
}

// Open sends a GET and gives an answer whose status is good; the caller reads
// and closes it. Errors of the API server are apierrors.
func (c *Client) Open(ctx context.Context, path string, query url.Values) (*http.Response, error) {
	return c.open(ctx, call{method: http.MethodGet, path: path, query: query})
}

// open sends a call and gives an answer whose status is good. Errors of the
// API server are apierrors.
func (c *Client) open(ctx context.Context, q call) (*http.Response, error) {
	var body io.Reader
	if q.body != nil {
		text, err := json.Marshal(q.body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	at := c.base + q.path
	if len(q.query) > 0 {
		at += "?" + q.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, q.method, at, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
		if q.form != "" {
			req.Header.Set("Content-Type", q.form)
		}
	}
	resp, err := c.http.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		return nil, fmt.Errorf("%s %s: %w", q.method, q.path, u.Err) // without the query, which says little to people
	} else if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	return nil, statusError(resp, q.method, text)
}

func statusError(resp *http.Response, verb string, text []byte) error {
	var s metav1.Status
	if json.Unmarshal(text, &s) == nil && s.Kind == "Status" && s.Status == metav1.StatusFailure {
		return apierrors.FromObject(&s)
	}
	after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return apierrors.NewGenericServerResponse(resp.StatusCode, verb, schema.GroupResource{}, "", string(bytes.TrimSpace(text)), after, true)
}

// do sends a call and reads the answer into a value; nil: not read.
func (c *Client) do(ctx context.Context, q call, into any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read answer: %w", err)
	case len(text) > maxAnswer:
		return fmt.Errorf("read answer: longer than %d bytes", maxAnswer)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// Get reads one answer.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	return c.do(ctx, call{method: http.MethodGet, path: path}, into)
}

// said gives the API server's refusals the names that callers know.
func said(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", source.ErrNotFound, err)
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", source.ErrConflict, err)
	}
	return err
}
