package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/identity"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/wire"
)

func csr(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func byToken(t *testing.T, token string) *pb.IssueRequest {
	return &pb.IssueRequest{Csr: csr(t), Credential: &pb.IssueRequest_ServiceAccountToken{ServiceAccountToken: token}}
}

func renewal(t *testing.T) *pb.IssueRequest {
	return &pb.IssueRequest{Csr: csr(t), Credential: &pb.IssueRequest_Renew{Renew: true}}
}

func TestIssueRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t).start()
		defer p.stop()
		tests := map[string]struct {
			req  *pb.IssueRequest
			as   *identity.Store
			code wire.Code
			text string
		}{
			"no request":                {req: &pb.IssueRequest{}, code: wire.Invalid, text: "certificate request of 0 bytes"},
			"huge request":              {req: &pb.IssueRequest{Csr: make([]byte, maxCSR+1)}, code: wire.Invalid},
			"no credential":             {req: &pb.IssueRequest{Csr: csr(t)}, code: wire.Invalid, text: "no credential"},
			"malformed request":         {req: &pb.IssueRequest{Csr: []byte("x"), Credential: byToken(t, "web").Credential}, code: wire.Invalid},
			"empty token":               {req: byToken(t, ""), code: wire.Invalid},
			"unknown token":             {req: byToken(t, "forged"), code: wire.Unauthenticated, text: "signed by no known key"},
			"token without pod":         {req: byToken(t, "unbound"), code: wire.Unauthenticated, text: "not bound to a pod"},
			"token of a pod gone":       {req: byToken(t, "gone"), code: wire.Unauthenticated, text: "pod uid-9 of shop/web is gone"},
			"token of another's pod":    {req: byToken(t, "other"), code: wire.Unauthenticated, text: "service account orders, the credential says shop/web"},
			"source out of order":       {req: byToken(t, "outage"), code: wire.Unavailable, text: "cannot be reviewed now"},
			"join token":                {req: &pb.IssueRequest{Csr: csr(t), Credential: &pb.IssueRequest_JoinToken{JoinToken: "x"}}, code: wire.Unsupported, text: "join tokens"},
			"renewal without SVID":      {req: renewal(t), code: wire.Unauthenticated, text: "present certificate"},
			"renewal of a pod gone":     {req: renewal(t), as: p.store("web", "uid-9"), code: wire.Unauthenticated, text: "is gone"},
			"token of a pod that ended": {req: byToken(t, "over"), code: wire.Denied, text: "shop/job-1 is over"},
			"renewal of one":            {req: renewal(t), as: p.store("job", "uid-4"), code: wire.Denied, text: "shop/job-1 is over"},
			"renewal by another":        {req: renewal(t), as: p.store("web", "uid-2"), code: wire.Unauthenticated, text: "the credential says"},
			"renewal without a pod":     {req: renewal(t), as: p.store("web", ""), code: wire.Denied, text: "names no pod"},
			"renewal of another kind":   {req: renewal(t), as: p.ca.Store(t, "spiffe://demo.test/host/db"), code: wire.Denied, text: "names no service account"},
		}
		for name, tt := range tests {
			conn := p.conn(tt.as)
			_, err := conn.Issue(t.Context(), tt.req)
			conn.Close()
			var refusal *wire.Error
			if !errors.As(err, &refusal) || refusal.Code != tt.code || !strings.Contains(refusal.Message, tt.text) {
				t.Errorf("%s: %v, want %s: …%s…", name, err, tt.code, tt.text)
			}
			if err != nil && strings.Contains(err.Error(), "password") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := p.metric("issues_total,result=unauthenticated"); got != 7 {
			t.Errorf("%v refusals counted as unauthenticated", got)
		}
	})
}

func TestIssueAndRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t).start()
		defer p.stop()
		check := func(conn *wire.Conn, req *pb.IssueRequest) {
			t.Helper()
			defer conn.Close()
			res, err := conn.Issue(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := x509.ParseCertificate(res.Chain[0])
			if err != nil {
				t.Fatal(err)
			}
			if leaf.URIs[0].String() != "spiffe://demo.test/ns/shop/sa/web" || leaf.Subject.SerialNumber != "uid-1" || leaf.Subject.CommonName != "web-1.shop" {
				t.Errorf("issued for %v, %v", leaf.URIs, leaf.Subject)
			}
			if len(res.Bundle.Roots) != 1 || res.ServerTimeUnix != time.Now().Unix() {
				t.Errorf("answer %v", res)
			}
			life := time.Until(leaf.NotAfter)
			if after := time.Duration(res.RenewAfterUnix-res.ServerTimeUnix) * time.Second; after < life*45/100-time.Second || after > life*55/100 {
				t.Errorf("renew after %s of %s", after, life)
			}
		}
		check(p.conn(nil), byToken(t, "web"))
		check(p.conn(p.store("web", "uid-1")), renewal(t))
		// Whoever has a certificate may still come by token.
		check(p.conn(p.store("orders", "uid-2")), byToken(t, "web"))
	})
}

// A pod that the token knows and our world not yet gets a moment to appear.
func TestIssueWaitsForANewPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t).start()
		defer p.stop()
		w := firstWorld()
		p.worlds.Set(w.without(2, "uid-1"))
		time.AfterFunc(time.Second, func() { p.worlds.Set(w.with(3)) })
		conn := p.conn(nil)
		defer conn.Close()
		if _, err := conn.Issue(t.Context(), byToken(t, "web")); err != nil {
			t.Error(err)
		}
	})
}

func TestExpiredCertificateIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t).start()
		defer p.stop()
		s := p.store("web", "uid-1", pki.Dates(-time.Hour, 5*time.Second))
		conn := p.conn(s)
		defer conn.Close()
		if _, err := conn.Issue(t.Context(), renewal(t)); err != nil {
			t.Fatal(err)
		}
		// The connection outlives the certificate, the identity does not.
		time.Sleep(10 * time.Second)
		var refusal *wire.Error
		if _, err := conn.Issue(t.Context(), renewal(t)); !errors.As(err, &refusal) || refusal.Code != wire.Unauthenticated || !strings.Contains(err.Error(), "expired") {
			t.Errorf("renewed by an expired certificate: %v", err)
		}
	})
}

func TestIssueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		req := &pb.IssueRequest{Csr: []byte("x")}
		last := func(n int) (err error) {
			for range n {
				_, err = p.server.issue(t.Context(), wire.Caller{}, req)
			}
			return err
		}
		var refusal *wire.Error
		if err := last(issueBurst); !errors.As(err, &refusal) || refusal.Code != wire.Invalid {
			t.Errorf("within the burst: %v", err)
		}
		if err := last(1); !errors.As(err, &refusal) || refusal.Code != wire.Exhausted {
			t.Errorf("over the burst: %v", err)
		}
		time.Sleep(time.Second)
		if err := last(issueRate); !errors.As(err, &refusal) || refusal.Code != wire.Invalid {
			t.Errorf("a second later: %v", err)
		}
		// All places taken: the next waits, then is refused.
		for range issueConcurrent {
			p.server.busy <- struct{}{}
		}
		time.Sleep(time.Second)
		began := time.Now()
		if err := last(1); !errors.As(err, &refusal) || refusal.Code != wire.Exhausted || time.Since(began) != issueWait {
			t.Errorf("without a free place: %v after %s", err, time.Since(began))
		}
	})
}
