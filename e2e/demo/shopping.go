package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/e2e/observe"
	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

// baseline measures the same shop without a mesh.
func (d *demo) baseline(ctx context.Context) error {
	say("shopping for 5s without a mesh, to compare")
	b, err := d.purchases(ctx, "baseline", endLimit)
	if err != nil {
		return err
	}
	d.report.without = b
	return d.lab.Remove("baseline.yaml")
}

// shop is the main part: load, a kill, a scale-up, and all the looking.
func (d *demo) shop(ctx context.Context) error {
	stop, err := d.capture(ctx)
	if err != nil {
		return err
	}
	watch := newWatch(d.lab)
	watched := make(chan struct{})
	watchCtx, endWatch := context.WithCancel(ctx)
	go func() { watch.run(watchCtx); close(watched) }()
	defer func() { endWatch(); <-watched }()

	say("shopping for %v through the mesh", d.shopping)
	if err := d.write("shopper.yaml", ""); err != nil {
		return errors.Join(err, stop())
	}
	begun := time.Now()
	err = d.disturb(ctx, begun)
	bought, perr := d.purchases(ctx, "shop", d.shopping+endLimit)
	if err = errors.Join(err, perr); err != nil {
		return errors.Join(err, stop())
	}
	d.report.through = bought
	err = d.edges(ctx)
	endWatch()
	<-watched
	d.report.changes, d.report.sidecars = watch.changes(ctx)
	return errors.Join(err, stop(), d.observe())
}

// disturb kills a stock replica, with everything in it, and scales orders.
func (d *demo) disturb(ctx context.Context, begun time.Time) error {
	if err := sleepUntil(ctx, begun.Add(d.killAfter)); err != nil {
		return err
	}
	pods, err := d.lab.Pods("shop", "stock-")
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Meshed {
			say("kill -9 of all of %s", p.Name)
			d.report.killed = p.Name
			if err := d.lab.Kill(p, ""); err != nil {
				return err
			}
			break
		}
	}
	if err := sleepUntil(ctx, begun.Add(d.scaleAfter)); err != nil {
		return err
	}
	say("scale orders from 2 to 4")
	return d.write("orders.yaml", "4")
}

func sleepUntil(ctx context.Context, at time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(at)):
		return nil
	}
}

// purchases waits for a shopper to end and reads its log.
func (d *demo) purchases(ctx context.Context, namespace string, limit time.Duration) ([]purchase, error) {
	err := d.lab.Wait(ctx, "the shopper of "+namespace+" to end", limit, func(s *lab.Status) bool {
		for _, p := range s.Pods {
			if p.Namespace == namespace && p.Name == "shopper" {
				return p.Phase == "Succeeded" || p.Phase == "Failed"
			}
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	text, err := d.lab.Logs(ctx, namespace, "shopper", "shopper")
	if err != nil {
		return nil, err
	}
	var all []purchase
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var p purchase
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return nil, fmt.Errorf("the shopper's log: %q: %w", lines.Text(), err)
		}
		all = append(all, p)
	}
	return all, lines.Err()
}

// capture writes down what passes each node's bridge, until stop is called.
func (d *demo) capture(ctx context.Context) (stop func() error, err error) {
	net, err := d.lab.Network()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	nodes := net.Config().Nodes
	dir := filepath.Join(d.lab.Bin, "captures")
	if err := clearCaptures(dir); err != nil {
		cancel()
		return nil, err
	}
	errs := make([]error, len(nodes))
	var running, started sync.WaitGroup
	for i, n := range nodes {
		file := filepath.Join(dir, d.lab.Name+"-"+n.Name+".pcap")
		d.report.captures = append(d.report.captures, capture{file: file, node: n.Name, here: n.PodCIDRs})
		started.Add(1)
		once := sync.OnceFunc(started.Done)
		running.Go(func() {
			defer once()
			var s fabric.CaptureStats
			s, errs[i] = fabric.Capture(ctx, fabric.CaptureConfig{NetNS: net.NodeNetNS(n.Name), File: file, OnStart: once})
			d.report.captures[i].stats = s
		})
	}
	started.Wait()
	return sync.OnceValue(func() error {
		cancel()
		running.Wait()
		return errors.Join(errs...)
	}), nil
}

// clearCaptures makes room for a run's captures, which stay for whoever wants
// to look: those of runs that have ended go.
func clearCaptures(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "demo-*.pcap"))
	if err != nil {
		return err
	}
	for _, f := range files {
		pid := strings.Split(filepath.Base(f), "-")[1]
		if _, err := os.Stat("/proc/" + pid); err == nil {
			continue
		}
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// observe reads the captures.
func (d *demo) observe() (err error) {
	var all []observe.Capture
	for _, c := range d.report.captures {
		all = append(all, observe.Capture{File: c.file, PodCIDRs: c.here})
	}
	d.report.seen, err = observe.Count(d.item, observe.Window{}, all)
	return err
}

// edges asks every sidecar whom it served.
func (d *demo) edges(ctx context.Context) error {
	pods, err := d.lab.Pods("shop", "")
	if err != nil {
		return err
	}
	d.report.edges = map[edge]*traffic{}
	for _, p := range pods {
		if !p.Meshed || p.Phase != "Running" {
			continue
		}
		m, err := d.lab.Metrics(ctx, p, redirect.AdminPort)
		if err != nil {
			return err
		}
		d.report.addEdges(p.Name, m)
	}
	return nil
}
