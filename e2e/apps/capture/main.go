// Command capture writes down all packets of a node, in a pod that has the
// node's network and CAP_NET_RAW, so that tests can count what was sealed. It
// ends on SIGTERM, and leaves beside the capture what it wrote and missed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

func main() {
	file := flag.String("file", "", "pcap file to write")
	stats := flag.String("stats", "", "file for what was written and missed; while the capture runs it is empty")
	running := flag.Bool("is-running", false, "only say whether a capture runs that has these stats")
	most := flag.Int64("max-bytes", 128<<20, "size of the file; what is beyond counts as dropped")
	flag.Parse()
	if *running {
		if info, err := os.Stat(*stats); err != nil || info.Size() != 0 {
			log.Fatalf("no capture is running: %v", err)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := capture(ctx, *file, *stats, *most); err != nil {
		log.Fatalf("capture: %v", err)
	}
}

func capture(ctx context.Context, file, stats string, most int64) error {
	if err := os.Remove(stats); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := fabric.Capture(ctx, fabric.CaptureConfig{
		Interface: fabric.AllInterfaces, File: file, MaxBytes: most,
		OnStart: func() {
			if err := os.WriteFile(stats, nil, 0o644); err != nil {
				cancel(err)
			}
		},
	})
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("say that it runs: %w", err)
	}
	s.Dropped += s.Packets - s.Written
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(stats, b, 0o644)
}
