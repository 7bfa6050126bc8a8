package identity_test

import (
	"crypto/x509"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
)

func TestSetSVIDRefuses(t *testing.T) {
	ca, other := pki.New(t, "demo.test"), pki.New(t, "demo.test")
	good := ca.SVID(t, webID)
	tests := []struct {
		name string
		svid pki.SVID
	}{
		{"empty", pki.SVID{Key: good.Key}},
		{"no key", pki.SVID{Chain: good.Chain}},
		{"other key", pki.SVID{Chain: good.Chain, Key: pki.Key(t)}},
		{"other kind of key", pki.SVID{Chain: good.Chain, Key: pki.RSAKey(t, 2048)}},
		{"no URI", ca.SVID(t, webID, func(c *x509.Certificate) { c.URIs = nil })},
		{"two URIs", ca.SVID(t, webID, func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) })},
		{"expired", ca.SVID(t, webID, pki.Dates(-2*time.Hour, -time.Hour))},
		{"not yet valid", ca.SVID(t, webID, pki.Dates(time.Hour, 2*time.Hour))},
		{"authority", ca.SVID(t, webID, func(c *x509.Certificate) { c.IsCA = true })},
		{"broken chain", pki.SVID{Chain: []*x509.Certificate{good.Chain[0], other.Intermediate}, Key: good.Key}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := identity.NewStore()
			if err := s.SetSVID(tt.svid.Chain, tt.svid.Key); err == nil {
				t.Error("taken")
			}
			if _, ok := s.ID(); ok || s.Leaf() != nil {
				t.Error("kept what it refused")
			}
			if err := s.SetSVID(good.Chain, good.Key); err != nil {
				t.Fatal(err)
			}
			if err := s.SetSVID(tt.svid.Chain, tt.svid.Key); err == nil {
				t.Error("taken")
			}
			if s.Leaf() != good.Chain[0] {
				t.Error("a refused SVID replaced the good one")
			}
		})
	}
}

func TestSetBundlesRefuses(t *testing.T) {
	ca := pki.New(t, "demo.test")
	for name, m := range map[string]map[spiffeid.TrustDomain][]*x509.Certificate{
		"nothing":   {},
		"no roots":  {ca.TrustDomain: nil},
		"no domain": {spiffeid.TrustDomain{}: {ca.Root}},
		"no CA":     {ca.TrustDomain: {ca.SVID(t, webID).Chain[0]}},
		"nil":       {ca.TrustDomain: {nil}},
	} {
		if err := identity.NewStore().SetBundles(m); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestConfigsAreShared(t *testing.T) {
	ca := pki.New(t, "demo.test")
	s := ca.Store(t, webID)
	want := spiffeid.RequireFromString(ordersID)
	first, firstServer := s.ClientConfig(want, "a", "b"), s.ServerConfig()
	if s.ClientConfig(want, "a", "b") != first || s.ServerConfig() != firstServer {
		t.Error("a config was made twice")
	}
	if s.ClientConfig(want, "a") == s.ClientConfig(want, "b") || s.ClientConfig(want) == s.AnonymousClientConfig(want) ||
		s.ServerConfig() == s.OptionalServerConfig() {
		t.Error("different configs are one")
	}
	if n := testing.AllocsPerRun(100, func() { s.ClientConfig(want, "a") }); n != 0 {
		t.Errorf("a cached config costs %v allocations", n)
	}
}

// TestRotation replaces SVIDs and roots while connections are made; with two
// roots in the bundle none may fail, whatever each side holds at that moment.
func TestRotation(t *testing.T) {
	oldCA, newCA := pki.New(t, "demo.test"), pki.New(t, "demo.test")
	web, orders := oldCA.Store(t, webID), oldCA.Store(t, ordersID)
	client, server := web.ClientConfig(spiffeid.RequireFromString(ordersID)), orders.ServerConfig()

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if o := connect(client, server); o.client != nil || o.server != nil {
					t.Errorf("client: %v; server: %v", o.client, o.server)
					return
				}
			}
		})
	}
	setBundles := func(authorities ...*pki.Authority) {
		for _, s := range []*identity.Store{web, orders} {
			if err := s.SetBundles(pki.Bundles(authorities...)); err != nil {
				t.Error(err)
			}
		}
	}
	setSVIDs := func(ca *pki.Authority) {
		for s, id := range map[*identity.Store]string{web: webID, orders: ordersID} {
			svid := ca.SVID(t, id)
			if err := s.SetSVID(svid.Chain, svid.Key); err != nil {
				t.Error(err)
			}
		}
	}
	for range 20 {
		setBundles(oldCA, newCA)
		setSVIDs(newCA)
		setSVIDs(oldCA)
	}
	close(stop)
	wg.Wait()

	// The new root alone refuses the old chain, with the same configs.
	setBundles(newCA)
	if o := connect(client, server); o.client == nil {
		t.Error("a chain of the removed root is still taken")
	}
	setSVIDs(newCA)
	if o := connect(client, server); o.client != nil || o.server != nil {
		t.Error(o.client, o.server)
	}
}
