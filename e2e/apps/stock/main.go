// Command stock is the shop's store room: a TCP server with a line protocol.
// Each line "COUNT <item>" is answered by "<item> <count> <replica>"; "QUIT"
// ends the connection. With -http it answers GET /count/<item> as well. It
// knows nothing of the mesh.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/heddle-mesh/heddle/e2e/desk"
	"github.com/heddle-mesh/heddle/e2e/ledger"
	"github.com/heddle-mesh/heddle/internal/run"
)

const (
	maxLine  = 1024             // bytes of one request
	idleTime = 5 * time.Minute  // a connection that asks nothing is closed
	lastCall = 10 * time.Second // on SIGTERM open connections may ask this long

	headerTime = 5 * time.Second
)

func main() {
	listen := flag.String("listen", ":6000", "address to listen on")
	overHTTP := flag.String("http", "", "address for HTTP, such as :6001; empty: none")
	dir := flag.String("ledger", "", "folder for the ledger of HTTP requests; empty: keep none")
	flag.Parse()
	book, err := ledger.Open(*dir)
	if err != nil {
		log.Fatalf("stock: %v", err)
	}
	defer book.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	g := run.NewGroup(ctx)
	g.Go("stock", func(ctx context.Context) error { return serve(ctx, *listen) })
	if *overHTTP != "" {
		g.Go("stock", func(ctx context.Context) error { return serveHTTP(ctx, *overHTTP, book) })
	}
	if err := g.Wait(); err != nil {
		log.Fatal(err)
	}
}

func serveHTTP(ctx context.Context, address string, book *ledger.Book) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /count/{item}", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, count(r.PathValue("item")))
	})
	s := &http.Server{Addr: address, Handler: desk.New(book).Wrap(mux), ReadHeaderTimeout: headerTime}
	ended := make(chan error, 1)
	go func() { ended <- s.ListenAndServe() }()
	select {
	case err := <-ended:
		return fmt.Errorf("listen on %s: %w", address, err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastCall)
	defer cancel()
	return s.Shutdown(last)
}

// count is the answer to both protocols.
func count(item string) string {
	host, _ := os.Hostname()
	h := fnv.New32a()
	h.Write([]byte(item))
	return fmt.Sprintf("%s %d %s\n", item, h.Sum32()%90+10, host)
}

func serve(ctx context.Context, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	defer l.Close()
	stopAccepting := context.AfterFunc(ctx, func() { l.Close() })
	defer stopAccepting()
	var open sync.WaitGroup
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		open.Go(func() { talk(ctx, c) })
	}
	open.Wait()
	return nil
}

// talk answers one connection until it ends. When the server stops, the
// connection is closed as soon as it has no question open.
func talk(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) })
	defer stop()
	r := bufio.NewReaderSize(c, maxLine)
	for {
		if ctx.Err() == nil {
			c.SetReadDeadline(time.Now().Add(idleTime))
		}
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		verb, item, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		c.SetWriteDeadline(time.Now().Add(lastCall))
		switch verb {
		case "COUNT":
			io.WriteString(c, count(item))
		case "QUIT":
			return
		default:
			fmt.Fprintf(c, "ERROR unknown verb %q\n", verb)
		}
	}
}
