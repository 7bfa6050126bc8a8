package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/kind"
	"github.com/heddle-mesh/heddle/e2e/cluster/programs"
	"github.com/heddle-mesh/heddle/e2e/cluster/store"
)

// Where the node image comes from.
const (
	nodeAuto  = "auto"  // stock if this machine's docker gives it, else local
	nodeStock = "stock" // kindest/node, through this machine's own docker
	nodeLocal = "local" // assembled from Debian and Go modules
)

const (
	// askLimit is for this machine's docker to say whether it is there.
	askLimit = 5 * time.Second
	// pullLimit is for a gigabyte from a registry.
	pullLimit = 10 * time.Minute
)

func (s *session) nodeImage(ctx context.Context) (kind.NodeImage, error) {
	if s.node == nodeLocal {
		return kind.LocalImage(ctx, s.build)
	}
	image, err := s.stockImage(ctx)
	if err == nil || s.node == nodeStock || ctx.Err() != nil {
		return image, err
	}
	reason, _, _ := strings.Cut(err.Error(), "\n")
	s.say("no stock node image (%s): assembling one", reason)
	return kind.LocalImage(ctx, s.build)
}

// stockImage gets the image that kind was released with from this machine's
// own docker. The cell's dockerd, which reaches nothing, loads it from a file.
func (s *session) stockImage(ctx context.Context) (kind.NodeImage, error) {
	key, err := store.Key(programs.StockNode)
	if err != nil {
		return kind.NodeImage{}, err
	}
	ref, _, _ := strings.Cut(programs.StockNode, "@")
	asked, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if err := docker(asked, "version"); err != nil {
		return kind.NodeImage{}, fmt.Errorf("this machine's docker does not answer: %w", err)
	}
	dir, err := s.build.Store.Get(ctx, "stock", key, func(ctx context.Context, dir string) error {
		ctx, cancel := context.WithTimeout(ctx, pullLimit)
		defer cancel()
		if docker(ctx, "image", "inspect", programs.StockNode) != nil {
			if err := docker(ctx, "pull", programs.StockNode); err != nil {
				return err
			}
		}
		if err := docker(ctx, "tag", programs.StockNode, ref); err != nil {
			return err
		}
		return docker(ctx, "save", "-o", filepath.Join(dir, "node.tar"), ref)
	})
	return kind.NodeImage{Tar: filepath.Join(dir, "node.tar"), Ref: ref}, err
}

// docker runs a command of this machine's own docker.
func docker(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("docker %s: %s: %w", args[0], strings.TrimSpace(string(out)), err), ctx.Err())
	}
	return nil
}
