package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/e2e/cluster/cell"
	"github.com/heddle-mesh/heddle/e2e/cluster/kind"
	"github.com/heddle-mesh/heddle/e2e/cluster/programs"
	"github.com/heddle-mesh/heddle/e2e/cluster/store"
)

const (
	// slots is how many clusters there can be at once: each takes two to three
	// gigabytes of memory and, in the cache, its own data of dockerd.
	slots = 4
	// downTime is for taking everything away; then it is taken by force.
	downTime = 30 * time.Second
	// dumpTime is for telling what a failed run looked like.
	dumpTime = time.Minute

	archive = "images.tar" // in the folder that all nodes see
)

// session is one `make e2e`.
type session struct {
	options
	out    io.Writer
	say    func(format string, args ...any)
	phases phases

	build   programs.Builder
	dir     *cell.Dir
	cell    *cell.Cell
	cluster kind.Cluster
	tests   []folder
	jaeger  string // folder of its program
}

func newSession(out io.Writer, o options) *session {
	s := &session{options: o, out: out, say: sayTo(out)}
	s.build.Say = s.say
	return s
}

func (s *session) run(ctx context.Context) (err error) {
	start := time.Now()
	if err := s.look(ctx); err != nil {
		return err
	}
	if s.dir, err = cell.Claim(cell.Runs); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.leave(ctx))
		s.phases.print(s.out, time.Since(start))
	}()
	if err := s.up(ctx); err != nil {
		return err
	}
	for _, f := range s.tests {
		s.say("e2e/%s", f.name)
		end := s.phases.begin("test " + f.name)
		failed := s.runTests(ctx, f)
		end()
		if failed != nil {
			s.dump(ctx, f.name)
		}
		if err = errors.Join(err, failed); ctx.Err() != nil {
			return err
		}
	}
	return err
}

// look finds out what can be known before anything is made.
func (s *session) look(ctx context.Context) (err error) {
	for _, p := range []string{"dockerd", "docker", "nsenter", "runc"} {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Errorf("a cluster takes %s: %w (on Debian: apt-get install docker.io)", p, err)
		}
	}
	if !s.notests {
		if s.tests, err = findTests(ctx, s.options.run); err != nil {
			return err
		}
	}
	was, err := cell.AllowInotify()
	if err != nil {
		return fmt.Errorf("allow inotify for all nodes: %w", err)
	}
	if was > 0 {
		s.say("fs.inotify.max_user_instances was %d on this machine, too few for the nodes: raised", was)
	}
	root, err := store.Root()
	if err != nil {
		return err
	}
	s.build.Store = store.New(filepath.Join(root, "e2e"), s.say)
	alive, err := cell.Reap(cell.Runs)
	for _, f := range alive {
		if f.Kept {
			s.say("cluster %[1]s was kept; remove it with: %[2]s/%[1]s/tools/self remove %[1]s", f.ID, cell.Runs)
		}
	}
	return err
}

// up makes the cluster, with the images of ours loaded.
func (s *session) up(ctx context.Context) error {
	end := s.phases.begin("programs and node image")
	node, err := s.nodeImage(ctx)
	if err == nil {
		err = s.tools(ctx)
	}
	end()
	if err != nil {
		return err
	}
	compiled := make(chan error, 1)
	go func() {
		defer s.phases.begin("compiling tests (meanwhile)")()
		compiled <- s.compile(ctx)
	}()
	err = s.nodes(ctx, node)
	return errors.Join(err, <-compiled)
}

// compile compiles the tests, if there are any.
func (s *session) compile(ctx context.Context) error {
	if len(s.tests) == 0 {
		return nil
	}
	return compileTests(ctx, s.tests)
}

// tools gives the cluster its kubectl, its kind and our CLI, and makes Jaeger.
func (s *session) tools(ctx context.Context) (err error) {
	if s.jaeger, err = s.build.Build(ctx, programs.JaegerSet); err != nil {
		return err
	}
	for _, set := range []programs.Set{programs.Kubectl, programs.Kind} {
		dir, err := s.build.Build(ctx, set)
		if err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join(dir, string(set)), s.dir.Path("tools/"+string(set))); err != nil {
			return err
		}
	}
	return store.CopyFile(s.dir.Path("bin/heddle"), filepath.Join(s.bin, "heddle"))
}

// nodes starts dockerd and the nodes and loads the images.
func (s *session) nodes(ctx context.Context, node kind.NodeImage) error {
	end := s.phases.begin("dockerd")
	slot, lock, err := s.build.Store.Claim("slots", slots)
	if err != nil {
		return err
	}
	defer lock.Close() // the cell has a copy
	images := filepath.Join(slot, "images")
	if err := os.MkdirAll(images, 0o755); err != nil {
		return err
	}
	archived := sync.OnceValue(func() error { return s.archive(images) })
	go archived()    // it takes a while: meanwhile the nodes come up
	defer archived() // it writes where another run may, once we let go
	s.cell, err = cell.Start(ctx, cell.Config{Dir: s.dir, Data: filepath.Join(slot, "docker"), Hold: []*os.File{lock}})
	if err != nil {
		return err
	}
	s.cluster = kind.Cluster{Cell: s.cell, Dir: s.dir}
	if err := s.cluster.Prepare(ctx, node); err != nil {
		return err
	}
	end()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"kind create cluster", func() error { return s.cluster.Create(ctx, node, images) }},
		{"pod network", func() error { return s.cluster.Network(ctx) }},
		{"images into the nodes", func() error {
			if err := archived(); err != nil {
				return err
			}
			return s.cluster.Load(ctx, archive)
		}},
		{"nodes ready", func() error { return s.cluster.Ready(ctx) }},
	} {
		end := s.phases.begin(step.name)
		err := step.do()
		end()
		if err != nil {
			return err
		}
	}
	s.say("cluster %s is up", s.dir.ID())
	return nil
}

// archive writes the images of ours into the folder that all nodes see.
func (s *session) archive(dir string) error {
	images, names, err := testImages(s.bin, s.jaeger)
	if err != nil {
		return err
	}
	if err := writeArchive(filepath.Join(dir, archive), images...); err != nil {
		return err
	}
	return writeNames(s.dir.Path("images.json"), names)
}

const lookAround = `
The cluster stays. Look around:
  %[1]s/in kubectl get pods -A -o wide
  %[1]s/in docker exec -it heddle-worker bash
  %[1]s/in go test -tags e2e -count=1 -v ./e2e/NAME/
Then:
  %[1]s/tools/self remove %[2]s
`

// leave takes the cluster away, or leaves it where it was asked to.
func (s *session) leave(ctx context.Context) error {
	defer s.phases.begin("taking it away")()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTime)
	defer cancel()
	if s.cell == nil {
		return s.dir.Remove()
	}
	if s.keep {
		fmt.Fprintf(s.out, lookAround, s.dir.Path(""), s.dir.ID())
		return s.cell.Keep()
	}
	if err := s.cluster.Delete(ctx); err != nil {
		s.say("the nodes' disks are left for the next run to remove: %v", err)
	}
	return errors.Join(s.cell.End(), s.dir.Remove())
}
