package ca

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"github.com/heddle-mesh/heddle/internal/source"
)

// Secrets keeps secrets with versions; a source.Source is one.
type Secrets interface {
	ReadSecret(ctx context.Context, namespace, name string) (data map[string][]byte, version string, err error)
	WriteSecret(ctx context.Context, namespace, name, version string, data map[string][]byte) error
}

// Secret is a Storage in one Kubernetes Secret, each file under its own key,
// which the replicas of a control plane share.
func Secret(s Secrets, namespace, name string) Storage { return secret{s, namespace, name} }

type secret struct {
	secrets         Secrets
	namespace, name string
}

func (s secret) Where(name string) string {
	return fmt.Sprintf("%s in Secret %s/%s", name, s.namespace, s.name)
}

// Read gives a key's content. Its version is of that content alone, since
// another key that changes is no conflict.
func (s secret) Read(ctx context.Context, name string) ([]byte, string, error) {
	data, _, err := s.read(ctx)
	if err != nil {
		return nil, "", err
	}
	return of(data, name)
}

// of gives one key. An empty value is no file: charts make Secrets with empty
// keys, and no file of ours is empty.
func of(data map[string][]byte, name string) ([]byte, string, error) {
	content := data[name]
	if len(content) == 0 {
		return nil, "", fs.ErrNotExist
	}
	return content, contentVersion(content), nil
}

// read gives all keys; none and version "" where there is no Secret.
func (s secret) read(ctx context.Context) (map[string][]byte, string, error) {
	data, version, err := s.secrets.ReadSecret(ctx, s.namespace, s.name)
	if errors.Is(err, source.ErrNotFound) {
		return nil, "", nil
	}
	return data, version, err
}

func (s secret) Write(ctx context.Context, name string, data []byte, version string) (string, error) {
	for range attempts {
		all, at, err := s.read(ctx)
		if err != nil {
			return "", err
		}
		_, now, err := of(all, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if now != version {
			return "", ErrConflict
		}
		next := maps.Clone(all)
		if next == nil {
			next = map[string][]byte{}
		}
		next[name] = data
		err = s.secrets.WriteSecret(ctx, s.namespace, s.name, at, next)
		if err == nil {
			return contentVersion(data), nil
		}
		if !errors.Is(err, source.ErrConflict) {
			return "", err
		}
	}
	return "", ErrConflict
}
