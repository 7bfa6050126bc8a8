// Package volume makes the volumes of one pod as folders of this machine:
// emptyDir, hostPath, configMap, secret, downwardAPI and projected, with
// service account tokens that are renewed in time. Content is replaced at once
// as a whole, as kubelets do it. It mounts nothing. internal/lab/kubelet
// calls it.
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// Config is one pod's volumes.
type Config struct {
	Pod *corev1.Pod
	Dir string // a folder for them, made if missing
	// Token makes a token for an audience (empty: the default one).
	Token func(ctx context.Context, audience string, expiry time.Duration) (string, time.Time, error)
	// Data gives a "ConfigMap" or "Secret" of the pod's namespace; nil without
	// error: there is none.
	Data func(kind, name string) (map[string][]byte, error)
	// Field gives a downward API field.
	Field func(path string) (string, error)
	Log   *slog.Logger
}

// Set is the volumes of one pod.
type Set struct {
	cfg Config
	log *slog.Logger
}

// New prepares; it does no I/O.
func New(cfg Config) *Set { return &Set{cfg: cfg, log: telemetry.Discard(cfg.Log)} }

// Path is where a volume's content stands.
func (s *Set) Path(name string) (string, error) {
	for _, v := range s.cfg.Pod.Spec.Volumes {
		if v.Name != name {
			continue
		}
		if v.HostPath != nil {
			return v.HostPath.Path, nil
		}
		return filepath.Join(s.cfg.Dir, name), nil
	}
	return "", fmt.Errorf("spec.volumes has no volume %q", name)
}

// Prepare makes all volumes. It may be called again after an error.
func (s *Set) Prepare(ctx context.Context) error {
	for i := range s.cfg.Pod.Spec.Volumes {
		v := &s.cfg.Pod.Spec.Volumes[i]
		if _, err := s.fill(ctx, v); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// Tokens are renewed when four fifths of their life are over, as kubelets do;
// a failed renewal is tried again after retryAfter, so that there are many
// tries before the old one expires.
const (
	renewAtNum, renewAtDen = 4, 5
	retryAfter             = 10 * time.Second
	minRenew               = time.Second // against a clock or token gone mad
	defaultExpiry          = time.Hour   // Kubernetes' own
)

// Run renews tokens until ctx ends. Call it after Prepare.
func (s *Set) Run(ctx context.Context) {
	for {
		due, ok := s.nextRenewal()
		if !ok {
			<-ctx.Done()
			return
		}
		t := time.NewTimer(max(minRenew, time.Until(due)))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if err := s.renew(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("tokens not renewed", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryAfter):
			}
		}
	}
}

// renewal marks, beside a volume's content, when it is due.
const renewal = ".renew"

func (s *Set) nextRenewal() (due time.Time, ok bool) {
	for _, v := range s.cfg.Pod.Spec.Volumes {
		at, err := s.renewalOf(v.Name)
		if err == nil && (!ok || at.Before(due)) {
			due, ok = at, true
		}
	}
	return due, ok
}

func (s *Set) renewalOf(name string) (time.Time, error) {
	raw, err := os.ReadFile(filepath.Join(s.cfg.Dir, name+renewal))
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339Nano, string(raw))
}

