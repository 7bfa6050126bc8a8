package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// clients are the subcommands that look at something; the first argument is
// where.
var clients = map[string]func(context.Context, []string) seen{
	"get": get, "upload": upload, "echo": echo, "banner": banner, "half-close": halfClose,
	"close-first": closeFirst, "connect": connect, "udp": udp, "ping": ping, "lookup": lookup,
}

const (
	oneTime = 10 * time.Second // for one exchange
	maxBody = 4 << 10          // of a body that is shown
	// maxFailures bounds those that are told one by one.
	maxFailures = 16
)

func failed(err error) seen { return seen{Err: err.Error()} }

// get asks -n times, -c at once, and counts the answers that are not 2xx as
// failed.
func get(ctx context.Context, args []string) seen {
	fs := flag.NewFlagSet("get", flag.ContinueOnError)
	n := fs.Int("n", 1, "requests")
	at := fs.Int("c", 1, "at once")
	rate := fs.Int("rate", 0, "requests a second; 0: as fast as answers come")
	fresh := fs.Bool("fresh", false, "a new connection for each")
	head := fs.Int("head-bytes", 0, "size of an extra header field")
	host := fs.String("host", "", "Host, if not the URL's")
	if err := fs.Parse(args[1:]); err != nil {
		return failed(err)
	}
	g := &getter{url: args[0], host: *host, answers: map[string]bool{},
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: *fresh, MaxIdleConnsPerHost: *at}}}
	if *head > 0 {
		g.filler = strings.Repeat("x", *head)
	}
	begun := time.Now()
	var all sync.WaitGroup
	for i := range *at {
		all.Go(func() {
			for k := i; k < *n; k += *at {
				if *rate > 0 {
					time.Sleep(time.Until(begun.Add(time.Second * time.Duration(k) / time.Duration(*rate)))) // the schedule
				}
				g.one(ctx)
			}
		})
	}
	all.Wait()
	g.s.OK = g.s.Failed == 0
	return g.s
}

// getter adds up what its requests saw.
type getter struct {
	url, host, filler string
	client            *http.Client
	mu                sync.Mutex // guards what follows
	s                 seen
	answers           map[string]bool
}

func (g *getter) one(ctx context.Context) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, nil)
	var resp *http.Response
	var shown bytes.Buffer
	var size int64
	if err == nil {
		req.Host = g.host
		if g.filler != "" {
			req.Header.Set("X-Filler", g.filler)
		}
		resp, err = g.client.Do(req)
	}
	if err == nil {
		size, err = io.Copy(&limited{w: &shown, left: maxBody}, resp.Body)
		resp.Body.Close()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.s.Bytes += size
	if resp != nil {
		g.s.Status, g.s.Reason, g.s.Body = resp.StatusCode, resp.Header.Get("X-Heddle-Reason"), shown.String()
	}
	if err != nil {
		g.s.Err = err.Error()
	}
	if err != nil || resp.StatusCode/100 != 2 {
		g.s.Failed++
		if len(g.s.Failures) < maxFailures {
			what := fmt.Sprintf("%s %v %d %s", time.Now().Format("05.000"), err, g.s.Status, g.s.Reason)
			g.s.Failures = append(g.s.Failures, what)
		}
		return
	}
	g.s.Count++
	if word, _, _ := strings.Cut(g.s.Body, " "); len(g.answers) < 64 && !g.answers[word] {
		g.answers[word] = true
		g.s.Answers = append(g.s.Answers, word)
	}
}

// limited keeps the first bytes and counts the rest as written.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	keep := b[:min(len(b), l.left)]
	l.left -= len(keep)
	if _, err := l.w.Write(keep); err != nil {
		return 0, err
	}
	return len(b), nil
}

