package identity_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/telemetry"
)

const (
	webID    = "spiffe://demo.test/ns/shop/sa/web"
	ordersID = "spiffe://demo.test/ns/shop/sa/orders"
)

// outcome is what each side of one connection saw: its handshake's error, or
// that of the first byte exchanged after it.
type outcome struct {
	client, server       error
	clientCS, serverCS   tls.ConnectionState
	clientPeer, servPeer identity.Peer
}

// connect runs a handshake and one byte each way over an in-memory pipe.
func connect(client, server *tls.Config) outcome {
	a, b := net.Pipe()
	cc, sc := tls.Client(a, client), tls.Server(b, server)
	var o outcome
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.server = exchange(sc)
		o.serverCS = sc.ConnectionState()
		b.Close()
	}()
	o.client = exchange(cc)
	o.clientCS = cc.ConnectionState()
	a.Close()
	<-done
	o.clientPeer, _ = identity.PeerOf(o.clientCS)
	o.servPeer, _ = identity.PeerOf(o.serverCS)
	return o
}

// exchange reads and writes at once, because a TLS 1.3 client learns of a
// refusal only by reading and a pipe has no buffer.
func exchange(c *tls.Conn) error {
	if err := c.Handshake(); err != nil {
		return err
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte{'x'})
		wrote <- err
	}()
	_, err := io.ReadFull(c, make([]byte, 1))
	if err != nil {
		c.NetConn().Close()
		<-wrote
		return err
	}
	return <-wrote
}

