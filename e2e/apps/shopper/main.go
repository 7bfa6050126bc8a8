// Command shopper buys in the shop at a steady rate and writes what became of
// each purchase as lines of JSON. It is the demo's customer and knows nothing
// of the mesh. It runs until it is told to stop, or for -for.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Purchase is one line of the shopper's log.
type purchase struct {
	Start   time.Time `json:"start"`   // when it was meant to start
	Micros  int64     `json:"micros"`  // from then to the last byte
	Status  int       `json:"status"`  // 0: no answer
	Reason  string    `json:"reason"`  // x-heddle-reason, when a sidecar answered
	Err     string    `json:"err"`     // why there was no answer, or a wrong one
	Replica string    `json:"replica"` // the store room's replica that served it
}

const (
	askTime   = 10 * time.Second
	maxAnswer = 64 << 10
	maxOpen   = 256 // purchases under way at once; more count as failures
)

func main() {
	url := flag.String("url", "http://web:8080/buy/", "where to buy; the item is appended")
	item := flag.String("item", "thread", "what to buy; every answer must hold it")
	rate := flag.Int("rate", 100, "purchases a second")
	length := flag.Duration("for", 0, "how long; 0 until told to stop")
	out := flag.String("out", "", "file for the log; empty is standard output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if *length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *length)
		defer cancel()
	}
	w := io.Writer(os.Stdout)
	if *out != "" {
		f, err := os.Create(*out)
		if err != nil {
			log.Fatalf("shopper: %v", err)
		}
		defer f.Close()
		w = f
	}
	s := &shopper{url: *url + *item, item: *item, log: json.NewEncoder(w),
		client: &http.Client{Timeout: askTime, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
	s.run(ctx, time.Second/time.Duration(max(*rate, 1)))
}

type shopper struct {
	url, item string
	client    *http.Client
	mu        sync.Mutex // guards log
	log       *json.Encoder
}

// run starts a purchase at each tick of a fixed schedule, whatever became of
// the earlier ones, and waits for all of them at the end.
func (s *shopper) run(ctx context.Context, every time.Duration) {
	var open sync.WaitGroup
	defer open.Wait()
	places := make(chan struct{}, maxOpen)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case start := <-tick.C:
			select {
			case places <- struct{}{}:
				open.Go(func() {
					defer func() { <-places }()
					s.write(s.buy(start, n))
				})
			default:
				s.write(purchase{Start: start, Err: "too many purchases under way"})
			}
		}
	}
}

func (s *shopper) buy(start time.Time, n int) purchase {
	p := purchase{Start: start}
	fail := func(err error) purchase {
		p.Err, p.Micros = err.Error(), time.Since(start).Microseconds()
		return p
	}
	req, err := http.NewRequest(http.MethodGet, s.url, nil)
	if err != nil {
		return fail(err)
	}
	req.Header.Set("X-Request-Id", fmt.Sprintf("%d-%d", os.Getpid(), n))
	resp, err := s.client.Do(req)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	p.Status, p.Reason = resp.StatusCode, resp.Header.Get("X-Heddle-Reason")
	if err != nil {
		return fail(err)
	}
	if p.Status != http.StatusOK || !strings.Contains(string(body), s.item) {
		return fail(fmt.Errorf("answer %d: %.200s", p.Status, body))
	}
	words := strings.Fields(string(body))
	p.Replica, p.Micros = words[len(words)-1], time.Since(start).Microseconds()
	return p
}

func (s *shopper) write(p purchase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.log.Encode(p); err != nil {
		log.Fatalf("shopper: write the log: %v", err)
	}
}
