// Command capture writes down all packets of a node, in a pod that has the
// node's network and CAP_NET_RAW, so that tests can count what was sealed. It
// ends on SIGTERM, and prints what it wrote and what it missed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

func main() {
	file := flag.String("file", "", "pcap file to write")
	ready := flag.String("ready", "", "file that is made once packets are taken")
	most := flag.Int64("max-bytes", 128<<20, "size of the file; what is beyond counts as lost")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	stats, err := fabric.Capture(ctx, fabric.CaptureConfig{
		Interface: fabric.AllInterfaces, File: *file, MaxBytes: *most,
		OnStart: func() {
			if err := os.WriteFile(*ready, nil, 0o644); err != nil {
				log.Fatalf("capture: %v", err)
			}
		},
	})
	if err != nil {
		log.Fatalf("capture: %v", err)
	}
	stats.Dropped += stats.Packets - stats.Written
	if err := json.NewEncoder(os.Stdout).Encode(stats); err != nil {
		log.Fatalf("capture: %v", err)
	}
}
