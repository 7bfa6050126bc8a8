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
)

const (
	// bundleCheck is how often the trust bundle is read: a pod made after a
	// root was added must get it, and reading a few KB costs nothing.
	bundleCheck = time.Second
	// bundleWait is how long we wait for the first one. The control plane
	// writes it within seconds of its start; after this something is wrong
	// that a log line every second would not mend, and who runs us shall see.
	bundleWait = 5 * time.Minute
	// maxBundle bounds what goes into every pod.
	maxBundle = 256 << 10
)

// bundle keeps the mesh's settings with the newest trust bundle in them.
type bundle struct {
	file    string
	base    patch.Config
	log     *slog.Logger
	current atomic.Pointer[patch.Config]
}

func newBundle(file string, base patch.Config, log *slog.Logger) *bundle {
	return &bundle{file: file, base: base, log: log}
}

// mesh gives the settings; false until the bundle was read once.
func (b *bundle) mesh() (patch.Config, bool) {
	if cfg := b.current.Load(); cfg != nil {
		return *cfg, true
	}
	return patch.Config{}, false
}

// run reads the file until ctx ends. A bad file never replaces a good one.
func (b *bundle) run(ctx context.Context) error {
	tick := time.NewTicker(bundleCheck)
	defer tick.Stop()
	start, last := time.Now(), ""
	for {
		err := b.read()
		if text := fmt.Sprint(err); err != nil && text != last {
			b.log.Warn("trust bundle", "file", b.file, "err", err)
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

func (b *bundle) read() error {
	f, err := os.Open(b.file)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the file does not exist yet")
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxBundle+1))
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if len(raw) > maxBundle {
		return fmt.Errorf("more than %d bytes", maxBundle)
	}
	text := strings.TrimSpace(string(raw)) + "\n"
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
	b.log.Info("trust bundle read", "file", b.file, "certificates", strings.Count(text, "-----BEGIN CERTIFICATE-----"))
	return nil
}
