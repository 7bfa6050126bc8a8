package programs

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/heddle-mesh/heddle/e2e/cluster/store"
)

// RootFS gives a folder with Debian for a node. It takes root, and the package
// debootstrap.
func (b Builder) RootFS(ctx context.Context) (string, error) {
	key, err := store.Key("rootfs", 1, debian, runtime.GOARCH, nodePackages)
	if err != nil {
		return "", err
	}
	dir, err := b.Store.Get(ctx, "rootfs", key, func(ctx context.Context, dir string) error {
		b.Say("rootfs: debootstrap of Debian %s, about 1 min", debian)
		defer b.heartbeat("rootfs")()
		cmd := exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--include="+strings.Join(nodePackages, ","), debian, filepath.Join(dir, "root"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("debootstrap: %w\n%s", err, lastLines(out))
		}
		return nil
	})
	return filepath.Join(dir, "root"), err
}
