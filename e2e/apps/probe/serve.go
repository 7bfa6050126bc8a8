package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// serve runs every service that a flag names an address for, until ctx ends.
func serve(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	httpAt := fs.String("http", "", "HTTP: /who /bytes/N /count /status/N")
	echo := fs.String("echo", "", "TCP that sends back what it gets, until the client closes")
	banner := fs.String("banner", "", "TCP that speaks first")
	half := fs.String("half-close", "", "TCP that answers with the number of bytes once the client has closed its side")
	first := fs.String("close-first", "", "TCP that closes after one line")
	grace := fs.Duration("grace", 0, "on SIGTERM HTTP goes on this long at most, until its requests have ended")
	udp := fs.String("udp", "", "UDP that sends back what it gets")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var all sync.WaitGroup
	ended := make(chan error, 8)
	ctx, cancel := context.WithCancel(ctx)
	defer all.Wait()
	defer cancel()
	run := func(address string, f func(context.Context, string) error) {
		if address != "" {
			all.Go(func() { ended <- f(ctx, address) })
		}
	}
	run(*httpAt, func(ctx context.Context, a string) error { return serveHTTP(ctx, a, *grace) })
	for address, talk := range map[string]func(net.Conn){*echo: talkEcho, *banner: talkBanner, *half: talkHalf, *first: talkFirst} {
		run(address, func(ctx context.Context, a string) error { return serveTCP(ctx, a, talk) })
	}
	run(*udp, serveUDP)
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

func serveHTTP(ctx context.Context, address string, grace time.Duration) error {
	host, _ := os.Hostname()
	mux := http.NewServeMux()
	mux.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s\n", host, r.RemoteAddr)
		for _, k := range []string{"X-Heddle-Client-Id", "X-Forwarded-For"} {
			if v := r.Header.Get(k); v != "" {
				fmt.Fprintf(w, "%s: %s\n", k, v)
			}
		}
	})
	mux.HandleFunc("/bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		io.CopyN(w, zeros{}, n)
	})
	mux.HandleFunc("/count", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintln(w, n)
	})
	mux.HandleFunc("/status/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.PathValue("n"))
		if err != nil || n < 200 || n > 599 {
			n = http.StatusBadRequest
		}
		w.WriteHeader(n)
	})
	s := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 1 << 20}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if grace == 0 || s.Shutdown(last) != nil {
			s.Close()
		}
	})
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return err
	}
	<-ended
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func serveTCP(ctx context.Context, address string, talk func(net.Conn)) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	var open sync.WaitGroup
	defer open.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		open.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			c.SetDeadline(time.Now().Add(10 * budget))
			talk(c)
		})
	}
}

func talkEcho(c net.Conn) { io.Copy(c, c) }

func talkBanner(c net.Conn) {
	host, _ := os.Hostname()
	fmt.Fprintf(c, "220 %s ready\n", host)
	io.Copy(c, c)
}

func talkHalf(c net.Conn) {
	n, err := io.Copy(io.Discard, c)
	if err == nil {
		fmt.Fprintf(c, "%d\n", n)
	}
}

func talkFirst(c net.Conn) {
	var b [1024]byte
	n, _ := c.Read(b[:])
	fmt.Fprintf(c, "bye %s\n", strings.TrimSpace(string(b[:n])))
}

func serveUDP(ctx context.Context, address string) error {
	c, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	b := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err == nil {
			c.WriteTo(b[:n], from)
		}
	}
}
