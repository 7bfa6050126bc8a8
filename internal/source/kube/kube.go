// Package kube is the door to a Kubernetes API server: it lists and watches
// the kinds we use, keeps the newest snapshot, reviews tokens, writes status,
// events, secrets and config maps, and holds leases. Objects are trimmed as
// they come in (internal/source/trim); what our own kinds say is read by
// internal/source/manifest, as for a folder. The control plane and the
// injector call it.
package kube

import (
	"context"
	"errors"
	"log/slog"

	"github.com/heddle-mesh/heddle/internal/source"
)

// Config of the door.
type Config struct {
	// Kubeconfig is a file; empty: the pod's own service account.
	Kubeconfig string
	// Context of the kubeconfig; empty: its current one.
	Context string
	// Only these kinds are watched (Namespace, Pod, MeshConfig, ...); nil: all.
	Only []string
	Log  *slog.Logger // nil: discard
}

// Source is a source.Source over an API server.
type Source struct {
	cfg Config
}

var _ source.Source = (*Source)(nil)

var errSkeleton = errors.New("kube: not built yet")

// New reads the kubeconfig, or the pod's service account, and talks to nobody
// before Run.
func New(cfg Config) (*Source, error) { return &Source{cfg: cfg}, nil }

// Run watches until ctx ends.
func (s *Source) Run(ctx context.Context) error { return errSkeleton }

// Snapshot is the newest state, nil before everything was listed once.
func (s *Source) Snapshot() *source.Snapshot { return nil }

// Changed signals a new snapshot.
func (s *Source) Changed() <-chan struct{} { return nil }

// ReviewToken asks the API server whose token it is.
func (s *Source) ReviewToken(ctx context.Context, token, audience string) (source.TokenInfo, error) {
	return source.TokenInfo{}, errSkeleton
}

// WriteStatus replaces the conditions of an object's status if they differ.
func (s *Source) WriteStatus(ctx context.Context, ref source.Ref, conditions []source.Condition) error {
	return errSkeleton
}

// Event tells people about an object.
func (s *Source) Event(ctx context.Context, ref source.Ref, reason, message string) {}

// ReadSecret reads a Secret; its version is its resourceVersion.
func (s *Source) ReadSecret(ctx context.Context, namespace, name string) (map[string][]byte, string, error) {
	return nil, "", errSkeleton
}

// WriteSecret makes or replaces a Secret.
func (s *Source) WriteSecret(ctx context.Context, namespace, name, version string, data map[string][]byte) error {
	return errSkeleton
}

// Publish makes or replaces a ConfigMap.
func (s *Source) Publish(ctx context.Context, namespace, name string, data map[string]string) error {
	return errSkeleton
}

// Published reads a ConfigMap.
func (s *Source) Published(ctx context.Context, namespace, name string) (map[string]string, error) {
	return nil, errSkeleton
}

// Lead holds a Lease.
func (s *Source) Lead(ctx context.Context, name string, lead func(context.Context)) {}

// SetCABundle puts a PEM bundle into every webhook of a
// MutatingWebhookConfiguration.
func (s *Source) SetCABundle(ctx context.Context, webhookConfig string, pem []byte) error {
	return errSkeleton
}
