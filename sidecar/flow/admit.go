package flow

import (
	"fmt"
	"io"
	"net"

	"github.com/heddle-mesh/heddle/internal/telemetry"
)

// ALPN names of what is inside a TLS connection between sidecars.
const (
	ALPNHTTP1 = "heddle/h1"  // HTTP/1.1 requests, kept alive
	ALPNTCP   = "heddle/tcp" // one opaque connection
	// ALPNPrefix is common to all; other TLS is the application's own.
	ALPNPrefix = "heddle/"
)

// admissions are the codes of the one byte that the inbound side sends first
// on every TLS connection between sidecars. Without it the outbound side could
// not tell a refusal from a connection: in TLS 1.3 a client is done before the
// server has judged its certificate, and the application behind may refuse as
// well. Nothing of the client's is sent before it, so trying elsewhere is safe.
// The codes are part of the wire: only ever add.
var admissions = []telemetry.Reason{
	0: telemetry.ReasonOK,
	1: telemetry.ReasonConnectFailed, // the application did not take it
	2: telemetry.ReasonAccessDenied,
	3: telemetry.ReasonDraining,
	4: telemetry.ReasonTooManyConnections,
	5: telemetry.ReasonOwnPort,
	6: telemetry.ReasonLoop,
}

// Admit writes the verdict on a connection between sidecars.
func Admit(c net.Conn, reason telemetry.Reason) error {
	for code, r := range admissions {
		if r == reason {
			_, err := c.Write([]byte{byte(code)})
			return err
		}
	}
	_, err := c.Write([]byte{2})
	return err
}

// NotAdmitted says why the sidecar at the other end refused.
type NotAdmitted struct{ Reason telemetry.Reason }

// Error names the reason.
func (e *NotAdmitted) Error() string { return "refused by the endpoint's sidecar: " + string(e.Reason) }

// AwaitAdmission reads the verdict; *NotAdmitted: it is a refusal.
func AwaitAdmission(c net.Conn) error {
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return fmt.Errorf("await admission: %w", err)
	}
	switch {
	case b[0] == 0:
		return nil
	case int(b[0]) < len(admissions):
		return &NotAdmitted{admissions[b[0]]}
	}
	return &NotAdmitted{telemetry.ReasonAccessDenied}
}
