// Command stock is the shop's store room: a TCP server with a line protocol.
// Each line "COUNT <item>" is answered by "<item> <count> <replica>"; "QUIT"
// ends the connection. It knows nothing of the mesh.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxLine  = 1024             // bytes of one request
	idleTime = 5 * time.Minute  // a connection that asks nothing is closed
	lastCall = 10 * time.Second // on SIGTERM open connections may ask this long
)

func main() {
	listen := flag.String("listen", ":6000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := serve(ctx, *listen); err != nil {
		log.Fatalf("stock: %v", err)
	}
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
	host, _ := os.Hostname()
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
			h := fnv.New32a()
			h.Write([]byte(item))
			fmt.Fprintf(c, "%s %d %s\n", item, h.Sum32()%90+10, host)
		case "QUIT":
			return
		default:
			fmt.Fprintf(c, "ERROR unknown verb %q\n", verb)
		}
	}
}
