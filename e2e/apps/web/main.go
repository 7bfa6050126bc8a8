// Command web is the shop's front: HTTP, and each page asks the orders
// service over HTTP. It knows nothing of the mesh.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	askTime    = 5 * time.Second // for one call to orders
	maxAnswer  = 64 << 10
	maxIdle    = 32
	shutdown   = 10 * time.Second
	headerTime = 5 * time.Second
)

func main() {
	listen := flag.String("listen", ":8080", "address to listen on")
	orders := flag.String("orders", "http://orders:8080", "the orders service")
	dir := flag.String("ledger", "", "folder for the ledger; empty: keep none")
	flag.Parse()
	book, err := ledger.Open(*dir)
	if err != nil {
		log.Fatalf("web: %v", err)
	}
	defer book.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	client := &http.Client{Timeout: askTime, Transport: &http.Transport{MaxIdleConnsPerHost: maxIdle}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /buy/{item}", func(w http.ResponseWriter, r *http.Request) { buy(w, r, client, *orders) })
	s := &http.Server{Addr: *listen, Handler: desk.New(book).Wrap(mux), ReadHeaderTimeout: headerTime}
	ended := make(chan error, 1)
	go func() { ended <- s.ListenAndServe() }()
	select {
	case err := <-ended:
		log.Fatalf("web: listen on %s: %v", *listen, err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), shutdown)
	defer cancel()
	if err := s.Shutdown(last); err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Printf("web: shut down: %v", err)
	}
}

func buy(w http.ResponseWriter, r *http.Request, client *http.Client, orders string) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, orders+"/orders/"+r.PathValue("item"), nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	desk.Forward(req.Header, r.Header)
	resp, err := client.Do(req)
	if err != nil {
		http.Error(w, fmt.Sprintf("orders: %v", err), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		http.Error(w, fmt.Sprintf("orders: %v", err), http.StatusBadGateway)
		return
	}
	w.WriteHeader(resp.StatusCode)
	fmt.Fprintf(w, "bought: %s", body)
}