func store(t *testing.T, svid pki.SVID, bundles ...*pki.Authority) *identity.Store {
	t.Helper()
	s := identity.NewStore()
	if err := s.SetSVID(svid.Chain, svid.Key); err != nil {
		t.Fatal(err)
	}
	if len(bundles) > 0 {
		if err := s.SetBundles(pki.Bundles(bundles...)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestHandshakeGood(t *testing.T) {
	ca := pki.New(t, "demo.test")
	orders := ca.SVID(t, ordersID, pki.Pod("orders-1.shop", "uid-orders"))
	server := store(t, orders, ca)
	o := connect(ca.Store(t, webID).ClientConfig(spiffeid.RequireFromString(ordersID), "heddle/h1"), server.ServerConfig("heddle/tcp", "heddle/h1"))
	if o.client != nil || o.server != nil {
		t.Fatalf("client: %v; server: %v", o.client, o.server)
	}
	if o.clientCS.NegotiatedProtocol != "heddle/h1" || o.clientCS.Version != tls.VersionTLS13 {
		t.Errorf("negotiated %q, version %x", o.clientCS.NegotiatedProtocol, o.clientCS.Version)
	}
	if o.clientCS.CurveID != tls.X25519MLKEM768 {
		t.Errorf("key exchange %s, want the hybrid", o.clientCS.CurveID)
	}
	want := identity.Peer{ID: spiffeid.RequireFromString(ordersID), PodUID: "uid-orders", Pod: "orders-1.shop",
		Serial: orders.Chain[0].SerialNumber.Text(16), NotAfter: orders.Chain[0].NotAfter}
	if o.clientPeer != want {
		t.Errorf("PeerOf = %+v\nwant     %+v", o.clientPeer, want)
	}
	if o.servPeer.ID.String() != webID {
		t.Errorf("server sees %s", o.servPeer.ID)
	}
}

// TestHandshakeRefused: a bad certificate, an expired one, a wrong identity
// are refused, and the message says which.
func TestHandshakeRefused(t *testing.T) {
	ca, other, foreign := pki.New(t, "demo.test"), pki.New(t, "demo.test"), pki.New(t, "elsewhere.test")
	// A workload's own certificate used as if it were an authority.
	leaf := ca.SVID(t, ordersID)
	usurped := pki.Sub(t, leaf, ordersID)
	// The right issuer's name over a signature by someone else.
	forged := other.SVID(t, ordersID)
	forged.Chain = []*x509.Certificate{forged.Chain[0], ca.Intermediate}

	tests := []struct {
		name   string
		svid   pki.SVID
		reason telemetry.Reason
		says   []string
	}{
		{"wrong identity", ca.SVID(t, "spiffe://demo.test/ns/shop/sa/stock"), telemetry.ReasonIdentityMismatch,
			[]string{"wanted " + ordersID, "the peer is spiffe://demo.test/ns/shop/sa/stock"}},
		{"prefix of the identity", ca.SVID(t, "spiffe://demo.test/ns/shop/sa/order"), telemetry.ReasonIdentityMismatch, nil},
		{"longer identity", ca.SVID(t, ordersID+"/x"), telemetry.ReasonIdentityMismatch, nil},
		{"expired", ca.SVID(t, ordersID, pki.Dates(-48*time.Hour, -time.Minute)), telemetry.ReasonCertificateExpired,
			[]string{"expired certificate of " + ordersID, "valid from", "our clock says"}},
		{"not yet valid", ca.SVID(t, ordersID, pki.Dates(time.Hour, 2*time.Hour)), telemetry.ReasonCertificateExpired,
			[]string{"not yet valid certificate of " + ordersID}},
		{"other root of the same trust domain", other.SVID(t, ordersID), telemetry.ReasonCertificateUnknown,
			[]string{"bad certificate of " + ordersID, "none of the roots of trust domain \"demo.test\""}},
		{"forged issuer", forged, telemetry.ReasonCertificateUnknown, []string{"bad certificate of " + ordersID}},
		{"signed by a workload", usurped, telemetry.ReasonCertificateUnknown, []string{"bad certificate of " + ordersID}},
		{"unknown trust domain", foreign.SVID(t, "spiffe://elsewhere.test/ns/shop/sa/orders"), telemetry.ReasonCertificateUnknown,
			[]string{"no trust bundle for trust domain \"elsewhere.test\""}},
		{"root vouching for a foreign domain", foreign.SVID(t, ordersID), telemetry.ReasonCertificateUnknown, []string{"none of the roots"}},
		{"no URI", ca.SVID(t, ordersID, func(c *x509.Certificate) { c.URIs = nil }), telemetry.ReasonCertificateUnknown, []string{"no SVID", "no URI SAN"}},
		{"two URIs", ca.SVID(t, ordersID, func(c *x509.Certificate) {
			c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "demo.test", Path: "/x"})
		}), telemetry.ReasonCertificateUnknown, []string{"more than one URI SAN"}},
		{"not SPIFFE", ca.SVID(t, "https://demo.test/ns/shop/sa/orders"), telemetry.ReasonCertificateUnknown, []string{"no SVID"}},
		{"trust domain's own identity", ca.SVID(t, "spiffe://demo.test"), telemetry.ReasonCertificateUnknown, []string{"not a workload"}},
		{"CA certificate", ca.SVID(t, ordersID, func(c *x509.Certificate) { c.IsCA = true }), telemetry.ReasonCertificateUnknown, []string{"is a CA's"}},
		{"may sign certificates", ca.SVID(t, ordersID, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }),
			telemetry.ReasonCertificateUnknown, []string{"KeyCertSign"}},
		{"weak RSA key", ca.SVIDForKey(t, ordersID, pki.RSAKey(t, 1024)), telemetry.ReasonCertificateUnknown, []string{"1024 bits"}},
		{"leaf without its intermediate", pki.SVID{Chain: ca.SVID(t, ordersID).Chain[:1]}, telemetry.ReasonCertificateUnknown, nil},
	}
	tests[len(tests)-1].svid.Key = leaf.Key
	tests[len(tests)-1].svid.Chain = leaf.Chain[:1]
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			good := ca.Store(t, ordersID)
			t.Run("server's", func(t *testing.T) {
				o := connect(good.ClientConfig(spiffeid.RequireFromString(ordersID)), raw(tt.svid))
				checkRefusal(t, o.client, tt.reason, tt.says)
				if r := identity.ReasonOf(o.server); r != telemetry.ReasonCertificateUnknown {
					t.Errorf("refused side: reason %q for %v", r, o.server)
				}
			})
			if tt.reason == telemetry.ReasonIdentityMismatch {
				return // a server takes any identity of the domain
			}
			t.Run("client's", func(t *testing.T) {
				o := connect(raw(tt.svid), good.ServerConfig())
				checkRefusal(t, o.server, tt.reason, tt.says)
				if r := identity.ReasonOf(o.client); r != telemetry.ReasonCertificateUnknown {
					t.Errorf("refused side: reason %q for %v", r, o.client)
				}
			})
		})
	}
}