// upload sends -bytes zeros and wants the number back.
func upload(ctx context.Context, args []string) seen {
	fs := flag.NewFlagSet("upload", flag.ContinueOnError)
	n := fs.Int64("bytes", 1<<20, "size of the body")
	chunked := fs.Bool("chunked", false, "do not say the length")
	if err := fs.Parse(args[1:]); err != nil {
		return failed(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, args[0], io.LimitReader(zeros{}, *n))
	if err != nil {
		return failed(err)
	}
	if !*chunked {
		req.ContentLength = *n
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return failed(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return failed(err)
	}
	s := seen{Status: resp.StatusCode, Body: string(b), Bytes: *n, Reason: resp.Header.Get("X-Heddle-Reason")}
	s.OK = strings.TrimSpace(s.Body) == fmt.Sprint(*n)
	return s
}

func dial(ctx context.Context, address string) (*net.TCPConn, error) {
	c, err := (&net.Dialer{Timeout: oneTime}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(budget))
	return c.(*net.TCPConn), nil
}

func echo(ctx context.Context, args []string) seen {
	fs := flag.NewFlagSet("echo", flag.ContinueOnError)
	n := fs.Int("bytes", 1<<10, "how many")
	if err := fs.Parse(args[1:]); err != nil {
		return failed(err)
	}
	c, err := dial(ctx, args[0])
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	sent := bytes.Repeat([]byte("heddle "), *n/7+1)[:*n]
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- errors.Join(err, c.CloseWrite())
	}()
	got, err := io.ReadAll(io.LimitReader(c, int64(*n)+1))
	if err := errors.Join(err, <-wrote); err != nil {
		return failed(err)
	}
	return seen{OK: bytes.Equal(got, sent), Bytes: int64(len(got)), Remote: c.RemoteAddr().String()}
}

// banner waits for what the server says first.
func banner(ctx context.Context, args []string) seen {
	c, err := dial(ctx, args[0])
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	var b [256]byte
	n, err := c.Read(b[:])
	if err != nil {
		return failed(err)
	}
	return seen{OK: bytes.HasPrefix(b[:n], []byte("220 ")), Body: string(b[:n])}
}

func halfClose(ctx context.Context, args []string) seen {
	c, err := dial(ctx, args[0])
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	if _, err := io.CopyN(c, zeros{}, 100_000); err != nil {
		return failed(err)
	}
	if err := c.CloseWrite(); err != nil {
		return failed(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return failed(err)
	}
	return seen{OK: string(b) == "100000\n", Body: string(b)}
}

func closeFirst(ctx context.Context, args []string) seen {
	c, err := dial(ctx, args[0])
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return failed(err)
	}
	b, err := io.ReadAll(c) // ends cleanly, by the server's FIN
	if err != nil {
		return failed(err)
	}
	return seen{OK: string(b) == "bye hello\n", Body: string(b)}
}

// connect opens -n connections one after the other and says one line on each.
func connect(ctx context.Context, args []string) seen {
	fs := flag.NewFlagSet("connect", flag.ContinueOnError)
	n := fs.Int("n", 1, "connections")
	if err := fs.Parse(args[1:]); err != nil {
		return failed(err)
	}
	var s seen
	one := func() error {
		c, err := dial(ctx, args[0])
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		var b [1]byte
		_, err = io.ReadFull(c, b[:])
		return err
	}
	for range *n {
		if err := one(); err != nil {
			s.Failed++
			s.Err = err.Error()
			continue
		}
		s.Count++
	}
	s.OK = s.Failed == 0
	return s
}

func udp(ctx context.Context, args []string) seen {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", args[0])
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(oneTime))
	if _, err := c.Write([]byte("ping")); err != nil {
		return failed(err)
	}
	var b [16]byte
	n, err := c.Read(b[:])
	if err != nil {
		return failed(err)
	}
	return seen{OK: string(b[:n]) == "ping"}
}

// ping sends one ICMP echo request.
func ping(_ context.Context, args []string) seen {
	to, err := net.ResolveIPAddr("ip", args[0])
	if err != nil {
		return failed(err)
	}
	network, kind := "ip4:icmp", icmp.Type(ipv4.ICMPTypeEcho)
	if to.IP.To4() == nil {
		network, kind = "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest
	}
	c, err := icmp.ListenPacket(network, "")
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(oneTime))
	m := icmp.Message{Type: kind, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: []byte("heddle")}}
	b, err := m.Marshal(nil)
	if err != nil {
		return failed(err)
	}
	if _, err := c.WriteTo(b, to); err != nil {
		return failed(err)
	}
	for range 16 { // others' messages come to a raw socket too
		buf := make([]byte, 1500)
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return failed(err)
		}
		got, err := icmp.ParseMessage(map[bool]int{true: 1, false: 58}[network == "ip4:icmp"], buf[:n])
		if err == nil && (got.Type == ipv4.ICMPTypeEchoReply || got.Type == ipv6.ICMPTypeEchoReply) {
			return seen{OK: true}
		}
	}
	return seen{Err: "no echo reply"}
}

func lookup(ctx context.Context, args []string) seen {
	addresses, err := net.DefaultResolver.LookupHost(ctx, args[0])
	if err != nil {
		return failed(err)
	}
	return seen{OK: true, Answers: addresses}
}
