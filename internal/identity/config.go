package identity

import (
	"crypto/tls"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// keyExchange lists what we offer and take. Go 1.24 and later ignore the order
// and prefer the hybrid, so listing it means using it: recorded traffic stays
// closed to a later quantum computer. It costs about 2 KB and, measured here,
// about a sixth of the CPU of a mutual handshake; connections are pooled, so
// requests do not see it. P-256 and others are left out: both ends are ours or
// speak X25519, and each extra key share costs a key generation.
var keyExchange = []tls.CurveID{tls.X25519MLKEM768, tls.X25519}

type side uint8

const (
	client side = iota
	anonymousClient
	server
	optionalServer
)

// configKey names one TLS configuration. Their number is that of the
// identities we talk to, see maxConfigs.
type configKey struct {
	side side
	want spiffeid.ID
	alpn string
}

// ClientConfig dials want and nobody else, showing our SVID. It reads the
// store at each handshake; while our SVID is absent or expired the handshake
// fails. The returned config is shared: do not change it, Clone it.
func (s *Store) ClientConfig(want spiffeid.ID, alpn ...string) *tls.Config {
	return s.config(client, want, alpn)
}

// AnonymousClientConfig is ClientConfig without an SVID of our own, for the
// one call made before there is one (wire.Identity/Issue).
func (s *Store) AnonymousClientConfig(want spiffeid.ID, alpn ...string) *tls.Config {
	return s.config(anonymousClient, want, alpn)
}

// ServerConfig takes only clients with an SVID of a known trust domain; who of
// them may do what is the caller's to decide. Shared, as ClientConfig's.
func (s *Store) ServerConfig(alpn ...string) *tls.Config {
	return s.config(server, spiffeid.ID{}, alpn)
}

// OptionalServerConfig takes clients without a certificate as well (PeerOf
// then fails); one that is shown is verified as ServerConfig does. For the
// control plane's port, where bootstrapping peers have none.
func (s *Store) OptionalServerConfig(alpn ...string) *tls.Config {
	return s.config(optionalServer, spiffeid.ID{}, alpn)
}

// config gives the shared configuration, made at first use: cloning one for
// each connection costs more than all the rest of the set-up.
func (s *Store) config(sd side, want spiffeid.ID, alpn []string) *tls.Config {
	var joined string
	if len(alpn) == 1 {
		joined = alpn[0]
	} else {
		joined = strings.Join(alpn, "\x00")
	}
	key := configKey{side: sd, want: want, alpn: joined}
	s.mu.RLock()
	c := s.configs[key]
	s.mu.RUnlock()
	if c != nil {
		return c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.configs[key]; c != nil {
		return c
	}
	if len(s.configs) >= maxConfigs {
		clear(s.configs)
	}
	c = s.newConfig(sd, want, alpn)
	s.configs[key] = c
	return c
}

func (s *Store) newConfig(sd side, want spiffeid.ID, alpn []string) *tls.Config {
	c := &tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: keyExchange,
		NextProtos:       append([]string(nil), alpn...),
		// Resumption is off until revocation is checked on resumed sessions.
		SessionTicketsDisabled: true,
		// Small first records help browsers far away; inside a cluster they only
		// make more records, and more system calls.
		DynamicRecordSizingDisabled: true,
	}
	switch sd {
	case client, anonymousClient:
		// Not skipped but ours: crypto/tls would verify a DNS name; an SVID
		// has none. verifyServer does chain, dates and identity.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(cs tls.ConnectionState) error { return s.verifyServer(cs, want) }
	case server, optionalServer:
		c.VerifyConnection = func(cs tls.ConnectionState) error { return s.verifyClient(cs, sd == optionalServer) }
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.own() }
	}
	switch sd {
	case client:
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.own() }
	case server:
		c.ClientAuth = tls.RequireAnyClientCert
	case optionalServer:
		c.ClientAuth = tls.RequestClientCert
	}
	return c
}
