// Package files is the door to a world that stands in a folder of ordinary
// manifests: it watches the folder, keeps the newest snapshot, reviews tokens
// against the folder's jwks.json and keeps secrets, status and events as files
// beside them. What a manifest says is read by internal/source/manifest. The
// control plane in standalone mode, the lab and scenario tests call it.
package files

import (
	"context"
	"log/slog"

	"github.com/heddle-mesh/heddle/internal/source"
)

// Config of the door.
type Config struct {
	Dir    string // watched, with its sub-folders
	Issuer string // of tokens; "": any that the keys of jwks.json sign
	// StatusDir takes status and events; default Dir/status. It is not read
	// as manifests, nor are Dir/secrets and files whose names begin with a dot.
	StatusDir string
	// SecretsDir takes secrets, mode 0600; default Dir/secrets.
	SecretsDir string
	Log        *slog.Logger // nil: discard
}

// Files is a source.Source over a folder.
type Files struct {
	cfg     Config
	changed chan struct{}
}

var _ source.Source = (*Files)(nil)

// New gives the door; it does nothing before Run.
func New(cfg Config) *Files {
	return &Files{cfg: cfg, changed: make(chan struct{}, 1)}
}

// Read reads a folder once, without watching: for tests and offline commands.
func Read(dir string) (*source.Snapshot, error) { return &source.Snapshot{}, nil }

// Run watches until ctx ends.
func (f *Files) Run(ctx context.Context) error { return nil }

// Snapshot is the newest state.
func (f *Files) Snapshot() *source.Snapshot { return nil }

// Changed signals a new snapshot.
func (f *Files) Changed() <-chan struct{} { return f.changed }

// ReviewToken verifies a JWT as Kubernetes projects them.
func (f *Files) ReviewToken(ctx context.Context, token, audience string) (source.TokenInfo, error) {
	return source.TokenInfo{}, source.ErrToken
}

// WriteStatus replaces an object's status file.
func (f *Files) WriteStatus(ctx context.Context, ref source.Ref, conditions []source.Condition) error {
	return nil
}

// Event appends to the events file.
func (f *Files) Event(ctx context.Context, ref source.Ref, reason, message string) {}

// ReadSecret reads one secret.
func (f *Files) ReadSecret(ctx context.Context, namespace, name string) (map[string][]byte, string, error) {
	return nil, "", source.ErrNotFound
}

// WriteSecret writes one secret if version is still current.
func (f *Files) WriteSecret(ctx context.Context, namespace, name, version string, data map[string][]byte) error {
	return nil
}
