// Command load sends requests at a steady rate over HTTP/1.1, each with an ID
// of its own, and writes down each one's fate. It runs until it is told to
// stop, ends what is open, and takes leave in its ledger: a load that was
// killed is seen. `load records` asks the load that runs in the same pod what
// became of its last requests. It knows nothing of the mesh.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/e2e/desk"
	"github.com/heddle-mesh/heddle/e2e/ledger"
)

const (
	askTime    = 10 * time.Second
	awaitPause = 200 * time.Millisecond // between looks at a server that is not there yet
	maxAnswer  = 64 << 10
	maxOpen    = 256        // requests under way at once; more count as failures
	maxIdle    = 16         // kept connections
	bodySize   = 1 << 10    // of each second request, which is a POST
	freshEach  = 7          // each such request has a connection of its own
	keep       = 20_000     // records that can be asked for
	inside     = "/records" // path of the records
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatalf("load: %v", err)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "records" {
		return records(args[1:])
	}
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	url := fs.String("url", "http://till:8080/pay", "where to")
	health := fs.String("await", "http://till:8080/healthz", "begin when this URL answers 200")
	rate := fs.Int("rate", 50, "requests a second")
	dir := fs.String("ledger", "", "folder for the ledger; empty: keep none")
	tell := fs.String("tell", "127.0.0.1:9900", "address for `load records`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	book, err := ledger.Open(*dir)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	l := &load{url: *url, prefix: fmt.Sprintf("%s-%d-", host, time.Now().UnixNano()), book: book,
		kept:  &http.Client{Timeout: askTime, Transport: &http.Transport{MaxIdleConnsPerHost: maxIdle}},
		fresh: &http.Client{Timeout: askTime, Transport: &http.Transport{DisableKeepAlives: true}}}
	s := &http.Server{Addr: *tell, Handler: http.HandlerFunc(l.tell), ReadHeaderTimeout: askTime}
	told := make(chan error, 1)
	go func() { told <- s.ListenAndServe() }()
	l.await(ctx, *health)
	l.run(ctx, time.Second/time.Duration(max(*rate, 1)))
	s.Close()
	if err := <-told; !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(err, book.Close())
	}
	return book.Close()
}

type load struct {
	url, prefix string
	book        *ledger.Book
	kept, fresh *http.Client
	mu          sync.Mutex // guards last
	last        []ledger.Entry
}

// await waits for the server to serve: what is not there yet cannot be lost.
func (l *load) await(ctx context.Context, url string) {
	for ctx.Err() == nil {
		resp, err := l.fresh.Get(url)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(awaitPause):
		}
	}
}

// run starts a request at each tick, whatever became of the earlier ones, and
// waits for all of them at the end.
func (l *load) run(ctx context.Context, every time.Duration) {
	var open sync.WaitGroup
	places := make(chan struct{}, maxOpen)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			open.Wait()
			l.book.Write(ledger.Entry{What: ledger.Bye, Count: n})
			return
		case <-tick.C:
		}
		id := fmt.Sprint(l.prefix, n)
		l.book.Write(ledger.Entry{What: ledger.Begin, ID: id})
		select {
		case places <- struct{}{}:
			open.Go(func() {
				defer func() { <-places }()
				l.end(l.ask(id, n))
			})
		default:
			l.end(ledger.Entry{ID: id, Err: "too many requests under way"})
		}
	}
}

func (l *load) ask(id string, n int) ledger.Entry {
	e, start := ledger.Entry{ID: id}, time.Now()
	client := l.kept
	if n%freshEach == 0 {
		client = l.fresh
	}
	method, body := http.MethodGet, []byte(nil)
	if n%2 == 1 {
		method, body = http.MethodPost, bytes.Repeat([]byte{'x'}, bodySize)
	}
	// Without a context: what was begun is ended, also on SIGTERM.
	req, err := http.NewRequest(method, l.url, bytes.NewReader(body))
	if err != nil {
		e.Err = err.Error()
		return e
	}
	req.Header.Set(desk.IDField, id)
	resp, err := client.Do(req)
	if err == nil {
		e.Status, e.Reason, e.By = resp.StatusCode, resp.Header.Get("X-Heddle-Reason"), resp.Header.Get("X-Served-By")
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		resp.Body.Close()
	}
	if err != nil {
		e.Status, e.Err = 0, err.Error()
	}
	e.Micros = time.Since(start).Microseconds()
	return e
}

func (l *load) end(e ledger.Entry) {
	e.What = ledger.End
	l.book.Write(e)
	e.At = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == keep {
		l.last = append(l.last[:0], l.last[keep/2:]...)
	}
	l.last = append(l.last, e)
}

// tell writes the records of requests that ended since a time.
func (l *load) tell(w http.ResponseWriter, r *http.Request) {
	since, err := time.Parse(time.RFC3339Nano, r.URL.Query().Get("since"))
	if err != nil || r.URL.Path != inside {
		http.Error(w, inside+"?since=TIME, RFC 3339", http.StatusBadRequest)
		return
	}
	l.mu.Lock()
	last := bytes.Buffer{}
	out := json.NewEncoder(&last)
	for _, e := range l.last {
		if e.At.After(since) {
			_ = out.Encode(e) // a buffer takes all
		}
	}
	l.mu.Unlock()
	w.Write(last.Bytes())
}

// records prints what the load of this pod tells.
func records(args []string) error {
	fs := flag.NewFlagSet("records", flag.ContinueOnError)
	since := fs.String("since", time.Time{}.Format(time.RFC3339), "requests that ended after this time, RFC 3339")
	at := fs.String("at", "127.0.0.1:9900", "where the load tells them")
	if err := fs.Parse(args); err != nil {
		return err
	}
	client := &http.Client{Timeout: askTime}
	resp, err := client.Get("http://" + *at + inside + "?since=" + *since)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("records: %s", resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
