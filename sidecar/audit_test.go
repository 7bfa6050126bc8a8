package sidecar_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/api/wire"
)

// What an audit rule means is logged and counted, whatever other rules say:
// each request, and each connection that carries none.
func TestAudit(t *testing.T) {
	audit := &wire.AccessRule{Source: "AccessPolicy/shop/watch#0", Action: wire.AccessRule_ACTION_AUDIT, Identities: []string{clientID}}
	strict := &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT, Rules: []*wire.AccessRule{audit}}
	count := func(s *server, reason string) float64 {
		return metric(t, s.metrics, "heddle_audited_total", "policy=AccessPolicy/shop/watch#0", "reason="+reason)
	}
	t.Run("requests", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{policy: strict}, serveHTTP(echo))
		conn := m.client(nil, http1, s.endpoint()).dial()
		ask(t, conn, strings.Repeat("GET / HTTP/1.1\r\nHost: orders\r\n\r\n", 3))
		eventually(t, "three are counted", func() bool { return count(s, "none") == 3 })
		if log := m.logged.String(); strings.Count(log, "msg=audit policy=AccessPolicy/shop/watch#0 peer="+clientID) != 3 {
			t.Errorf("log says\n%s", log)
		}
	})
	t.Run("connections", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{policy: strict}, func(c net.Conn) { io.Copy(c, c) })
		ask(t, m.client(nil, opaque, s.endpoint()).dial(), "hello")
		eventually(t, "one is counted", func() bool { return count(s, "none") == 1 })
	})
	t.Run("refused ones", func(t *testing.T) {
		m := newMesh(t)
		deny := &wire.AccessRule{Source: "AccessPolicy/shop/no#0", Action: wire.AccessRule_ACTION_DENY}
		s := m.serve(serverConfig{policy: &wire.InboundPolicy{Mode: wire.MtlsMode_MTLS_MODE_STRICT, Rules: []*wire.AccessRule{audit, deny}}}, serveHTTP(echo))
		get(t, m.client(nil, http1, s.endpoint()))
		eventually(t, "it is counted with its reason", func() bool { return count(s, "access_denied") >= 1 })
	})
	t.Run("others are not", func(t *testing.T) {
		m := newMesh(t)
		s := m.serve(serverConfig{policy: strict}, serveHTTP(echo))
		get(t, m.client(m.authority.Store(t, "spiffe://mesh.test/ns/shop/sa/other"), http1, s.endpoint()))
		if n := metric(t, s.metrics, "heddle_audited_total"); n != 0 {
			t.Errorf("%v counted", n)
		}
	})
}