func (s *Set) renew(ctx context.Context) error {
	var errs []error
	for i := range s.cfg.Pod.Spec.Volumes {
		v := &s.cfg.Pod.Spec.Volumes[i]
		at, err := s.renewalOf(v.Name)
		if err != nil || time.Now().Before(at) {
			continue
		}
		if _, err := s.fill(ctx, v); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}

// content collects what a volume shows.
type content struct {
	files map[string]file
	renew time.Time // zero: never
}

type file struct {
	data []byte
	mode os.FileMode
}

func (c *content) put(path string, data []byte, mode os.FileMode) error {
	clean := filepath.Clean(path)
	if filepath.IsAbs(path) || clean == "." || clean == ".." || strings.HasPrefix(clean, "..") {
		return fmt.Errorf("path %q must stay inside the volume", path)
	}
	c.files[clean] = file{data: data, mode: mode}
	return nil
}

func (s *Set) fill(ctx context.Context, v *corev1.Volume) (string, error) {
	dir := filepath.Join(s.cfg.Dir, v.Name)
	c := &content{files: map[string]file{}}
	var err error
	switch {
	case v.HostPath != nil:
		return v.HostPath.Path, hostPath(v.HostPath)
	case v.EmptyDir != nil:
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return "", err
		}
		return dir, os.Chmod(dir, 0o777) // any user of the pod writes; umask took that
	case v.Projected != nil:
		err = s.projected(ctx, c, v.Projected)
	case v.ConfigMap != nil:
		err = s.keys(c, data{"ConfigMap", v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional}, v.ConfigMap.DefaultMode)
	case v.Secret != nil:
		err = s.keys(c, data{"Secret", v.Secret.SecretName, v.Secret.Items, v.Secret.Optional}, v.Secret.DefaultMode)
	case v.DownwardAPI != nil:
		err = s.downward(c, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	default:
		err = errors.New("the lab has only emptyDir, hostPath, configMap, secret, downwardAPI and projected volumes")
	}
	if err != nil {
		return "", err
	}
	if err := writeTree(dir, c.files); err != nil {
		return "", err
	}
	if !c.renew.IsZero() {
		return dir, os.WriteFile(dir+renewal, []byte(c.renew.Format(time.RFC3339Nano)), 0o600)
	}
	return dir, nil
}

// hostPath makes nothing but what its type asks for.
func hostPath(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	if kind == corev1.HostPathDirectoryOrCreate {
		if err := os.MkdirAll(h.Path, 0o755); err != nil {
			return err
		}
	}
	st, err := os.Stat(h.Path)
	if err != nil {
		return fmt.Errorf("hostPath: %w", err)
	}
	if kind == corev1.HostPathDirectory && !st.IsDir() || kind == corev1.HostPathFile && !st.Mode().IsRegular() {
		return fmt.Errorf("hostPath: %s is no %s", h.Path, kind)
	}
	return nil
}

const defaultMode = 0o644

func modeOf(own, def *int32) os.FileMode {
	switch {
	case own != nil:
		return os.FileMode(*own) & os.ModePerm
	case def != nil:
		return os.FileMode(*def) & os.ModePerm
	}
	return defaultMode
}

type data struct {
	kind, name string
	items      []corev1.KeyToPath
	optional   *bool
}

func (s *Set) keys(c *content, d data, def *int32) error {
	optional := d.optional != nil && *d.optional
	var have map[string][]byte
	if s.cfg.Data != nil {
		var err error
		if have, err = s.cfg.Data(d.kind, d.name); err != nil {
			return fmt.Errorf("read %s %s: %w", d.kind, d.name, err)
		}
	}
	if have == nil && !optional {
		return fmt.Errorf("%s %q not found", d.kind, d.name)
	}
	if len(d.items) == 0 {
		for k, v := range have {
			if err := c.put(k, v, modeOf(nil, def)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, it := range d.items {
		v, ok := have[it.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("%s %s has no key %q", d.kind, d.name, it.Key)
		}
		if err := c.put(it.Path, v, modeOf(it.Mode, def)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) downward(c *content, items []corev1.DownwardAPIVolumeFile, def *int32) error {
	for _, it := range items {
		if it.FieldRef == nil {
			return fmt.Errorf("downwardAPI %s: the lab has only fieldRef here", it.Path)
		}
		v, err := s.cfg.Field(it.FieldRef.FieldPath)
		if err != nil {
			return fmt.Errorf("downwardAPI %s: %w", it.Path, err)
		}
		if err := c.put(it.Path, []byte(v), modeOf(it.Mode, def)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) projected(ctx context.Context, c *content, p *corev1.ProjectedVolumeSource) error {
	for i, src := range p.Sources {
		var err error
		switch {
		case src.ServiceAccountToken != nil:
			err = s.token(ctx, c, src.ServiceAccountToken, p.DefaultMode)
		case src.ConfigMap != nil:
			err = s.keys(c, data{"ConfigMap", src.ConfigMap.Name, src.ConfigMap.Items, src.ConfigMap.Optional}, p.DefaultMode)
		case src.Secret != nil:
			err = s.keys(c, data{"Secret", src.Secret.Name, src.Secret.Items, src.Secret.Optional}, p.DefaultMode)
		case src.DownwardAPI != nil:
			err = s.downward(c, src.DownwardAPI.Items, p.DefaultMode)
		default:
			err = errors.New("unknown kind of source")
		}
		if err != nil {
			return fmt.Errorf("sources[%d]: %w", i, err)
		}
	}
	return nil
}

func (s *Set) token(ctx context.Context, c *content, p *corev1.ServiceAccountTokenProjection, def *int32) error {
	if s.cfg.Token == nil {
		return errors.New("serviceAccountToken: nobody here makes tokens")
	}
	expiry := defaultExpiry
	if p.ExpirationSeconds != nil && *p.ExpirationSeconds > 0 {
		expiry = time.Duration(*p.ExpirationSeconds) * time.Second
	}
	now := time.Now()
	tok, until, err := s.cfg.Token(ctx, p.Audience, expiry)
	if err != nil {
		return fmt.Errorf("serviceAccountToken: %w", err)
	}
	renew := now.Add(until.Sub(now) * renewAtNum / renewAtDen)
	if c.renew.IsZero() || renew.Before(c.renew) {
		c.renew = renew
	}
	return c.put(p.Path, []byte(tok), modeOf(nil, def))
}

// writeTree replaces a folder's whole content in one step, as kubelets do: the
// files stand in a folder of their own, "..data" is a link to it that is
// swapped, and each top-level name is a link through "..data". A reader sees
// the old content or the new one.
func writeTree(dir string, files map[string]file) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, _ := os.Readlink(filepath.Join(dir, "..data"))
	ver := ".." + strconv.FormatInt(time.Now().UnixNano(), 36)
	if ver == old {
		ver += "a"
	}
	for path, f := range files {
		at := filepath.Join(dir, ver, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, f.data, 0o600); err != nil {
			return err
		}
		if err := os.Chmod(at, f.mode); err != nil { // whatever the umask says
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, ver), 0o755); err != nil { // nothing in it
		return err
	}
	tmp := filepath.Join(dir, "..data_tmp")
	_ = os.Remove(tmp) // of a try that was cut short
	if err := os.Symlink(ver, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
		return err
	}
	for path := range files {
		top, _, _ := strings.Cut(path, "/")
		err := os.Symlink(filepath.Join("..data", top), filepath.Join(dir, top))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if old != "" && strings.HasPrefix(old, "..") && old == filepath.Base(old) {
		return os.RemoveAll(filepath.Join(dir, old))
	}
	return nil
}
