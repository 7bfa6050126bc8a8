package sidecar_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/policy"
)

func echoTCP(c net.Conn) {
	io.Copy(c, c)
	c.(*net.TCPConn).CloseWrite()
}

func TestTCPEcho(t *testing.T) {
	for _, p := range []wire.Protocol{opaque, unsaid} {
		for _, size := range []int{1, 5000, 3 << 20} {
			m := newMesh(t)
			c := m.client(nil, p, m.serve(serverConfig{}, echoTCP).endpoint())
			conn := c.dial()
			data := make([]byte, size)
			rand.Read(data)
			data[0] = 0
			go func() {
				conn.Write(data)
				conn.CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%v, %d bytes: got %d back, %v", p, size, len(got), err)
			}
		}
	}
}

// A server that speaks first is heard at once, and after the first time
// without the wait for the client.
func TestServerFirst(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{}, func(c net.Conn) {
		io.WriteString(c, "220 hello\r\n")
		echoTCP(c)
	})
	c := m.client(nil, unsaid, s.endpoint())
	for range 3 {
		conn := c.dial()
		var b [11]byte
		if _, err := io.ReadFull(conn, b[:]); err != nil || string(b[:]) != "220 hello\r\n" {
			t.Fatalf("got %q, %v", b, err)
		}
		if got := ask(t, conn, "QUIT\r\n"); got != "QUIT\r\n" {
			t.Fatalf("got %q", got)
		}
	}
}

// The side that ends first can still be talked to by the other.
func TestHalfClose(t *testing.T) {
	m := newMesh(t)
	clientFirst := m.serve(serverConfig{}, func(c net.Conn) {
		b, _ := io.ReadAll(c) // until the client's FIN
		io.WriteString(c, "after "+string(b))
	})
	if got := ask(t, m.client(nil, opaque, clientFirst.endpoint()).dial(), "FIN"); got != "after FIN" {
		t.Errorf("got %q", got)
	}
	heard := make(chan string, 1)
	serverFirst := m.serve(serverConfig{pod: "10.0.0.3:80"}, func(c net.Conn) {
		io.WriteString(c, "bye")
		c.(*net.TCPConn).CloseWrite()
		b, _ := io.ReadAll(c)
		heard <- string(b)
	})
	conn := m.client(nil, opaque, serverFirst.endpoint()).dial()
	if b, err := io.ReadAll(conn); string(b) != "bye" || err != nil {
		t.Fatalf("got %q, %v", b, err)
	}
	io.WriteString(conn, "still here")
	conn.CloseWrite()
	if got := <-heard; got != "still here" {
		t.Errorf("application heard %q", got)
	}
}

func TestResetIsPassedOn(t *testing.T) {
	m := newMesh(t)
	s := m.serve(serverConfig{}, func(c net.Conn) {
		io.ReadFull(c, make([]byte, 2))
		c.(*net.TCPConn).SetLinger(0)
	})
	conn := m.client(nil, opaque, s.endpoint()).dial()
	io.WriteString(conn, "hi")
	_, err := io.ReadAll(conn)
	wantReset(t, err)

	broke := make(chan error, 1)
	s = m.serve(serverConfig{pod: "10.0.0.3:80"}, func(c net.Conn) {
		io.WriteString(c, "hi")
		_, err := io.ReadAll(c)
		broke <- err
	})
	conn = m.client(nil, opaque, s.endpoint()).dial()
	io.ReadFull(conn, make([]byte, 2))
	conn.SetLinger(0)
	conn.Close()
	wantReset(t, <-broke)
}

