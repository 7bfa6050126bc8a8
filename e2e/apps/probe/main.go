// Command probe is the test pods' one program: `probe serve` answers on many
// ports in many ways, the other subcommands are clients that print one line of
// JSON about what they saw. It knows nothing of the mesh.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// seen is what a client saw.
type seen struct {
	OK      bool     `json:"ok"`
	Err     string   `json:"err,omitempty"`
	Status  int      `json:"status,omitempty"`
	Reason  string   `json:"reason,omitempty"` // x-heddle-reason
	Body    string   `json:"body,omitempty"`
	Bytes   int64    `json:"bytes,omitempty"`
	Count   int      `json:"count,omitempty"`
	Failed  int      `json:"failed,omitempty"`
	Millis  int64    `json:"millis"`
	Remote  string   `json:"remote,omitempty"`
	Answers []string `json:"answers,omitempty"`
	// Failures are the first ones: when, the error, status and reason.
	Failures []string `json:"failures,omitempty"`
}

// budget bounds every client, whatever it does.
const budget = 120 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "probe: want a subcommand: serve, or one of the clients")
		os.Exit(2)
	}
	name, args := os.Args[1], os.Args[2:]
	if name == "serve" {
		if err := serve(ctx, args); err != nil {
			fmt.Fprintf(os.Stderr, "probe serve: %v\n", err)
			os.Exit(1)
		}
		return
	}
	client, ok := clients[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "probe: no subcommand %q\n", name)
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	start := time.Now()
	s := client(ctx, args)
	s.Millis = time.Since(start).Milliseconds()
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		os.Exit(1)
	}
}