// raw is a peer that shows what no Store would.
func raw(svid pki.SVID) *tls.Config {
	cert := tls.Certificate{PrivateKey: svid.Key}
	for _, c := range svid.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, ClientAuth: tls.RequestClientCert}
}

func checkRefusal(t *testing.T, err error, reason telemetry.Reason, says []string) {
	t.Helper()
	if err == nil {
		t.Fatal("accepted")
	}
	if got := identity.ReasonOf(err); got != reason {
		t.Errorf("reason %q, want %q: %v", got, reason, err)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

// TestOwnExpiry: once our own SVID has run out both sides fail closed, with a
// reason that points at us, and a new one heals it without a new config.
func TestOwnExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := pki.New(t, "demo.test")
		web, orders := ca.Store(t, webID), ca.Store(t, ordersID)
		client, server := web.ClientConfig(spiffeid.RequireFromString(ordersID)), orders.ServerConfig()
		if o := connect(client, server); o.client != nil || o.server != nil {
			t.Fatal(o.client, o.server)
		}
		time.Sleep(24*time.Hour + time.Second)
		o := connect(client, server)
		checkRefusal(t, o.server, telemetry.ReasonNoIdentity, []string{"our certificate of " + ordersID, "our clock says"})

		fresh := ca.SVID(t, ordersID)
		if err := orders.SetSVID(fresh.Chain, fresh.Key); err != nil {
			t.Fatal(err)
		}
		o = connect(client, server)
		checkRefusal(t, o.client, telemetry.ReasonNoIdentity, []string{"our certificate of " + webID})

		fresh = ca.SVID(t, webID)
		if err := web.SetSVID(fresh.Chain, fresh.Key); err != nil {
			t.Fatal(err)
		}
		if o := connect(client, server); o.client != nil || o.server != nil {
			t.Fatal(o.client, o.server)
		}
	})
}

func TestSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := pki.New(t, "demo.test")
		web := ca.Store(t, webID)
		near := ca.SVID(t, ordersID, pki.Dates(identity.ClockSkew, time.Hour))
		far := ca.SVID(t, ordersID, pki.Dates(identity.ClockSkew+time.Second, time.Hour))
		want := spiffeid.RequireFromString(ordersID)
		if o := connect(web.ClientConfig(want), raw(near)); o.client != nil {
			t.Error(o.client)
		}
		o := connect(web.ClientConfig(want), raw(far))
		checkRefusal(t, o.client, telemetry.ReasonCertificateExpired, []string{"not yet valid"})
	})
}