// store is an identity with something wrong about it.
func store(t testing.TB, a *pki.Authority, svid pki.SVID) *identity.Store {
	t.Helper()
	s := identity.NewStore()
	if err := s.SetSVID(svid.Chain, svid.Key); err != nil {
		t.Fatal(err)
	}
	if err := s.SetBundles(pki.Bundles(a)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestIdentitiesRefused(t *testing.T) {
	stranger := pki.New(t, trustDomain) // same name, another root
	tests := []struct {
		name           string
		client, server func(m *mesh) *identity.Store
		reason, said   string
	}{
		{name: "endpoint of another identity", reason: "identity_mismatch", said: "ns/shop/sa/thief",
			server: func(m *mesh) *identity.Store { return m.authority.Store(t, "spiffe://mesh.test/ns/shop/sa/thief") }},
		{name: "endpoint of a forged root", reason: "certificate_unknown",
			server: func(m *mesh) *identity.Store {
				return store(t, m.authority, stranger.SVID(t, serverID))
			}},
		{name: "client of a forged root", reason: "certificate_unknown",
			client: func(m *mesh) *identity.Store {
				return store(t, m.authority, stranger.SVID(t, clientID))
			}},
		{name: "client without a certificate", reason: "no_identity",
			client: func(m *mesh) *identity.Store {
				s := identity.NewStore()
				s.SetBundles(pki.Bundles(m.authority))
				return s
			}},
	}
	for _, tt := range tests {
		for _, p := range []wire.Protocol{http1, opaque} {
			t.Run(tt.name+" "+p.String(), func(t *testing.T) {
				m := newMesh(t)
				var cs, ss *identity.Store
				if tt.client != nil {
					cs = tt.client(m)
				}
				if tt.server != nil {
					ss = tt.server(m)
				}
				reached := make(chan struct{}, 10)
				s := m.serve(serverConfig{store: ss}, func(c net.Conn) { reached <- struct{}{} })
				c := m.client(cs, p, s.endpoint())
				if p == http1 {
					if status, body, h := get(t, c); status != 502 || h.Get("X-Heddle-Reason") != tt.reason || !strings.Contains(body, tt.said) {
						t.Errorf("got %d %q %v, want 502 %s", status, body, h, tt.reason)
					}
				} else {
					wantReset(t, c.refused())
				}
				eventually(t, "the refusal is counted", func() bool {
					return metric(t, c.metrics, "heddle_refused_total", "reason="+tt.reason) == 1
				})
				if len(reached) > 0 {
					t.Error("the application was reached")
				}
			})
		}
	}
}

// A certificate that expires while the sidecar runs: no connection any more,
// and the log says whose it is.
func TestExpired(t *testing.T) {
	m := newMesh(t)
	dates := pki.Dates(-time.Hour, 1500*time.Millisecond)
	expiring := m.authority.SVID(t, serverID, dates)
	s := m.serve(serverConfig{store: store(t, m.authority, expiring)}, serveHTTP(echo))
	clientStore := store(t, m.authority, m.authority.SVID(t, clientID, dates))
	time.Sleep(time.Until(expiring.Chain[0].NotAfter.Add(time.Second))) // real certificates, real time
	if status, body, _ := get(t, m.client(nil, http1, s.endpoint())); status/100 != 5 {
		t.Errorf("endpoint expired: got %d %q", status, body)
	}
	want := "our certificate of " + serverID + " is valid from"
	eventually(t, "the log says whose certificate expired", func() bool { return strings.Contains(m.logged.String(), want) })
	good := m.serve(serverConfig{pod: "10.0.0.3:80"}, serveHTTP(echo))
	status, body, h := get(t, m.client(clientStore, http1, good.endpoint()))
	if reason := h.Get("X-Heddle-Reason"); status != 502 || reason != "no_identity" && reason != "certificate_expired" || !strings.Contains(body, clientID) {
		t.Errorf("client expired: got %d %s %q", status, reason, body)
	}
}

func TestPlaintext(t *testing.T) {
	banner := func(c net.Conn) {
		io.WriteString(c, "220 secret\r\n")
		echoTCP(c)
	}
	permissive := &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_PERMISSIVE}
	dial := func(s *server) *net.TCPConn {
		c, err := net.Dial("tcp", s.front)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	t.Run("strict refuses", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{}, banner)
		c := dial(s)
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		b, err := io.ReadAll(c)
		wantReset(t, err)
		if len(b) > 0 {
			t.Errorf("got %q", b)
		}
		if n := metric(t, s.metrics, "heddle_refused_total", "reason=plaintext_refused"); n != 1 {
			t.Errorf("counted %v", n)
		}
	})
	t.Run("permissive takes HTTP", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{policy: permissive}, serveHTTP(echo))
		got := ask(t, dial(s), "GET /x HTTP/1.1\r\nHost: a\r\nX-Heddle-Client-Id: forged\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.Contains(got, "X-Saw: GET /x\r\n") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("permissive takes a server that speaks first", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{policy: permissive}, banner)
		var b [12]byte
		if _, err := io.ReadFull(dial(s), b[:]); err != nil || string(b[:]) != "220 secret\r\n" {
			t.Errorf("got %q, %v", b, err)
		}
	})
	t.Run("no banner to a meshed pod before its hello", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{policy: permissive, meshed: func(netip.Addr) bool { return true }}, banner)
		c := dial(s)
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); n > 0 || !os.IsTimeout(err) {
			t.Errorf("got %d bytes, %v", n, err)
		}
	})
	t.Run("mesh TLS late to an unknown source", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{policy: permissive}, echoTCP)
		c := dial(s)
		time.Sleep(50 * time.Millisecond) // past the wait: the application has been dialled
		tc := tls.Client(c, m.authority.Store(t, clientID).ClientConfig(spiffeid.RequireFromString(serverID), "heddle/tcp"))
		var b [1]byte
		if _, err := io.ReadFull(tc, b[:]); err != nil || b[0] != 0 {
			t.Fatalf("admission %v, %v", b, err)
		}
	})
	t.Run("the application's own TLS", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{policy: permissive}, func(c net.Conn) {
			tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{{
				Certificate: [][]byte{m.authority.Root.Raw}, PrivateKey: pki.Key(t)}}})
			tc.Handshake()
		})
		err := tls.Client(dial(s), &tls.Config{ServerName: "x", RootCAs: nil}).Handshake()
		if err == nil || !strings.Contains(err.Error(), "certificate") { // got the application's, which proves nothing to us
			t.Errorf("handshake with the application: %v", err)
		}
		if n := metric(t, s.metrics, "heddle_handshakes_total"); n != 0 {
			t.Errorf("%v handshakes with us", n)
		}
	})
}

