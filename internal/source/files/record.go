package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

// maxEvents bounds events.jsonl in bytes; then it becomes events.old.jsonl.
const maxEvents = 1 << 20

// safe gives a file name for a part of an object's name, which may come from a
// manifest that nobody validated.
func safe(parts ...string) (string, error) {
	for _, p := range parts {
		if p == "" || strings.ContainsAny(p, "/\x00") || strings.HasPrefix(p, ".") {
			return "", fmt.Errorf("%q is no name", p)
		}
	}
	return strings.Join(parts, "."), nil
}

// WriteStatus replaces Kind.namespace.name.json of the status folder.
func (f *Files) WriteStatus(ctx context.Context, ref source.Ref, conditions []source.Condition) error {
	name, err := statusFile(ref)
	if err != nil {
		return fmt.Errorf("write status of %s: %w", ref, err)
	}
	data, err := json.MarshalIndent(status{ref, conditions}, "", "  ")
	if err == nil {
		err = replace(filepath.Join(f.cfg.StatusDir, name), append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write status of %s: %w", ref, err)
	}
	return nil
}

// ReadStatus gives the conditions that a control plane wrote about an object of
// a folder, in the folder's own status; none: it wrote nothing.
func ReadStatus(dir string, ref source.Ref) ([]source.Condition, error) {
	name, err := statusFile(ref)
	if err != nil {
		return nil, nil // no control plane writes such a name
	}
	raw, err := os.ReadFile(filepath.Join(dir, statusDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var s status
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		return nil, fmt.Errorf("read status of %s: %w", ref, err)
	}
	return s.Conditions, nil
}

// status is a file of the status folder.
type status struct {
	Object     source.Ref         `json:"object"`
	Conditions []source.Condition `json:"conditions"`
}

func statusFile(ref source.Ref) (string, error) {
	ns := ref.Namespace
	if ns == "" {
		ns = "-"
	}
	name, err := safe(ref.Kind, ns, ref.Name)
	return name + ".json", err
}

// Event appends one line of JSON to events.jsonl of the status folder.
func (f *Files) Event(ctx context.Context, ref source.Ref, reason, message string) {
	line, err := json.Marshal(struct {
		Time    time.Time  `json:"time"`
		Object  source.Ref `json:"object"`
		Reason  string     `json:"reason"`
		Message string     `json:"message"`
	}{time.Now().UTC(), ref, reason, message})
	if err == nil {
		f.events.Lock()
		defer f.events.Unlock()
		err = appendLine(filepath.Join(f.cfg.StatusDir, "events"), append(line, '\n'))
	}
	if err != nil {
		f.log.Warn("cannot write an event", "object", ref, "reason", reason, "message", message, "error", err)
	}
}

func appendLine(base string, line []byte) error {
	path := base + ".jsonl"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make status folder: %w", err)
	}
	if fi, err := os.Stat(path); err == nil && fi.Size()+int64(len(line)) > maxEvents {
		if err := os.Rename(path, base+".old.jsonl"); err != nil {
			return fmt.Errorf("put old events aside: %w", err)
		}
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open events: %w", err)
	}
	_, err = file.Write(line)
	return errors.Join(err, file.Close())
}

// ReadSecret reads one secret; its version is the hash of its content.
func (f *Files) ReadSecret(ctx context.Context, namespace, name string) (map[string][]byte, string, error) {
	path, err := f.secretPath(namespace, name)
	if err != nil {
		return nil, "", err
	}
	data, version, err := readSecret(path)
	if err != nil {
		return nil, "", fmt.Errorf("read secret %s/%s: %w", namespace, name, err)
	}
	return data, version, nil
}

func (f *Files) secretPath(namespace, name string) (string, error) {
	file, err := safe(namespace, name)
	if err != nil {
		return "", fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}
	return filepath.Join(f.cfg.SecretsDir, file+".json"), nil
}

func readSecret(path string) (map[string][]byte, string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", source.ErrNotFound
	}
	var data map[string][]byte
	if err == nil {
		err = json.Unmarshal(raw, &data)
	}
	if err != nil {
		return nil, "", err
	}
	return data, secretVersion(data), nil
}

func secretVersion(data map[string][]byte) string {
	h := sha256.New()
	for _, k := range slices.Sorted(maps.Keys(data)) {
		fmt.Fprintf(h, "%d %s %d ", len(k), k, len(data[k]))
		h.Write(data[k])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// WriteSecret writes one secret if version is still current. A lock file keeps
// replicas on one machine, or on a file system with locks, apart.
func (f *Files) WriteSecret(ctx context.Context, namespace, name, version string, data map[string][]byte) error {
	path, err := f.secretPath(namespace, name)
	if err != nil {
		return err
	}
	f.secrets.Lock()
	defer f.secrets.Unlock()
	if err := os.MkdirAll(f.cfg.SecretsDir, 0o700); err != nil {
		return fmt.Errorf("write secret %s/%s: %w", namespace, name, err)
	}
	unlock, err := lock(filepath.Join(f.cfg.SecretsDir, ".lock"))
	if err != nil {
		return fmt.Errorf("write secret %s/%s: %w", namespace, name, err)
	}
	defer unlock()
	_, has, err := readSecret(path)
	if err != nil && !errors.Is(err, source.ErrNotFound) {
		return fmt.Errorf("write secret %s/%s: %w", namespace, name, err)
	}
	if has != version {
		return fmt.Errorf("write secret %s/%s: %w", namespace, name, source.ErrConflict)
	}
	raw, err := json.Marshal(data)
	if err == nil {
		err = replace(path, raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write secret %s/%s: %w", namespace, name, err)
	}
	return nil
}

// publishedPath is of a ConfigMap that we publish. It stands in the status
// folder: it is our word, not a manifest of somebody.
func (f *Files) publishedPath(namespace, name string) (string, error) {
	file, err := safe("ConfigMap", namespace, name)
	if err != nil {
		return "", fmt.Errorf("config map %s/%s: %w", namespace, name, err)
	}
	return filepath.Join(f.cfg.StatusDir, file+".json"), nil
}

// Publish replaces ConfigMap.namespace.name.json of the status folder.
func (f *Files) Publish(ctx context.Context, namespace, name string, data map[string]string) error {
	path, err := f.publishedPath(namespace, name)
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(data, "", "  ")
	if err == nil {
		err = replace(path, append(raw, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("publish config map %s/%s: %w", namespace, name, err)
	}
	return nil
}

// Published reads what Publish wrote.
func (f *Files) Published(ctx context.Context, namespace, name string) (map[string]string, error) {
	path, err := f.publishedPath(namespace, name)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = source.ErrNotFound
	}
	var data map[string]string
	if err == nil {
		err = json.Unmarshal(raw, &data)
	}
	if err != nil {
		return nil, fmt.Errorf("read config map %s/%s: %w", namespace, name, err)
	}
	return data, nil
}

// Lead runs lead at once: a folder has one control plane, or several that
// write the same.
func (f *Files) Lead(ctx context.Context, name string, lead func(context.Context)) { lead(ctx) }

func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock: %w", err), file.Close())
	}
	return func() { _ = file.Close() }, nil // closing unlocks
}

// replace writes a file whole: beside, to disk, then over the old one.
func replace(path string, data []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, ".tmp-*") // made with mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}
