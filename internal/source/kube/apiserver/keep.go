package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"

	"github.com/heddle-mesh/heddle/internal/source"
)

// meta is what we write of an object's metadata.
type meta struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// kept is a Secret (T []byte) or a ConfigMap (T string).
type kept[T any] struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   meta         `json:"metadata"`
	Data       map[string]T `json:"data"`
}

// step is one operation of a JSON patch (RFC 6902).
type step struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// at makes a patch hold only for one version of the object: the API server
// answers Conflict if it is another by then.
func at(version string, steps ...step) []step {
	return append([]step{{"replace", "/metadata/resourceVersion", version}}, steps...)
}

func corePath(namespace, plural, name string) string {
	p := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/" + plural
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	return p
}

// ReadSecret reads a Secret; its version is its resourceVersion.
func (c *Client) ReadSecret(ctx context.Context, namespace, name string) (map[string][]byte, string, error) {
	var o kept[[]byte]
	if err := c.Get(ctx, corePath(namespace, "secrets", name), &o); err != nil {
		return nil, "", fmt.Errorf("read secret %s/%s: %w", namespace, name, said(err))
	}
	return o.Data, o.Metadata.ResourceVersion, nil
}

// WriteSecret makes a Secret (version "") or replaces the data of one.
func (c *Client) WriteSecret(ctx context.Context, namespace, name, version string, data map[string][]byte) error {
	if err := write(ctx, c, "Secret", meta{name, namespace, version}, data); err != nil {
		return fmt.Errorf("write secret %s/%s: %w", namespace, name, err)
	}
	return nil
}

// write leaves labels and annotations as they are: they may be the chart's.
func write[T any](ctx context.Context, c *Client, kind string, m meta, data map[string]T) error {
	plural := map[string]string{"Secret": "secrets", "ConfigMap": "configmaps"}[kind]
	if data == nil {
		data = map[string]T{}
	}
	if m.ResourceVersion == "" {
		return said(c.do(ctx, call{method: http.MethodPost, path: corePath(m.Namespace, plural, ""),
			body: kept[T]{APIVersion: "v1", Kind: kind, Metadata: m, Data: data}}, nil))
	}
	err := said(c.do(ctx, call{method: http.MethodPatch, path: corePath(m.Namespace, plural, m.Name), form: jsonPatch,
		body: at(m.ResourceVersion, step{"add", "/data", data})}, nil))
	if errors.Is(err, source.ErrNotFound) {
		return fmt.Errorf("%w: it was deleted", source.ErrConflict)
	}
	return err
}

// Published reads a ConfigMap.
func (c *Client) Published(ctx context.Context, namespace, name string) (map[string]string, error) {
	o, err := c.published(ctx, namespace, name)
	if err != nil {
		return nil, fmt.Errorf("read config map %s/%s: %w", namespace, name, err)
	}
	return o.Data, nil
}

func (c *Client) published(ctx context.Context, namespace, name string) (o kept[string], err error) {
	err = said(c.Get(ctx, corePath(namespace, "configmaps", name), &o))
	return o, err
}

// Publish makes or replaces a ConfigMap, if it says something else.
func (c *Client) Publish(ctx context.Context, namespace, name string, data map[string]string) error {
	err := source.ErrConflict
	for try := 0; try < writeTries && errors.Is(err, source.ErrConflict); try++ {
		var o kept[string]
		o, err = c.published(ctx, namespace, name)
		if errors.Is(err, source.ErrNotFound) {
			err = nil
		} else if err == nil && maps.Equal(o.Data, data) {
			return nil
		}
		if err == nil {
			err = write(ctx, c, "ConfigMap", meta{name, namespace, o.Metadata.ResourceVersion}, data)
		}
	}
	if err != nil {
		return fmt.Errorf("publish config map %s/%s: %w", namespace, name, err)
	}
	return nil
}

// SetCABundle puts a PEM bundle into every webhook of a
// MutatingWebhookConfiguration, where another one stands.
func (c *Client) SetCABundle(ctx context.Context, webhookConfig string, pem []byte) error {
	err := source.ErrConflict
	for try := 0; try < writeTries && errors.Is(err, source.ErrConflict); try++ {
		err = c.setCABundle(ctx, webhookConfig, pem)
	}
	if err != nil {
		return fmt.Errorf("set CA bundle of webhook %s: %w", webhookConfig, err)
	}
	return nil
}

func (c *Client) setCABundle(ctx context.Context, name string, pem []byte) error {
	path := "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + url.PathEscape(name)
	var o struct {
		Metadata meta `json:"metadata"`
		Webhooks []struct {
			ClientConfig struct {
				CABundle []byte `json:"caBundle"`
			} `json:"clientConfig"`
		} `json:"webhooks"`
	}
	if err := c.Get(ctx, path, &o); err != nil {
		return said(err)
	}
	var steps []step
	for i, w := range o.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, pem) {
			steps = append(steps, step{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), pem})
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return said(c.do(ctx, call{method: http.MethodPatch, path: path, form: jsonPatch, body: at(o.Metadata.ResourceVersion, steps...)}, nil))
}