// The policy turns against a caller: requests are refused, tunnels are cut.
func TestNewPolicy(t *testing.T) {
	deny := policy.Compile(&wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT, Rules: []*wire.AccessRule{{
		Source: "AccessPolicy/shop/no#0", Action: wire.AccessRule_ACTION_DENY, Identities: []string{clientID},
	}}}, spiffeid.RequireTrustDomainFromString(trustDomain))
	m := newMesh(t)
	s := m.serve(serverConfig{}, echoTCP)
	conn := m.client(nil, opaque, s.endpoint()).dial()
	io.WriteString(conn, "x")
	io.ReadFull(conn, make([]byte, 1))
	h := m.serve(serverConfig{pod: "10.0.0.3:80"}, serveHTTP(echo))
	hc := m.client(nil, http1, h.endpoint())
	if status, _, _ := get(t, hc); status != 200 {
		t.Fatalf("before: %d", status)
	}
	s.in.SetPolicy(deny)
	h.in.SetPolicy(deny)
	if status, _, head := get(t, hc); status != 403 || head.Get("X-Heddle-Reason") != "access_denied" {
		t.Errorf("after: %d %v", status, head)
	}
	_, err := io.ReadAll(conn)
	wantReset(t, err)
	if status, _, head := get(t, m.client(nil, http1, h.endpoint())); status != 403 || head.Get("X-Heddle-Reason") != "access_denied" {
		t.Errorf("new connection: %d %v", status, head)
	}
}

// Where both sides are plain TCP the kernel moves the bytes.
func TestPlainEndpoint(t *testing.T) {
	m := newMesh(t)
	app := listen(t)
	m.wg.Go(func() { accept(m.ctx, &m.wg, app, echoTCP) })
	pod := netip.MustParseAddrPort("10.0.0.9:80")
	m.route(pod, app.Addr().String())
	c := m.client(nil, opaque, &wire.Endpoint{Key: []byte("x"), Address: pod.Addr().AsSlice(), Ports: []uint32{80}, Ready: true, Serving: true})
	conn := c.dial()
	data := make([]byte, 8<<20)
	rand.Read(data)
	go func() {
		conn.Write(data)
		conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
	eventually(t, "the bytes are counted", func() bool {
		return metric(t, c.metrics, "heddle_bytes_total", "way=sent", "tls=false") == float64(len(data))
	})
}
