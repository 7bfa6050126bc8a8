package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// envProgram makes the test binary be the program.
const envProgram = "HEDDLE_NODE_TEST_IS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(envProgram) != "" {
		os.Exit(dispatch(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestCommandLine(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for args, want := range map[string]string{
		"":                                  "clean [flags]",
		"stop":                              `unknown command "stop"`,
		"run":                               "the node's name is not given",
		"run --node=n1 more":                `unexpected argument "more"`,
		"run --node=n1 --api-server=api:1":  "want IP:PORT, not a name",
		"run --node=n1 --trust-domain=A/b":  "trust domain",
		"run --node=n1 --log-level=chatty":  "log level",
		"clean all":                         `unexpected argument "all"`,
		"clean --what":                      "flag provided but not defined",
		"run --node=n1 --api-server=1.2.3:": "want IP:PORT",
		"run --node=n1 --api-server=127.0.0.1:6443":           "pods cannot reach it there",
		"run --node=n1 --api-server=192.0.2.1:6443,[::]:6443": "pods cannot reach it there",
		"run --node=n1 --api-server=[::ffff:127.0.0.1]:6443":  "pods cannot reach it there",
		"run --node=n1 --api-server=192.0.2.1:0":              "pods cannot reach it there",
		"run --node=n1 --api-server=[fe80::1%eth0]:6443":      "pods cannot reach it there",
	} {
		var stderr strings.Builder
		if code := dispatch(strings.Fields(args), io.Discard, &stderr); code != exitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: code %d, %s", args, code, stderr.String())
		}
	}
}

// scene is a node with its agent, and all else in another namespace.
type scene struct {
	t         *testing.T
	node, out *meshtest.NS
	api       *api
	plane     *plane
	dir       string // what is mounted
	state     string
	agent     *exec.Cmd
	log       *lockedBuffer
	stopPlane func()
	stopAPI   func()
}

const (
	apiVIP = "10.96.0.1"
	vip    = "10.96.0.10"
)

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, node: meshtest.NetNS(t), out: meshtest.NetNS(t), state: filepath.Join(t.TempDir(), "state"), log: &lockedBuffer{}}
	prefix := func(p string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(p)} }
	meshtest.Link(s.node, s.out, "eth0", prefix("192.0.2.1/24"), prefix("192.0.2.2/24"))
	s.node.Route(netip.MustParsePrefix("10.96.0.0/16"), netip.MustParseAddr("192.0.2.2"))
	s.plane = &plane{t: t, ca: pki.New(t, "demo.test")}
	s.plane.tell(service(vip, "192.0.2.2:8080"))
	cert, ca := serving(t, apiVIP)
	s.dir = files(t, ca)
	s.api = &api{planes: "192.0.2.2", port: 15010}
	l := tls.NewListener(s.listen("192.0.2.2:6443"), &tls.Config{Certificates: []tls.Certificate{cert}})
	server := &http.Server{Handler: s.api, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	s.stopAPI = func() { _ = server.Close() }
	s.servePlane()
	for _, port := range []string{"8080", "8081"} {
		go echo(s.listen("192.0.2.2:"+port), port)
	}
	t.Cleanup(func() {
		s.kill()
		s.stopPlane()
		s.stopAPI()
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	return s
}

func (s *scene) listen(at string) net.Listener {
	s.t.Helper()
	var l net.Listener
	var err error
	s.out.Do(func() { l, err = net.Listen("tcp", at) })
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	return l
}

func (s *scene) servePlane() {
	ctx, cancel := context.WithCancel(context.Background())
	l := s.listen("192.0.2.2:15010")
	server := wire.NewServer(wire.ServerConfig{Handler: s.plane, Identity: s.plane.ca.Store(s.t, "spiffe://demo.test/ns/heddle-system/sa/heddle-controlplane")})
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(ctx, l) }()
	s.stopPlane = func() { cancel(); <-done }
}

// echo says its port and then each byte again.
func echo(l net.Listener, port string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			fmt.Fprintln(c, port)
			_, _ = io.Copy(c, c)
		}()
	}
}

// program runs the program on the node.
func (s *scene) program(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), envProgram+"=1", "NODE_NAME=n1", "KUBERNETES_SERVICE_HOST="+apiVIP, "KUBERNETES_SERVICE_PORT=443")
	cmd.Stderr = s.log
	s.node.Do(func() {
		if err := cmd.Start(); err != nil {
			s.t.Errorf("start: %v", err)
		}
	})
	return cmd
}

func (s *scene) start() {
	s.agent = s.program("run", "--api-server=192.0.2.2:6443", "--trust-domain=demo.test", "--state-dir="+s.state, "--admin=127.0.0.1:15022",
		"--token-file="+s.dir+"/token", "--api-token-file="+s.dir+"/api-token", "--api-ca-file="+s.dir+"/ca.crt")
}

func (s *scene) kill() {
	if s.agent != nil {
		_ = s.agent.Process.Kill()
		_ = s.agent.Wait()
		s.agent = nil
	}
}

