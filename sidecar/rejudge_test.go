package sidecar_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
)

// upgrade answers a request with 101 and then echoes.
func upgrade(c net.Conn) {
	r := bufio.NewReader(c)
	if _, err := http.ReadRequest(r); err != nil {
		return
	}
	io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	io.Copy(c, r)
}

// A connection that carries no requests is ended the moment a policy comes that
// would not let it in, without waiting for a sweep: mutual TLS, plaintext, and
// what an Upgrade made of HTTP. What may be a probe of the node is no reason to
// let it go on.
func TestEndedByNewPolicy(t *testing.T) {
	deny := &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT, Rules: []*wire.AccessRule{
		{Source: "AccessPolicy/shop/no#0", Action: wire.AccessRule_ACTION_DENY, Identities: []string{clientID}}}}
	stranger := func(m *mesh, s *server) *net.TCPConn {
		c, err := net.Dial("tcp", s.front)
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	const ask = "GET / HTTP/1.1\r\nHost: orders\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
	for _, tt := range []struct {
		name    string
		handle  func(net.Conn)
		dial    func(m *mesh, s *server) *net.TCPConn
		upgrade bool
		next    func(s *server) *wire.InboundPolicy
		reason  string
	}{
		{"mutual TLS", echoTCP, func(m *mesh, s *server) *net.TCPConn { return m.client(nil, opaque, s.endpoint()).dial() }, false,
			func(*server) *wire.InboundPolicy { return deny }, "access_denied"},
		{"upgraded", upgrade, func(m *mesh, s *server) *net.TCPConn { return m.client(nil, http1, s.endpoint()).dial() }, true,
			func(*server) *wire.InboundPolicy { return deny }, "access_denied"},
		{"plaintext", echoTCP, stranger, false,
			func(*server) *wire.InboundPolicy { return &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT} }, "plaintext_refused"},
		{"plaintext from the node, on a probed port", echoTCP, stranger, false, func(s *server) *wire.InboundPolicy {
			port := s.app.Addr().(*net.TCPAddr).Port
			return &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT, Probes: []*wire.Probe{{Port: uint32(port)}}, NodeAddresses: [][]byte{{127, 0, 0, 1}}}
		}, "plaintext_refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMesh(t)
			s := m.serve(serverConfig{policy: &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_PERMISSIVE}}, tt.handle)
			conn := tt.dial(m, s)
			conn.SetDeadline(time.Now().Add(20 * time.Second))
			if tt.upgrade {
				io.WriteString(conn, ask)
				resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
				if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("%v %v", resp, err)
				}
			}
			io.WriteString(conn, "word\n")
			if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			s.in.SetPolicy(compile(&wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_PERMISSIVE})) // another that lets it in
			io.WriteString(conn, "word\n")
			if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
				t.Fatalf("ended by a policy that lets it in: %v", err)
			}
			s.in.SetPolicy(compile(tt.next(s)))
			if log := m.logged.String(); !strings.Contains(log, `msg="connection ended by a new policy" reason=`+tt.reason) {
				t.Error("not ended by the time that the policy is in force")
			}
			_, err := io.ReadAll(conn)
			wantReset(t, err)
			if n := metric(t, s.metrics, "heddle_refused_total", "reason="+tt.reason, "direction=inbound"); n != 1 {
				t.Errorf("counted %v times", n)
			}
		})
	}
}
