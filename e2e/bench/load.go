package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// loadResult is what one run of the generator found.
type loadResult struct {
	Requests int           `json:"requests"`
	Errors   int           `json:"errors"`
	FirstErr string        `json:"first_error,omitempty"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
	CPU      time.Duration `json:"client_cpu_ns"` // of the generator while it counted
}

// runLoad is the closed-loop generator: each connection sends its next request
// when the answer is whole. It is for CPU per request at saturation; its
// percentiles are synthetic (they omit what waiting would have cost).
func runLoad(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	target := fs.String("target", "", "host:port")
	conns := fs.Int("connections", 32, "connections")
	warm := fs.Duration("warm", time.Second, "time before counting")
	length := fs.Duration("for", 5*time.Second, "time of counting")
	rate := fs.Int("rate", 0, "requests a second over all connections; 0: as fast as answers come")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *warm+*length+30*time.Second)
	defer cancel()
	from := time.Now().Add(*warm)
	w := &worker{target: *target, from: from, until: from.Add(*length)}
	if *rate > 0 {
		w.every = time.Second * time.Duration(*conns) / time.Duration(*rate)
	}
	var warmCPU atomic.Int64
	time.AfterFunc(time.Until(from), func() { warmCPU.Store(int64(ownCPU())) })
	parts := make([]part, *conns)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { parts[i] = w.run(ctx, time.Duration(i)*w.every/time.Duration(*conns)) })
	}
	wg.Wait()
	res := loadResult{Elapsed: *length, CPU: ownCPU() - time.Duration(warmCPU.Load())}
	var all []time.Duration
	for _, p := range parts {
		all = append(all, p.times...)
		if p.err != nil {
			if res.Errors++; res.FirstErr == "" {
				res.FirstErr = p.err.Error()
			}
		}
	}
	slices.Sort(all)
	if res.Requests = len(all); res.Requests > 0 {
		res.P50, res.P99 = all[len(all)/2], all[len(all)*99/100]
	}
	return json.NewEncoder(os.Stdout).Encode(res)
}

// ownCPU is the time this process has spent on a CPU, user and kernel.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type worker struct {
	target      string
	from, until time.Time
	every       time.Duration // 0: closed loop
}

type part struct {
	times []time.Duration
	err   error
}

var loadRequest = []byte("GET /bench HTTP/1.1\r\nHost: bench\r\nUser-Agent: heddle-bench\r\nAccept: */*\r\n" +
	"Accept-Encoding: identity\r\nAccept-Language: en\r\nCache-Control: no-cache\r\nX-Request-Id: 0123456789abcdef\r\n" +
	"X-Forwarded-Proto: http\r\nX-Tenant: weavers\r\nCookie: session=abcdefghijklmnopqrstuvwxyz\r\nPragma: no-cache\r\n\r\n")

// run serves one connection; with a rate, a request's time counts from when it
// was meant to start.
func (w *worker) run(ctx context.Context, phase time.Duration) (p part) {
	c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", w.target)
	if err != nil {
		return part{err: err}
	}
	defer c.Close()
	c.SetDeadline(w.until.Add(20 * time.Second))
	r := bufio.NewReaderSize(c, 16<<10)
	p.times = make([]time.Duration, 0, 1<<16)
	next := time.Now().Add(phase)
	for {
		start := time.Now()
		if w.every > 0 {
			if d := time.Until(next); d > 0 {
				time.Sleep(d) // the schedule itself, not synchronisation
			}
			start, next = next, next.Add(w.every)
		}
		if start.After(w.until) {
			return p
		}
		if _, err := c.Write(loadRequest); err != nil {
			p.err = err
			return p
		}
		if err := readAnswer(r); err != nil {
			p.err = err
			return p
		}
		if !start.Before(w.from) {
			p.times = append(p.times, time.Since(start))
		}
	}
}

// readAnswer reads one answer that gives its length.
func readAnswer(r *bufio.Reader) error {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first {
			if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
				return fmt.Errorf("answer %q", line)
			}
			continue
		}
		if len(line) == 0 {
			break
		}
		if k, v, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(k, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(v))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("answer without a length")
	}
	_, err := io.CopyN(io.Discard, r, int64(length))
	return err
}

// runBackend answers every request with 1 KB, as cheaply as Go can without a
// server library, so that the proxies are what is measured.
func runBackend(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("backend", flag.ContinueOnError)
	listen := fs.String("listen", ":8080", "address to listen on")
	if err := fs.Parse(args); err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	body := bytes.Repeat([]byte("heddle's "), 128)[:1024]
	answer := append([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\nServer: bench\r\n"+
		"Date: Tue, 01 Dec 2026 12:00:00 GMT\r\nCache-Control: no-store\r\nVary: Accept-Encoding\r\n\r\n"), body...)
	var open sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		open.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			r := bufio.NewReaderSize(c, 8<<10)
			for {
				line, err := r.ReadSlice('\n')
				if err != nil {
					return
				}
				if len(line) > 2 {
					continue
				}
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		})
	}
	open.Wait()
	return nil
}