func (s *scene) dial(to string) (net.Conn, error) {
	var c net.Conn
	var err error
	s.node.Do(func() { c, err = net.DialTimeout("tcp", to, time.Second) })
	return c, err
}

// reach connects to the Service and says which endpoint answered.
func (s *scene) reach() (string, error) {
	c, err := s.dial(vip + ":80")
	if err != nil {
		return "", err
	}
	defer c.Close()
	b := make([]byte, 5)
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	_, err = io.ReadFull(c, b)
	return strings.TrimSpace(string(b)), err
}

// get asks the admin port.
func (s *scene) get(path string) (int, string) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return s.dial("127.0.0.1:15022")
	}}}
	res, err := client.Get("http://node" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// patience is far beyond what anything takes on a busy machine; several pauses
// of 5 s before new attempts may be in it.
const patience = time.Minute

// until waits for something to become true.
func (s *scene) until(what string, f func() bool) {
	s.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func (s *scene) reaches(endpoint string) func() bool {
	return func() bool { got, err := s.reach(); return err == nil && got == endpoint }
}

func (s *scene) isReady() bool { code, _ := s.get("/ready"); return code == http.StatusOK }

// The life of a node: the API server's address first, then the control plane,
// its news, meddling, sudden death, a boot without control plane, the end.
func TestLife(t *testing.T) {
	s := newScene(t)
	s.start()
	s.until("the API server is reached by its Service address", func() bool {
		c, err := s.dial(apiVIP + ":443")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if code, why := s.get("/ready"); code != http.StatusServiceUnavailable || !strings.Contains(why, "waiting for the control plane") {
		t.Errorf("before the control plane was found: %d %s", code, why)
	}
	s.api.publish(s.plane.ca.RootsPEM())
	s.until("ready", s.isReady)
	if got, err := s.reach(); err != nil || got != "8080" {
		t.Errorf("the Service: %q, %v", got, err)
	}
	if code, body := s.get("/debug/services"); code != http.StatusOK || !strings.Contains(body, "tcp 10.96.0.10:80") || !strings.Contains(body, `"Replica": "r1"`) {
		t.Errorf("/debug/services: %d %s", code, body)
	}
	if _, body := s.get("/metrics"); !strings.Contains(body, `heddle_node_writes_total{result="ok"}`) || !strings.Contains(body, "\nheddle_control_connected 1\n") {
		t.Errorf("/metrics: %s", body)
	}
	s.plane.tell(service(vip, "192.0.2.2:8081"))
	s.until("news reach the kernel", s.reaches("8081"))

	s.clean(s.t.TempDir()) // somebody wipes the rules under the agent
	s.until("the rules are mended", s.reaches("8081"))
	s.until("the meddling is counted", func() bool {
		_, body := s.get("/metrics")
		return strings.Contains(body, "heddle_node_meddled_total 1")
	})

	flow, err := s.dial(vip + ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	s.until("news are on disk", func() bool { _, err := os.Stat(filepath.Join(s.state, "services.state")); return err == nil })
	s.kill()
	if got, err := s.reach(); err != nil || got != "8081" {
		t.Errorf("with a dead agent: %q, %v", got, err)
	}
	s.start()
	s.until("ready after it was killed", s.isReady)
	b := make([]byte, len("8081\nstill here"))
	if _, err := io.WriteString(flow, "still here"); err != nil {
		t.Error(err)
	}
	if err := flow.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(flow, b); err != nil || !bytes.HasSuffix(b, []byte("still here")) {
		t.Errorf("the flow through it all: %q, %v", b, err)
	}
	s.until("it showed what it had kept", func() bool {
		s.plane.mu.Lock()
		defer s.plane.mu.Unlock()
		last := s.plane.hello[len(s.plane.hello)-1]
		return len(s.plane.hello) > 1 && len(last.Held) == 1 && last.Held[0].Name == "node"
	})
	s.boot(t)
}

// boot is a node that starts while nobody can be asked, and then its end.
func (s *scene) boot(t *testing.T) {
	s.kill()
	s.stopPlane()
	s.stopAPI()
	s.clean("")
	if got, err := s.reach(); err == nil {
		t.Errorf("after a boot, without an agent: %q", got)
	}
	s.start()
	s.until("ready from disk alone", s.isReady)
	if got, err := s.reach(); err != nil || got != "8081" {
		t.Errorf("from disk alone: %q, %v", got, err)
	}
	if err := s.agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := s.agent.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	s.agent = nil
	if got, err := s.reach(); err != nil || got != "8081" {
		t.Errorf("after the agent ended: %q, %v", got, err)
	}
	for range 2 {
		s.clean(s.state)
	}
	if got, err := s.reach(); err == nil {
		t.Errorf("after clean: %q", got)
	}
	if left, err := os.ReadDir(s.state); err == nil && len(left) > 0 {
		t.Errorf("clean left %v", left)
	}
}

func (s *scene) clean(dir string) {
	s.t.Helper()
	var exit *exec.ExitError
	if err := s.program("clean", "--state-dir="+dir).Wait(); err != nil {
		s.t.Errorf("clean: %v (exit error: %v)", err, errors.As(err, &exit))
	}
}

// lockedBuffer takes what a program says.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
