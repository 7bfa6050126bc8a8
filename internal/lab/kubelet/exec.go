package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/heddle-mesh/heddle/internal/lab/kubelet/container"
)

// ExecConfig names a running container and a program to run in it.
type ExecConfig struct {
	StateDir       string
	Namespace, Pod string
	Container      string // empty: the first that is not an init container
	Command        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Exec runs a program inside all namespaces of a running container, as its
// user, and gives the exit code. It needs only the state dir, so any process
// of this machine's root may call it, if its main calls MaybeShim.
func Exec(ctx context.Context, cfg ExecConfig) (int, error) {
	records, err := records(cfg.StateDir)
	if err != nil {
		return 0, err
	}
	known := false
	for _, r := range records {
		if r.Namespace != cfg.Namespace || r.Pod != cfg.Pod {
			continue
		}
		known = true
		if r.Container == cfg.Container || cfg.Container == "" && !r.Init {
			return r.Exec(ctx, cfg.Command, container.Streams{In: cfg.Stdin, Out: cfg.Stdout, Err: cfg.Stderr})
		}
	}
	if !known {
		return 0, fmt.Errorf("pod %s/%s has no running container", cfg.Namespace, cfg.Pod)
	}
	return 0, fmt.Errorf("pod %s/%s has no running container %q", cfg.Namespace, cfg.Pod, cfg.Container)
}

// records reads what runs, in order of names. A record that cannot be read is
// of a pod just going.
func records(stateDir string) ([]container.Record, error) {
	files, err := filepath.Glob(filepath.Join(globSafe(podsDir(stateDir)), "*", "*.json"))
	if err != nil {
		return nil, fmt.Errorf("find containers: %w", err)
	}
	var out []container.Record
	for _, f := range files {
		r, err := container.ReadRecord(f)
		if errors.Is(err, container.ErrEnded) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// globSafe quotes what Glob would take for a pattern.
func globSafe(path string) string {
	var b []byte
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			b = append(b, '\\')
		}
		b = append(b, path[i])
	}
	return string(b)
}

// Clean kills whatever containers a dead process left recorded in stateDir
// and removes their files. Call it only while no Kubelet uses stateDir.
func Clean(stateDir string) error {
	left, err := records(stateDir)
	if err != nil {
		return fmt.Errorf("clean %s: %w", stateDir, err)
	}
	var errs []error
	for _, r := range left {
		errs = append(errs, r.Kill())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean %s: %w", stateDir, err)
	}
	if err := os.RemoveAll(podsDir(stateDir)); err != nil {
		return fmt.Errorf("clean %s: %w", stateDir, err)
	}
	return nil
}
