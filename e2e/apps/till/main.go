// Command till is a server of the tests on a cluster: it takes requests with
// an ID over HTTP, writes down each, answers who it is, and fails on demand
// (e2e/desk). It depends on no other service and knows nothing of the
// mesh.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/e2e/desk"
	"github.com/heddle-mesh/heddle/e2e/ledger"
)

const (
	shutdown   = 10 * time.Second // for requests that are open on SIGTERM
	headerTime = 5 * time.Second
)

func main() {
	listen := flag.String("listen", ":8080", "address to listen on")
	dir := flag.String("ledger", "", "folder for the ledger; empty: keep none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := serve(ctx, *listen, *dir); err != nil {
		log.Fatalf("till: %v", err)
	}
}

func serve(ctx context.Context, listen, dir string) error {
	book, err := ledger.Open(dir)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Served-By", host)
		fmt.Fprintf(w, "%s paid %s\n", host, r.Header.Get(desk.IDField))
	})
	s := &http.Server{Addr: listen, Handler: desk.New(book).Wrap(mux), ReadHeaderTimeout: headerTime}
	ended := make(chan error, 1)
	go func() { ended <- s.ListenAndServe() }()
	select {
	case err := <-ended:
		return errors.Join(fmt.Errorf("listen on %s: %w", listen, err), book.Close())
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), shutdown)
	defer cancel()
	return errors.Join(s.Shutdown(last), book.Close())
}
