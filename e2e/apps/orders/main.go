// Command orders is the shop's second service: HTTP, and for each order it
// asks the store room, over TCP, or over HTTP if it is given a URL. It knows
// nothing of the mesh.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/e2e/desk"
	"github.com/heddle-mesh/heddle/e2e/ledger"
)

const (
	maxIdle    = 8               // kept connections to the store room
	askTime    = 3 * time.Second // for one question
	maxAnswer  = 64 << 10
	shutdown   = 10 * time.Second
	headerTime = 5 * time.Second
)

func main() {
	listen := flag.String("listen", ":8080", "address to listen on")
	stock := flag.String("stock", "stock:6000", "the store room, host:port")
	stockURL := flag.String("stock-url", "", "the store room over HTTP, such as http://stock:6001; empty: by TCP")
	dir := flag.String("ledger", "", "folder for the ledger; empty: keep none")
	flag.Parse()
	book, err := ledger.Open(*dir)
	if err != nil {
		log.Fatalf("orders: %v", err)
	}
	defer book.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	room := &storeRoom{address: *stock, url: *stockURL, idle: make(chan *line, maxIdle),
		client: &http.Client{Timeout: askTime, Transport: &http.Transport{MaxIdleConnsPerHost: maxIdle}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /orders/{item}", room.order)
	s := &http.Server{Addr: *listen, Handler: desk.New(book).Wrap(mux), ReadHeaderTimeout: headerTime}
	ended := make(chan error, 1)
	go func() { ended <- s.ListenAndServe() }()
	select {
	case err := <-ended:
		log.Fatalf("orders: listen on %s: %v", *listen, err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), shutdown)
	defer cancel()
	if err := s.Shutdown(last); err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Printf("orders: shut down: %v", err)
	}
}

// storeRoom keeps a few connections to the store room, as a database driver
// does. A question has no effects, so one that breaks off is asked again: once
// on a new connection where a kept one was dead, and once more after that.
type storeRoom struct {
	url     string // empty: by TCP
	client  *http.Client
	address string
	idle    chan *line
}

type line struct {
	net.Conn
	r *bufio.Reader
}

func (s *storeRoom) order(w http.ResponseWriter, r *http.Request) {
	item := r.PathValue("item")
	ask := s.ask
	if s.url != "" {
		ask = func(ctx context.Context, item string) (string, error) { return s.askHTTP(ctx, item, r.Header) }
	}
	answer, err := ask(r.Context(), item)
	if err != nil {
		http.Error(w, fmt.Sprintf("store room: %v", err), http.StatusBadGateway)
		return
	}
	host, _ := os.Hostname()
	fmt.Fprintf(w, "order from %s: %s\n", host, answer)
}

// askHTTP asks once: what is to be tried again is the mesh's affair.
func (s *storeRoom) askHTTP(ctx context.Context, item string, from http.Header) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/count/"+item, nil)
	if err != nil {
		return "", err
	}
	desk.Forward(req.Header, from)
	resp, err := s.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %.200s", resp.StatusCode, body)
	}
	return strings.TrimSpace(string(body)), nil
}

func (s *storeRoom) ask(ctx context.Context, item string) (string, error) {
	select {
	case kept := <-s.idle:
		if answer, err := s.askOn(kept, item); err == nil {
			return answer, nil
		}
	default:
	}
	answer, err := s.askAnew(ctx, item)
	if err != nil && ctx.Err() == nil {
		answer, err = s.askAnew(ctx, item)
	}
	return answer, err
}

func (s *storeRoom) askAnew(ctx context.Context, item string) (string, error) {
	d := net.Dialer{Timeout: askTime}
	c, err := d.DialContext(ctx, "tcp", s.address)
	if err != nil {
		return "", err
	}
	return s.askOn(&line{c, bufio.NewReader(c)}, item)
}

func (s *storeRoom) askOn(l *line, item string) (string, error) {
	l.SetDeadline(time.Now().Add(askTime))
	if _, err := fmt.Fprintf(l, "COUNT %s\n", item); err != nil {
		l.Close()
		return "", err
	}
	answer, err := l.r.ReadString('\n')
	if err != nil {
		l.Close()
		return "", err
	}
	select {
	case s.idle <- l:
	default:
		l.Close()
	}
	return strings.TrimSpace(answer), nil
}
