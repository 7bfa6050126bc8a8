package kind

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/cell"
)

//go:embed kind.yaml
var config string

const (
	// Name of the cluster; its nodes are heddle-control-plane, heddle-worker
	// and heddle-worker2. Every run has a dockerd of its own, so one name does.
	Name = "heddle"

	// createLimit bounds `kind create`, which takes half a minute.
	createLimit = 5 * time.Minute
	// readyLimit bounds what comes after it, which takes seconds.
	readyLimit = 2 * time.Minute
)

// nodes are the names of the nodes, the control plane first.
var nodes = []string{Name + "-control-plane", Name + "-worker", Name + "-worker2"}

// Cluster is the cluster in a cell.
type Cluster struct {
	Cell *cell.Cell
	Dir  *cell.Dir
}

// Nodes are the names of its nodes, the control plane first.
func (c Cluster) Nodes() []string { return slices.Clone(nodes) }

// Prepare makes dockerd as good as new: containers and volumes of a run that
// was killed are gone, the node image is there.
func (c Cluster) Prepare(ctx context.Context, image NodeImage) error {
	if err := c.Delete(ctx); err != nil {
		return err
	}
	if _, err := c.Cell.Output(ctx, "docker", "image", "inspect", image.Ref); err == nil {
		return nil
	}
	// Another version's image is only in the way.
	if _, err := c.Cell.Output(ctx, "docker", "image", "prune", "-af"); err != nil {
		return err
	}
	_, err := c.Cell.Output(ctx, "docker", "load", "-i", image.Tar)
	return err
}

// Create makes the cluster. Its nodes see the folder images, for Load.
func (c Cluster) Create(ctx context.Context, image NodeImage, images string) error {
	file := c.Dir.Path("kind.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(config, "IMAGES", images)), 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	cmd := c.Cell.Command(ctx, "kind", "create", "cluster", "--name", Name, "--image", image.Ref, "--config", file, "--kubeconfig", c.Dir.Path("kubeconfig"), "--retain")
	log, err := os.Create(c.Dir.Path("logs/kind.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name())
		return errors.Join(fmt.Errorf("kind create cluster: %w\n%s", err, said), ctx.Err())
	}
	return nil
}

// Ready waits until all nodes are.
func (c Cluster) Ready(ctx context.Context) error {
	_, err := c.Cell.Output(ctx, "kubectl", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout="+readyLimit.String())
	return err
}

// Load loads all images of the archive file, in the folder given to Create,
// into all nodes.
func (c Cluster) Load(ctx context.Context, file string) error {
	return c.each(func(node string) error {
		_, err := c.Cell.Output(ctx, "docker", "exec", node, "ctr", "-n", "k8s.io", "images", "import", "/heddle-images/"+file)
		return err
	})
}

// Delete removes the nodes, as many as there are.
func (c Cluster) Delete(ctx context.Context) error {
	ids, err := c.Cell.Output(ctx, "docker", "ps", "-aq")
	if err != nil || ids == "" {
		return err
	}
	_, err = c.Cell.Output(ctx, append([]string{"docker", "rm", "-f", "-v"}, strings.Fields(ids)...)...)
	return err
}

// each does something for all nodes at once.
func (c Cluster) each(do func(node string) error) error {
	errs := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { errs <- do(n) }()
	}
	var all []error
	for range nodes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