func TestNothingSet(t *testing.T) {
	ca := pki.New(t, "demo.test")
	good, empty := ca.Store(t, ordersID), identity.NewStore()
	want := spiffeid.RequireFromString(ordersID)

	o := connect(empty.ClientConfig(want), good.ServerConfig())
	checkRefusal(t, o.client, telemetry.ReasonCertificateUnknown, []string{"no trust bundle"})
	o = connect(good.ClientConfig(want), empty.ServerConfig())
	checkRefusal(t, o.server, telemetry.ReasonNoIdentity, []string{"no certificate yet"})
	o = connect(good.ClientConfig(spiffeid.ID{}), good.ServerConfig())
	checkRefusal(t, o.client, telemetry.ReasonIdentityMismatch, nil)

	// Roots but no SVID: the bootstrap.
	if err := empty.SetBundles(pki.Bundles(ca)); err != nil {
		t.Fatal(err)
	}
	o = connect(empty.ClientConfig(want), good.ServerConfig())
	checkRefusal(t, o.client, telemetry.ReasonNoIdentity, nil)
	o = connect(empty.AnonymousClientConfig(want), good.OptionalServerConfig())
	if o.client != nil || o.server != nil {
		t.Fatal(o.client, o.server)
	}
	if _, err := identity.PeerOf(o.serverCS); identity.ReasonOf(err) != telemetry.ReasonNoIdentity {
		t.Errorf("PeerOf an anonymous client: %v", err)
	}
	o = connect(empty.AnonymousClientConfig(spiffeid.RequireFromString(webID)), good.OptionalServerConfig())
	checkRefusal(t, o.client, telemetry.ReasonIdentityMismatch, nil)
	o = connect(raw(pki.New(t, "demo.test").SVID(t, webID)), good.OptionalServerConfig())
	checkRefusal(t, o.server, telemetry.ReasonCertificateUnknown, nil)
}

func TestReasonOfNoClientCertificate(t *testing.T) {
	ca := pki.New(t, "demo.test")
	good := ca.Store(t, ordersID)
	o := connect(good.AnonymousClientConfig(spiffeid.RequireFromString(ordersID)), good.ServerConfig())
	checkRefusal(t, o.server, telemetry.ReasonNoIdentity, nil)
	checkRefusal(t, o.client, telemetry.ReasonNoIdentity, nil)
	if r := identity.ReasonOf(io.EOF); r != telemetry.ReasonOK {
		t.Errorf("EOF has reason %q", r)
	}
	if r := identity.ReasonOf(nil); r != telemetry.ReasonOK {
		t.Errorf("nil has reason %q", r)
	}
}

func TestOldTLSRefused(t *testing.T) {
	ca := pki.New(t, "demo.test")
	old := raw(ca.SVID(t, webID))
	old.MaxVersion = tls.VersionTLS12
	if o := connect(old, ca.Store(t, ordersID).ServerConfig()); o.server == nil {
		t.Error("TLS 1.2 client taken")
	}
	if o := connect(ca.Store(t, ordersID).ClientConfig(spiffeid.RequireFromString(webID)), old); o.client == nil {
		t.Error("TLS 1.2 server taken")
	}
}

func TestNoResumption(t *testing.T) {
	ca := pki.New(t, "demo.test")
	client := ca.Store(t, webID).ClientConfig(spiffeid.RequireFromString(ordersID)).Clone()
	client.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	server := ca.Store(t, ordersID).ServerConfig()
	for range 3 {
		if o := connect(client, server); o.client != nil || o.clientCS.DidResume {
			t.Fatalf("err %v, resumed %v", o.client, o.clientCS.DidResume)
		}
	}
}

// BenchmarkHandshake shows what the hybrid key exchange costs.
func BenchmarkHandshake(b *testing.B) {
	ca := pki.New(b, "demo.test")
	web, orders := ca.Store(b, webID), ca.Store(b, ordersID)
	for _, curve := range []tls.CurveID{tls.X25519, tls.X25519MLKEM768} {
		b.Run(curve.String(), func(b *testing.B) {
			client := web.ClientConfig(spiffeid.RequireFromString(ordersID)).Clone()
			client.CurvePreferences = []tls.CurveID{curve}
			b.ReportAllocs()
			for b.Loop() {
				if o := connect(client, orders.ServerConfig()); o.client != nil {
					b.Fatal(o.client)
				}
			}
		})
	}
}
