package injector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/heddle-mesh/heddle/injector/patch"
	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// bundleCheck is how often the trust bundle is read: a pod made after a
	// root was added must get it, and reading a few KB costs nothing.
	bundleCheck = time.Second
	// publishedCheck is how often it is asked of the API server; the control
	// plane publishes a new root long before it signs by it.
	publishedCheck = 5 * time.Second
	// publishedTimeout bounds one such call.
	publishedTimeout = 10 * time.Second
	// bundleWait is how long we wait for the first one. The control plane
	// writes it within seconds of its start; after this something is wrong
	// that a log line every second would not mend, and who runs us shall see.
	bundleWait = 5 * time.Minute
	// maxBundle bounds what goes into every pod.
	maxBundle = 256 << 10
	// rootsKey of the ConfigMap that the control plane publishes.
	rootsKey = "roots.pem"
)

// Roots say where the trust bundle comes from.
type Roots struct {
	Where string // for people
	Every time.Duration
	Read  func(ctx context.Context) (string, error)
}

// RootsFile is a PEM file.
func RootsFile(name string) Roots {
	return Roots{"file " + name, bundleCheck, func(context.Context) (string, error) { return readFile(name) }}
}

// RootsPublished is the ConfigMap that the control plane publishes.
func RootsPublished(src source.Source, namespace, name string) Roots {
	return Roots{"ConfigMap " + namespace + "/" + name, publishedCheck, func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, publishedTimeout)
		defer cancel()
		data, err := src.Published(ctx, namespace, name)
		if errors.Is(err, source.ErrNotFound) {
			return "", errors.New("it does not exist yet: the control plane publishes it once it runs")
		}
		if err != nil {
			return "", err
		}
		if data[rootsKey] == "" {
			return "", fmt.Errorf("it has no %s", rootsKey)
		}
		return data[rootsKey], nil
	}}
}

// bundle keeps the mesh's settings with the newest trust bundle in them.
type bundle struct {
	roots   Roots
	base    patch.Config
	log     *slog.Logger
	current atomic.Pointer[patch.Config]
}

func newBundle(roots Roots, base patch.Config, log *slog.Logger) *bundle {
	return &bundle{roots: roots, base: base, log: log}
}

// mesh gives the settings; false until the bundle was read once.
func (b *bundle) mesh() (patch.Config, bool) {
	if cfg := b.current.Load(); cfg != nil {
		return *cfg, true
	}
	return patch.Config{}, false
}

// run reads the bundle until ctx ends. A bad one never replaces a good one.
func (b *bundle) run(ctx context.Context) error {
	tick := time.NewTicker(b.roots.Every)
	defer tick.Stop()
	start, last := time.Now(), ""
	for {
		err := b.read(ctx)
		if text := fmt.Sprint(err); err != nil && text != last && ctx.Err() == nil {
			b.log.Warn("trust bundle", "from", b.roots.Where, "err", err)
			last = text
		} else if err == nil {
			last = ""
		}
		if b.current.Load() == nil && time.Since(start) >= bundleWait {
			return fmt.Errorf("none within %s: %w", bundleWait, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (b *bundle) read(ctx context.Context) error {
	raw, err := b.roots.Read(ctx)
	if err != nil {
		return err
	}
	if len(raw) > maxBundle {
		return fmt.Errorf("more than %d bytes", maxBundle)
	}
	text := strings.TrimSpace(raw) + "\n"
	old := b.current.Load()
	if old != nil && old.TrustBundle == text {
		return nil
	}
	next := b.base
	next.TrustBundle = text
	if err := next.Validate(); err != nil {
		return err
	}
	b.current.Store(&next)
	b.log.Info("trust bundle read", "from", b.roots.Where, "certificates", strings.Count(text, "-----BEGIN CERTIFICATE-----"))
	return nil
}

// readFile gives a little more than maxBundle of a file that is larger.
func readFile(name string) (string, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("the file does not exist yet")
	}
	if err != nil {
		return "", fmt.Errorf("open: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxBundle+1))
	if err != nil {
		return "", fmt.Errorf("read: %w", err)
	}
	return string(raw), nil
}
